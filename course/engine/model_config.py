"""The numbers of a Llama-style model, and the weights that they promise."""

from dataclasses import dataclass

from course.engine.loading.model_file import DamagedModelFile
from course.sizing import ModelShape


@dataclass(frozen=True)
class ModelConfig:
    """What a checkpoint's header says. Sizes in elements, `max_model_len` in tokens."""

    name: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_model_len: int
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5
    tied_embeddings: bool = True
    qkv_bias: bool = False
    sliding_window: int | None = None  # every layer sees itself and the W - 1 tokens before

    def __post_init__(self):
        for field in ("hidden_size", "intermediate_size", "num_layers", "num_heads",
                      "num_kv_heads", "head_dim", "vocab_size", "max_model_len"):  # fmt: skip
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise DamagedModelFile(f"{self.name}: {field} is {value!r}; it must be at least 1")
        for field in ("rope_theta", "rms_norm_eps"):
            value = getattr(self, field)
            if not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise DamagedModelFile(f"{self.name}: {field} is {value!r}; it must be positive")
        if self.num_heads % self.num_kv_heads:
            raise DamagedModelFile(
                f"{self.name}: {self.num_heads} query heads cannot share {self.num_kv_heads} KV "
                "heads evenly; the first must be a multiple of the second"
            )
        if self.head_dim % 2:
            raise DamagedModelFile(
                f"{self.name}: head_dim is {self.head_dim}; RoPE turns pairs, so it must be even"
            )

    @property
    def shape(self) -> ModelShape:
        """The part of these numbers that decides the size of the KV cache."""
        return ModelShape(
            name=self.name,
            num_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            max_model_len=self.max_model_len,
            sliding_window=self.sliding_window,
            num_window_layers=self.num_layers if self.sliding_window else 0,
        )

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight that the model reads, by the engine's own short name: [out, in] or [n]."""
        hidden, heads, kv_heads = self.hidden_size, self.num_heads, self.num_kv_heads
        shapes: dict[str, tuple[int, ...]] = {
            "embedding": (self.vocab_size, hidden),
            "final_norm": (hidden,),
        }
        if not self.tied_embeddings:
            shapes["lm_head"] = (self.vocab_size, hidden)
        for i in range(self.num_layers):
            shapes |= {
                f"{i}.attention_norm": (hidden,),
                f"{i}.q": (heads * self.head_dim, hidden),
                f"{i}.k": (kv_heads * self.head_dim, hidden),
                f"{i}.v": (kv_heads * self.head_dim, hidden),
                f"{i}.o": (hidden, heads * self.head_dim),
                f"{i}.mlp_norm": (hidden,),
                f"{i}.gate": (self.intermediate_size, hidden),
                f"{i}.up": (self.intermediate_size, hidden),
                f"{i}.down": (hidden, self.intermediate_size),
            }
            if self.qkv_bias:
                shapes |= {f"{i}.{n}_bias": shapes[f"{i}.{n}"][:1] for n in ("q", "k", "v")}
        return shapes


def default_head_dim(hidden_size: int, num_heads: int) -> int:
    """The head size of a checkpoint that does not name one; 0 if its numbers make no sense.

    ModelConfig then refuses the number that is to blame.
    """
    if isinstance(hidden_size, int) and isinstance(num_heads, int) and num_heads > 0:
        return hidden_size // num_heads
    return 0
