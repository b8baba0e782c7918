"""Whole messages over two pipes: JSON with a length before it, never code and never pickles."""

from __future__ import annotations

import json
import math
import os
import select
import struct
import time
from collections.abc import Callable
from typing import Any

HEAD = struct.Struct("<I")
MAX_MESSAGE = 16 * 2**20  # bytes
MAX_CASE = 64 * 2**20  # bytes that may come in for one case


class Gone(BaseException):
    """The other side is gone, late, or does not keep to the rules. ``kind`` says which."""

    def __init__(self, kind: str, why: str):
        super().__init__(why)
        self.kind, self.why = kind, why


class Uncrossable(Exception):
    """A value that cannot go to the other side."""


class Channel:
    """Messages out and in. ``deadline``: when the other side must have answered (monotonic clock).

    idle: called about ten times a second while waiting.
    """

    def __init__(self, read: int, write: int, idle: Callable[[], None] | None = None):
        self.read, self.write, self.idle = read, write, idle
        self.deadline = math.inf
        self.received = 0
        self._buffer = bytearray()
        self._in, self._out = select.poll(), select.poll()
        self._in.register(read, select.POLLIN)
        self._out.register(write, select.POLLOUT)

    def send(self, message: dict) -> None:
        try:
            data = json.dumps(message, allow_nan=False).encode("utf-8", "surrogatepass")
        except (ValueError, RecursionError) as error:
            raise Uncrossable(f"a value that cannot be written down: {error}") from error
        if len(data) > MAX_MESSAGE:
            raise Uncrossable(f"a message of {len(data)} bytes; at most {MAX_MESSAGE} may cross")
        view = memoryview(HEAD.pack(len(data)) + data)
        while view:
            self._wait(self._out)
            try:
                # A pipe takes 4 KiB or nothing, so this never waits in the middle.
                view = view[os.write(self.write, view[:4096]) :]
            except OSError as error:
                raise Gone("died", "it closed the connection") from error

    def receive(self) -> dict:
        self._fill(HEAD.size)
        (length,) = HEAD.unpack_from(self._buffer)
        if length > MAX_MESSAGE:
            raise Gone("broken", f"it sent a message of {length} bytes; {MAX_MESSAGE} are allowed")
        self._fill(HEAD.size + length)
        data = bytes(self._buffer[HEAD.size : HEAD.size + length])
        del self._buffer[: HEAD.size + length]
        try:
            message = json.loads(data.decode("utf-8", "surrogatepass"), parse_constant=_constant)
        except (ValueError, RecursionError) as error:
            raise Gone("broken", "it wrote to the answer pipe what is no message") from error
        if type(message) is not dict:
            raise Gone("broken", "it wrote to the answer pipe what is no message")
        return message

    @property
    def unread(self) -> bool:
        """Whether more came than one message."""
        return bool(self._buffer)

    def _fill(self, count: int) -> None:
        while len(self._buffer) < count:
            self._wait(self._in)
            part = os.read(self.read, 1 << 20)
            if not part:
                raise Gone("died", "it closed the connection")
            self._buffer += part
            self.received += len(part)
            if self.received > MAX_CASE:
                raise Gone("broken", f"it sent more than {MAX_CASE // 2**20} MiB for one case")

    def _wait(self, poll: select.poll) -> None:
        if self.deadline == math.inf:
            return  # reading and writing wait by themselves
        while True:
            left = self.deadline - time.monotonic()
            if left <= 0:  # also when there is always something to be read
                raise Gone("timeout", "it did not answer in time")
            if poll.poll(min(100.0, left * 1000)):
                return
            if self.idle is not None:
                self.idle()


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no number here")
