"""A GGUF file: typed metadata, then a table of tensors, then their bytes.

The layout is that of the GGUF specification, versions 2 and 3, little-endian. Every read is
checked against the end of the file, so that a damaged length can neither hang nor read astray.
"""

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from course.engine.loading.model_file import DamagedModelFile, UnsupportedModel

# Type numbers of metadata values, as struct letters. 8 is a string, 9 an array.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?",
            10: "Q", 11: "q", 12: "d"}  # fmt: skip
_U32, _U64 = 4, 10
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies: shape as numpy has it (the file lists the fastest dimension first)."""

    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    start: int  # byte in the file
    num_bytes: int


class GGUFFile:
    """`.metadata` by key and `.tensors` by name; `read(name)` dequantises one tensor."""

    def __init__(self, path: Path):
        self.path = path
        if path.stat().st_size < 24:
            self._damaged(f"it has {path.stat().st_size} bytes, less than a header")
        with path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 0
        if (magic := self._take(4)) != b"GGUF":
            self._damaged(f"it starts with {magic!r}, not b'GGUF'")
        version = self._number(_U32)
        if version not in (2, 3):
            raise UnsupportedModel(f"{path}: GGUF version {version}; this engine reads 2 and 3")
        num_tensors, num_keys = self._number(_U64), self._number(_U64)
        self.metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._string()
            self.metadata[key] = self._value(self._number(_U32))
        table = [self._tensor_entry() for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            self._damaged(f"its alignment is {alignment!r}")
        data = -(-self._at // alignment) * alignment
        self.tensors: dict[str, TensorInfo] = {}
        for name, kind, shape, offset in table:
            self.tensors[name] = self._place(name, kind, shape, data + offset)

    def read(self, name: str) -> np.ndarray:
        """The values of a tensor, float32 in the shape of its entry."""
        info = self.tensors[name]
        raw = np.frombuffer(self._bytes, np.uint8, info.num_bytes, info.start)
        if info.kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
            values = raw.view("<f4" if info.kind == GGMLQuantizationType.F32 else "<f2")
        else:
            try:
                with np.errstate(all="ignore"):  # a damaged scale is reported with its tensor
                    values = dequantize(raw.reshape(*info.shape[:-1], -1), info.kind)
            except NotImplementedError:
                raise UnsupportedModel(
                    f"{self.path}: tensor {name} is stored as {info.kind.name}, which the gguf "
                    "library cannot dequantise; use another quantisation, such as Q8_0"
                ) from None
        return values.reshape(info.shape).astype(np.float32)

    def _tensor_entry(self):
        name = self._string()
        num_dims = self._number(_U32)
        if num_dims > 4:
            self._damaged(f"tensor {name!r} has {num_dims} dimensions")
        shape = tuple(reversed([self._number(_U64) for _ in range(num_dims)]))
        return name, self._number(_U32), shape, self._number(_U64)

    def _place(self, name: str, kind: int, shape: tuple[int, ...], start: int) -> TensorInfo:
        try:
            kind = GGMLQuantizationType(kind)
        except ValueError:
            self._damaged(f"tensor {name!r} has the unknown type {kind}")
        values, num_bytes = GGML_QUANT_SIZES[kind]
        if name in self.tensors or not shape or 0 in shape or shape[-1] % values:
            self._damaged(
                f"tensor {name!r} of shape {shape} is listed twice or cannot be {kind.name}"
            )
        num_bytes = prod(shape) // values * num_bytes
        if start + num_bytes > len(self._bytes):
            self._damaged(
                f"tensor {name!r} should end at byte {start + num_bytes:,}, but the file ends at "
                f"{len(self._bytes):,}: it is cut short"
            )
        return TensorInfo(kind, shape, start, num_bytes)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._number(kind)
        of_kind, length = self._number(_U32), self._number(_U64)
        if of_kind == _STRING:
            return [self._string() for _ in range(length)]
        if of_kind not in _NUMBERS:
            self._damaged(f"an array at byte {self._at:,} holds values of type {of_kind}")
        raw = self._take(length * struct.calcsize("<" + _NUMBERS[of_kind]))
        return [value for (value,) in struct.iter_unpack("<" + _NUMBERS[of_kind], raw)]

    def _number(self, kind: int) -> Any:
        if kind not in _NUMBERS:
            self._damaged(f"there is a value of the unknown type {kind} before byte {self._at:,}")
        form = "<" + _NUMBERS[kind]
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _string(self) -> str:
        raw = self._take(self._number(_U64))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self._damaged(f"the text before byte {self._at:,} is not UTF-8")

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._bytes):
            self._damaged(f"its header runs past its end, at byte {len(self._bytes):,}")
        taken = self._bytes[self._at : end]
        self._at = end
        return taken

    def _damaged(self, what: str) -> NoReturn:
        raise DamagedModelFile(f"{self.path} is no whole GGUF file: {what}. Get the file again")
