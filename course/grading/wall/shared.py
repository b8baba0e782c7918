"""Lists, dicts and arrays that both sides have, and what one of them changed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from . import arrays
from .wire import Gone


@dataclass
class Shared:
    """A container that both sides have, and what was in it when they last agreed."""

    value: Any
    seen: Any


class Sharing:
    """The part of a codec that keeps containers alike on both sides."""

    shared: dict[int, Shared]
    numbers: dict[int, int]
    next: int

    def encode(self, value: Any, depth: int = 0) -> Any:
        raise NotImplementedError

    def decode(self, node: Any, depth: int = 0) -> Any:
        raise NotImplementedError

    def _decode(self, node: Any, depth: int = 0) -> Any:
        raise NotImplementedError

    def _share(self, number: int, value: Any) -> None:
        self.numbers[id(value)] = number
        self.shared[number] = Shared(value, arrays.snapshot(value))

    def _content(self, value: Any, depth: int = 0) -> Any:
        if type(value) in (list, deque):
            return [self.encode(item, depth + 1) for item in value]
        if type(value) is dict:
            pairs = list(value.items())
            return [[self.encode(k, depth + 1), self.encode(v, depth + 1)] for k, v in pairs]
        return arrays.pack(value)

    def _received(self, number: int, content: dict, depth: int) -> Any:
        if number in self.shared or number % 2 == self.next % 2:
            raise ValueError("a number that is taken")
        match content:
            case {"list": list(items)} | {"deque": list(items)}:
                value: Any = [] if "list" in content else deque()
                self._share(number, value)
                value += [self._decode(item, depth + 1) for item in items]
            case {"dict": list(pairs)}:
                value = {}
                self._share(number, value)
                value |= {self._decode(k, depth + 1): self._decode(v, depth + 1) for k, v in pairs}
            case {"ndarray": dict(packed)} | {"Tensor": dict(packed)}:
                value = arrays.unpack(packed)
            case _:
                raise ValueError("no container")
        self._share(number, value)
        return value

    def _changes(self) -> list:
        told = []
        for number, shared in list(self.shared.items()):
            if not arrays.same(shared.value, shared.seen):
                shared.seen = arrays.snapshot(shared.value)
                told.append([number, self._content(shared.value)])
        return told

    def _change(self, number: Any, content: Any) -> None:
        shared = self.shared.get(number)
        if shared is None:
            raise Gone("broken", "it changes what it never had")
        value = shared.value
        if type(value) in (list, deque) and type(content) is list:
            items = [self.decode(item, 1) for item in content]
            value.clear()
            value.extend(items)
        elif type(value) is dict and type(content) is list:
            fresh = {self.decode(k, 1): self.decode(v, 1) for k, v in content}
            value.clear()
            value.update(fresh)
        elif type(content) is dict:
            arrays.refill(value, content)
        shared.seen = arrays.snapshot(value)
