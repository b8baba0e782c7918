"""The KV calculator: model, length, batch, bytes per value -> bytes.

kv_calculator()
kv_calculator("Llama-2-7B", tokens=4096, batch=8, memory_gib=16)
"""

from course.show.display import Picture
from course.show.palette import ACCENT, INK, MUTED
from course.show.svg import Drawing
from course.show.widget import Choice, Number, Widget
from course.sizing import GIB, KIB, MIB, MODELS, ModelShape, kv_bytes, kv_bytes_per_token

VALUES = (("fp32, 4 bytes", 4), ("fp16 or bf16, 2 bytes", 2), ("int8 or fp8, 1 byte", 1))
LENGTHS = tuple(2**i for i in range(5, 18))


def size_words(count: float) -> str:
    """Bytes in binary units: 229,376 is "224 KiB"."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if count >= unit:
            return f"{count / unit:,.4g} {name}"
    return f"{count:,.4g} bytes"


class kv_calculator(Widget):
    """How many bytes the KV cache of a batch takes, factor by factor.

    model: a name in ``course.sizing.MODELS``. tokens: length of each request (a power of two from
    32 to 131,072). batch: requests, 1 to 512. bytes_per_value: 4, 2 or 1. memory_gib: the memory to
    hold the sum against, 1 to 2,048 GiB. ValueError for anything else.
    """

    def __init__(
        self,
        model: str = "Llama-2-7B",
        tokens: int = 4096,
        batch: int = 8,
        bytes_per_value: int = 2,
        memory_gib: int = 80,
        show: bool = True,
    ):
        state = {
            "model": model, "tokens": tokens, "batch": batch, "bytes": bytes_per_value,
            "memory": memory_gib,
        }  # fmt: skip
        super().__init__(state, show)

    def controls(self) -> list:
        lengths = [(f"{n:,}", n) for n in LENGTHS]
        return [
            Choice("model", "Model", sorted(MODELS, key=str.lower)),
            Choice("tokens", "Tokens each", lengths),
            Number("batch", "Requests", 1, 512),
            Choice("bytes", "Values", list(VALUES)),
            Number("memory", "Memory, GiB", 1, 2048),
        ]

    @property
    def shape(self) -> ModelShape:
        return MODELS[self.state["model"]]

    @property
    def total(self) -> int:
        """Bytes of all requests together."""
        return self.state["batch"] * kv_bytes(self.shape, self.state["tokens"], self.state["bytes"])

    def factors(self) -> list[tuple[str, str]]:
        """(value, what it is) of each factor of a token's bytes."""
        shape = self.shape
        if shape.kv_lora_rank:
            inner = [
                (f"({shape.kv_lora_rank} + {shape.qk_rope_head_dim})", "latent + rotary key"),
                (f"{shape.num_layers}", "layers"),
            ]
        else:
            inner = [
                ("2", "keys, values"),
                (f"{shape.num_layers}", "layers"),
                (f"{shape.num_kv_heads}", "KV heads"),
                (f"{shape.head_dim}", "head dim"),
            ]
        return [*inner, (f"{self.state['bytes']}", "bytes")]

    def draw(self) -> Picture:
        shape, s = self.shape, self.state
        per_token = kv_bytes_per_token(shape, s["bytes"])
        each = kv_bytes(shape, s["tokens"], s["bytes"])
        memory = s["memory"] * GIB
        many = "request" if s["batch"] == 1 else "requests"
        d = Drawing(760, 272)
        d.text(24, 36, shape.name, 17, weight="700")
        d.text(
            736,
            36,
            f"{shape.attention_kind}, {shape.num_attention_heads} query heads",
            13,
            "end",
            MUTED,
        )
        self._product(d, per_token)
        windowed = each < per_token * s["tokens"]
        note = " (window layers stopped growing)" if windowed else ""
        d.text(24, 146, f"{s['tokens']:,} tokens", 13.5, fill=MUTED)
        d.text(190, 146, f"{size_words(each)} a request{note}", 16, weight="600")
        d.text(24, 178, f"{s['batch']:,} {many}", 13.5, fill=MUTED)
        d.text(190, 178, size_words(self.total), 22, weight="700")
        self._bar(d, memory)
        fits = memory // each
        said = (
            f"{s['batch']:,} {many} of {s['tokens']:,} tokens: {size_words(self.total)}, "
            f"{_share(self.total / memory)} {s['memory']:,} GiB. "
        )
        if self.total > memory:
            said += f"Too many; {fits:,} would fit." if fits else "Not even one would fit."
        else:
            said += f"{fits:,} of them would fit."
        if s["tokens"] > shape.max_model_len:
            said += f" ({shape.name} itself stops at {shape.max_model_len:,} tokens.)"
        product = " x ".join(value for value, _ in self.factors())
        alt = (
            f"KV cache of {shape.name}: {product} = {per_token:,} bytes a token; "
            f"{size_words(each)} for {s['tokens']:,} tokens; {size_words(self.total)} for "
            f"{s['batch']:,} requests, of {s['memory']:,} GiB."
        )
        rows = {
            "bytes a token": per_token, "bytes a request": each, "bytes in all": self.total,
            "GiB in all": self.total / GIB, "requests that fit": int(fits),
        }  # fmt: skip
        return Picture(d.svg(alt), alt, said, rows)

    def _product(self, d: Drawing, per_token: int) -> None:
        x = 24.0
        for place, (value, words) in enumerate(self.factors()):
            if place:
                d.text(x + 10, 84, "×", 17, "middle", MUTED)
                x += 20
            wide = max(13.0 * len(value), 6.8 * len(words)) + 6
            d.text(x + wide / 2, 84, value, 21, "middle", weight="600")
            d.text(x + wide / 2, 104, words, 12.5, "middle", MUTED)
            x += wide
        d.text(x + 12, 84, "=", 18, "middle", MUTED)
        d.text(x + 28, 84, f"{per_token:,} bytes", 21, weight="700")
        d.text(x + 28, 104, f"a token ({size_words(per_token)})", 12.5, fill=MUTED)

    def _bar(self, d: Drawing, memory: int) -> None:
        share, y, wide = self.total / memory, 202, 712.0
        scale = min(1.0, 1 / share)  # the longer of the two fills the width
        d.rect(24, y, wide * scale, 30, "#FFFFFF", INK, 1.4)
        used, said = wide * scale * share, _share(share).removesuffix(" of")
        if share <= 1:
            d.rect(24, y, used, 30, "#1D5C63", INK, 1)
            inside = used > 30 + 8 * len(said)
            d.text(24 + used - 10 if inside else 24 + used + 8, y + 20, said, 13.5,
                   "end" if inside else "start", "#FFFFFF" if inside else INK, "600")  # fmt: skip
        else:
            d.rect(24, y, used, 30, ACCENT, INK, 1, hatch="/", hatch_colour="#FFFFFF")
        end = 24 + wide * scale
        d.line(end, y - 6, end, y + 36, INK, 2)
        left = scale > 0.3
        memory_words = f"{self.state['memory']:,} GiB"
        d.text(end - 6 if left else end + 6, y + 52, memory_words, 13, "end" if left else "start")
        if share > 1:
            at = (24, "start") if left else (736, "end")
            d.text(at[0], y + 52, f"{said} the memory", 13, at[1], ACCENT, "600")


def _share(share: float) -> str:
    """A share, to stand before what it is a share of: "87 % of" or "2.5 times"."""
    if share > 1:
        return f"{share:,.3g} times"
    return f"{share * 100:.3g} % of" if share < 0.01 else f"{share * 100:.0f} % of"
