"""Which memory a Triton kernel touches, asked of Triton's interpreter, element by element.

A read past the end of a block table gives some number, and a mask further down hides it: the answer
is right, and on another day the process is gone. Here such a read is an error that names the
learner's line. Compiled kernels cannot be watched: on a GPU nothing is.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np


class Outside(IndexError):
    """A kernel touched what is not its own. Each array has a kind of its own: ``OutsideKeys``."""


@dataclass(frozen=True, eq=False)
class Array:
    """Memory that a kernel is given.

    name: "keys". tensor: a torch tensor on the CPU. spans: pairs (first element, end), counted from
    the tensor's first, that may be touched; None: all that the tensor's storage holds. tell: what a
    learner reads of an element that may not. is_written: the kernel may store to it.
    """

    name: str
    tensor: Any
    spans: Iterable[tuple[int, int]] | None = None
    tell: Callable[[int], str] | None = None
    is_written: bool = False

    @property
    def size(self) -> int:
        return self.tensor.element_size()

    @property
    def memory(self) -> tuple[int, int]:
        """Addresses of the first byte and past the last, of the storage as a whole."""
        storage = self.tensor.untyped_storage()
        return storage.data_ptr(), storage.data_ptr() + storage.nbytes()

    def allowed(self) -> list[tuple[int, int]]:
        if self.spans is None:
            return [self.memory]
        first = self.tensor.data_ptr()
        return [(first + a * self.size, first + b * self.size) for a, b in self.spans]

    @property
    def extent(self) -> tuple[int, int]:
        """The same of the tensor itself."""
        steps = zip(self.tensor.shape, self.tensor.stride(), strict=True)
        count = 1 + sum((size - 1) * stride for size, stride in steps)
        first = self.tensor.data_ptr()
        return first, first + (count * self.size if self.tensor.numel() else 0)

    def words(self, address: int) -> str:
        element = (address - self.tensor.data_ptr()) // self.size
        if self.tell is not None:
            return self.tell(element)
        return f"element {element} of the {self.name}, which has {self.tensor.numel()}"


@contextlib.contextmanager
def watch(arrays: Iterable[Array]) -> Iterator[list[int]]:
    """While it lasts, an interpreted kernel that touches anything but these raises Outside.

    Yields a list with the number of loads that were seen so far. A probe gives on whether there
    were any: where the kernel runs in another process than the probe, nothing is watched.
    """
    seen = [0]
    interpreter = sys.modules.get("triton.runtime.interpreter")
    builder = getattr(interpreter, "InterpreterBuilder", None)
    load = getattr(builder, "create_masked_load", None)
    store = getattr(builder, "create_masked_store", None)
    if builder is None or load is None or store is None:  # compiled, or a version unlike this one
        yield seen
        return
    arrays = list(arrays)
    written = [array for array in arrays if array.is_written]
    may_read, may_write = _Bounds(arrays, arrays), _Bounds(arrays, written)

    def watched_load(self: Any, pointers: Any, mask: Any, *more: Any) -> Any:
        seen[0] += 1
        may_read.check("reads", pointers.data, mask.data)
        found = load(self, pointers, mask, *more)
        if not more or more[0] is None:  # no `other`: what is masked off is anything at all
            is_off = ~np.broadcast_to(np.asarray(mask.data).astype(bool), found.data.shape)
            if is_off.any():
                found.data = np.where(is_off, _anything(found.data.dtype), found.data)
        return found

    def watched_store(self: Any, pointers: Any, value: Any, mask: Any, *more: Any) -> Any:
        may_write.check("writes to", pointers.data, mask.data)
        return store(self, pointers, value, mask, *more)

    builder.create_masked_load, builder.create_masked_store = watched_load, watched_store
    try:
        yield seen
    finally:
        builder.create_masked_load, builder.create_masked_store = load, store


def _anything(dtype: Any) -> Any:
    """As good a value as any where memory was not read: one that shows if it is used."""
    if np.issubdtype(dtype, np.floating):
        return dtype.type("nan")
    return (
        dtype.type(np.iinfo(dtype).max // 2) if np.issubdtype(dtype, np.integer) else dtype.type()
    )


class _Bounds:
    """Of all arrays, those that may be touched."""

    def __init__(self, arrays: list[Array], open_: list[Array]):
        self.arrays, self.open = arrays, open_
        spans = sorted(span for array in open_ for span in array.allowed() if span[0] < span[1])
        self.starts = np.array([first for first, _ in spans], np.uint64)
        self.ends = np.array([end for _, end in spans], np.uint64)

    def check(self, does: str, pointers: Any, mask: Any) -> None:
        pointers, mask = np.broadcast_arrays(pointers, np.asarray(mask).astype(bool))
        touched = pointers[mask].astype(np.uint64)
        span = np.searchsorted(self.starts, touched, side="right")
        is_outside = (span == 0) | (touched >= self.ends[span - 1])
        if is_outside.any():
            self._complain(does, int(touched[is_outside].min()))

    def _complain(self, does: str, address: int) -> None:
        def distance(array: Array) -> int:
            first, end = array.extent
            return max(first - address, address - end + 1, 0)

        array = min(self.arrays, key=distance)
        kind = type(f"Outside{array.name.title().replace(' ', '')}", (Outside,), {})
        if array not in self.open and distance(array) == 0:
            raise kind(f"the kernel {does} the {array.name}, which it may only read")
        raise kind(f"the kernel {does} {array.words(address)}")
