"""From sampled token ids to text that can be shown: piece by piece, up to a stop string."""


class TextOutput:
    """The growing text of one request.

    Invariant: `released` never holds text that a stop string could still take back. So the last
    len(longest stop string) - 1 characters are held until the next token decides about them.
    """

    def __init__(self, tokenizer, stop: tuple[str, ...] = ()):
        self.decoder = tokenizer.stream_decoder()
        self.stop = stop
        self.held = max((len(s) for s in stop), default=1) - 1
        self.text = ""
        self.released = 0
        self.stopped = False

    def push(self, token_id: int) -> str:
        """Add a token; return the text that is now safe to show (it may be empty)."""
        self.text += self.decoder.push(token_id)
        self._cut()
        end = len(self.text) if self.stopped else max(self.released, len(self.text) - self.held)
        return self._release(end)

    def finish(self) -> str:
        """Return what is left once the request has finished."""
        if not self.stopped:
            self.text += self.decoder.flush()
            self._cut()
        return self._release(len(self.text))

    def _cut(self) -> None:
        """End the text before the first stop string in it, if there is one."""
        found = [at for s in self.stop if (at := self.text.find(s, self.released)) >= 0]
        if found:
            self.text, self.stopped = self.text[: min(found)], True

    def _release(self, end: int) -> str:
        piece, self.released = self.text[self.released : end], max(self.released, end)
        return piece
