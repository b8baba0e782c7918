"""Arrays and tensors as raw bytes, and when a container has changed.

NumPy and PyTorch only where somebody else has imported them, so that a worker without them starts
at once.
"""

from __future__ import annotations

import base64
import math
import sys
from collections import deque
from typing import Any

from .wire import Uncrossable

MAX_BYTES = 2**23  # of one array, or of the stretch that a tensor lies in


def is_array(value: Any) -> bool:
    """A NumPy array or a PyTorch tensor itself; subclasses are not."""
    kind = type(value)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and kind is numpy.ndarray:
        return not value.dtype.hasobject
    return torch is not None and kind is torch.Tensor and value.layout is torch.strided


def pack(value: Any) -> dict:
    """Bytes, dtype, shape; of a tensor strides too, because kernels are handed them."""
    torch = sys.modules.get("torch")
    if torch is None or type(value) is not torch.Tensor:
        _small(value.nbytes)
        data = base64.b64encode(value.tobytes()).decode()
        return {"dtype": value.dtype.str, "shape": list(value.shape), "data": data}
    flat = span(value.detach().cpu())
    data = base64.b64encode(flat.contiguous().view(torch.uint8).numpy().tobytes()).decode()
    return {
        "torch": str(value.dtype).removeprefix("torch."),
        "shape": list(value.shape),
        "stride": list(value.stride()),
        "data": data,
    }


def span(value: Any) -> Any:
    """The stretch of storage that a tensor lies in, flat."""
    steps = zip(value.shape, value.stride(), strict=True)
    count = 1 + sum((size - 1) * step for size, step in steps) if value.numel() else 0
    _small(count * value.element_size())
    return value.as_strided((count,), (1,))


def _small(size: int) -> None:
    if size > MAX_BYTES:
        raise Uncrossable(f"an array of {size} bytes; at most {MAX_BYTES} may cross")


def unpack(packed: dict) -> Any:
    """ValueError, TypeError, KeyError: what came is no array."""
    shape = [int(size) for size in packed["shape"]]
    data = base64.b64decode(packed["data"])
    if len(data) > MAX_BYTES or any(size < 0 for size in shape) or len(shape) > 16:
        raise ValueError("no array")
    if math.prod(shape) > MAX_BYTES:  # with steps of 0 a few bytes have room for any shape
        raise ValueError("no array of a size that could be looked at")
    import numpy

    if "torch" not in packed:
        found = dtype(packed["dtype"])
        if found.hasobject or found.itemsize == 0:
            raise ValueError("no dtype")
        return numpy.frombuffer(data, found).reshape(shape).copy()
    import torch

    kind = torch_dtype(packed["torch"])
    stride = [int(step) for step in packed["stride"]]
    raw = torch.from_numpy(numpy.frombuffer(data, numpy.uint8).copy())
    flat = raw.view(kind) if len(data) else torch.empty(0, dtype=kind)
    if len(stride) != len(shape) or any(step < 0 for step in stride):
        raise ValueError("no tensor")
    try:
        return flat.as_strided(shape, stride)
    except RuntimeError as error:
        raise ValueError(str(error)) from error


def dtype(name: str) -> Any:
    import numpy

    return numpy.dtype(str(name)[:40])


def torch_dtype(name: str) -> Any:
    import torch

    found = getattr(torch, str(name)[:40])
    if type(found) is not torch.dtype:
        raise ValueError("no dtype")
    return found


def refill(value: Any, packed: dict) -> None:
    """Put the other side's values into an array that both have, if they still fit."""
    fresh = unpack(packed)
    if type(fresh) is type(value) and fresh.shape == value.shape and fresh.dtype == value.dtype:
        torch = sys.modules.get("torch")
        if torch is not None and type(value) is torch.Tensor:
            with torch.no_grad():
                value.copy_(fresh)
        else:
            value[...] = fresh


def snapshot(value: Any) -> Any:
    """What is in a container, one level deep, to be compared later."""
    if type(value) in (list, deque):
        return list(value)
    if type(value) is dict:
        return list(value.items())
    return pack(value)["data"]


def same(value: Any, seen: Any) -> bool:
    """Whether it still holds those very things."""
    if type(value) in (list, deque):
        pairs = zip(value, seen, strict=False)
        return len(value) == len(seen) and all(a is b for a, b in pairs)
    if type(value) is dict:
        pairs = zip(value.items(), seen, strict=False)
        return len(value) == len(seen) and all(a is c and b is d for (a, b), (c, d) in pairs)
    return pack(value)["data"] == seen
