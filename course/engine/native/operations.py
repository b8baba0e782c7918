"""Norm, rotary positions and SwiGLU of a layer in C, one call each: see `TorchOperations`."""

import weakref

import torch

from course.engine.native.library import load, native_problem


class NativeOperations:
    """Every tensor is of the dtype asked for and contiguous, but for the rows of `rope`."""

    def __init__(self, dtype: torch.dtype):
        self.library, self.dtype = load(dtype), dtype

    def __reduce__(self):  # a copy, or a process that gets one, finds the library for itself
        return NativeOperations, (self.dtype,)

    def rms_norm(self, x, weight, eps):
        if weight.shape != x.shape[1:]:
            raise ValueError(f"a weight of {tuple(weight.shape)} for rows of {x.shape[1]} numbers")
        weight = weight.to(x.dtype).contiguous()
        out = torch.empty_like(x)
        self.library.rms_norm(x.data_ptr(), weight.data_ptr(), out.data_ptr(), *x.shape, eps)
        return out

    def rope_angles(self, positions, rate, dtype):
        angle = positions[:, None] * rate
        return angle.cos().float(), angle.sin().float()

    def rope(self, x, num_heads, angles):
        cos, sin = angles
        num_tokens, _, head_dim = x.shape
        address, stride = x.data_ptr(), x.stride(0)
        self.library.rope(
            address, stride, cos.data_ptr(), sin.data_ptr(), num_tokens, num_heads, head_dim
        )
        return x[:, :num_heads]

    def silu_mul(self, gate_up):
        num_tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(num_tokens, width)
        self.library.silu_mul(gate_up.data_ptr(), out.data_ptr(), num_tokens, width)
        return out


# Of the logits of the step that runs, their largest are known before anybody asks: see Linear.
_known: tuple[weakref.ref, torch.Tensor, torch.Tensor] | None = None


def remember_largest(x: torch.Tensor, most: torch.Tensor, places: torch.Tensor) -> None:
    """``largest(x)`` is this, until ``forget_largest``: for whoever knows that nobody changes x."""
    global _known
    _known = weakref.ref(x), most, places


def forget_largest() -> None:
    global _known
    _known = None


def largest(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest number of each row of x [N, M] and its first place: ``x.max(dim=-1)``."""
    known = _known
    if known is not None and known[0]() is x:
        return known[1:]
    if not _is_ours(x):
        return x.max(dim=-1)
    most, places = x.new_empty(len(x)), x.new_empty(len(x), dtype=torch.int64)
    load(x.dtype).largest(x.data_ptr(), *x.shape, most.data_ptr(), places.data_ptr())
    return most, places


def inverse_transform(weights: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """The first place [N, 1] in each row of weights [N, M] whose running total passes u x total.

    u: float64 [N, 1] in [0, 1). A weight of 0 is never found. Totals are in float64.
    """
    if _is_ours(weights):
        places = u.new_empty(len(u), 1, dtype=torch.int64)
        u = u.contiguous()
        load(weights.dtype).places(
            weights.data_ptr(), *weights.shape, u.data_ptr(), places.data_ptr()
        )
        return places
    running = weights.cumsum(dim=-1, dtype=torch.float64)
    # right=True passes over weights of 0, which do not raise the running total. Only in a row of
    # NaN, which the sampler refuses, would no place be found.
    place = torch.searchsorted(running, u * running[:, -1:], right=True)
    return place.clamp(max=weights.shape[-1] - 1)


def _is_ours(x: torch.Tensor) -> bool:
    on_cpu = x.device.type == "cpu" and x.dtype == torch.float32 and x.is_contiguous()
    return on_cpu and x.numel() > 0 and native_problem() is None
