"""Text to token ids and back, through the `tokenizers` library."""

from collections.abc import Sequence

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from course.engine.loading.chat import CHATML, render


class Tokenizer:
    """A vocabulary with its special tokens and its chat template.

    `eos_token_id` ends an answer (None: nothing does); `eos_token_ids` are all that do, for
    models with more than one. Valid ids are 0 .. vocab_size - 1: a model may have a few more rows
    than its vocabulary has tokens, and those have no text.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        eos_token_ids: Sequence[int] = (),
        bos_token_id: int | None = None,
        add_bos: bool = False,
        chat_template: str | None = None,
    ):
        self.backend = backend
        self.eos_token_ids = tuple(eos_token_ids)
        self.bos_token_id = bos_token_id
        self.chat_template = chat_template
        self.vocab_size = 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
        self._add_bos = add_bos

    @property
    def eos_token_id(self) -> int | None:
        return self.eos_token_ids[0] if self.eos_token_ids else None

    def encode(self, text: str) -> list[int]:
        """Token ids of a text. Special tokens that it spells out (<|im_end|>) become their id.

        A vocabulary may lack a few bytes, whose characters are then dropped: SmolLM2's does not
        know six control characters and the first byte of the unassigned planes 4 to 11.
        """
        if not isinstance(text, str):
            raise TypeError(f"encode takes text (str), not {type(text).__name__}")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"the text is not valid Unicode: {error}") from None
        # A chat template often spells the first token out; it must not come twice.
        bos = self.token(self.bos_token_id)
        has_bos = bool(bos) and text.startswith(bos)
        ids = self.backend.encode(text, add_special_tokens=not has_bos).ids
        if self._add_bos and self.bos_token_id is not None and not has_bos:
            ids = [self.bos_token_id, *ids]
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids; bytes that are no valid UTF-8 become U+FFFD."""
        ids = list(ids)
        for i in ids:
            if not 0 <= i < self.vocab_size:
                raise ValueError(f"token id {i} is not in 0 .. {self.vocab_size - 1}")
        return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def token(self, token_id: int | None) -> str:
        """How the vocabulary spells a token; "" for None or an id without one."""
        return (self.backend.id_to_token(token_id) if token_id is not None else None) or ""

    def apply_chat_template(
        self, messages: Sequence[dict], add_generation_prompt: bool = True
    ) -> str:
        """The prompt of a conversation, [{"role": "user", "content": "..."}, ...]."""
        return render(
            self.chat_template,
            messages,
            add_generation_prompt=add_generation_prompt,
            bos_token=self.token(self.bos_token_id),
            eos_token=self.token(self.eos_token_id),
        )

    def stream_decoder(self, skip_special_tokens: bool = True) -> "StreamDecoder":
        """A decoder for tokens that come one by one."""
        return StreamDecoder(self, skip_special_tokens)


class StreamDecoder:
    """Text as soon as it is whole: a character split over tokens waits for its last byte.

    All that `push` and the final `flush` return, joined, is `decode` of all the ids.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True):
        self._decode = lambda ids: tokenizer.decode(ids, skip_special_tokens)
        # Tokens already told stay as context: some vocabularies drop the space of a first word.
        self._ids: list[int] = []
        self._num_told = 0

    def push(self, token_id: int) -> str:
        """Add a token; return the text that is now certain, perhaps ""."""
        self._ids.append(token_id)
        text = self._untold()
        if not text or text.endswith("\ufffd"):  # how `decode` writes an unfinished character
            return ""
        self._ids = self._ids[self._num_told :]
        self._num_told = len(self._ids)
        return text

    def flush(self) -> str:
        """What is left at the end: a character that was never finished."""
        text = self._untold()
        self._ids, self._num_told = [], 0
        return text

    def _untold(self) -> str:
        return self._decode(self._ids)[len(self._decode(self._ids[: self._num_told])) :]


def byte_alphabet() -> list[str]:
    """How byte-level vocabularies spell each byte 0 .. 255 as one printable character.

    Printable bytes stand for themselves; the others, in order, for the characters from U+0100 on
    (the mapping of the GPT-2 tokenizer).
    """
    own = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in own]
    spelling = {b: chr(b) for b in own} | {b: chr(0x100 + i) for i, b in enumerate(others)}
    return [spelling[b] for b in range(256)]


def byte_tokenizer() -> Tokenizer:
    """The tokenizer of the tiny model: token id = byte value, then two special tokens."""
    backend = Backend(models.BPE({c: i for i, c in enumerate(byte_alphabet())}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in ("<|im_start|>", "<|im_end|>")]
    )
    return Tokenizer(backend, eos_token_ids=[257], chat_template=CHATML)
