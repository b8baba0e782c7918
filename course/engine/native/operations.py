"""Norm, rotary positions and SwiGLU of a layer in C, one call each: see `TorchOperations`."""

import torch

from course.engine.native.library import load, native_problem


class NativeOperations:
    """Every tensor is of the dtype asked for and contiguous, but for the rows of `rope`."""

    def __init__(self, dtype: torch.dtype):
        self.library = load(dtype)

    def rms_norm(self, x, weight, eps):
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


def largest(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest number of each row of x [N, M] and its first place: ``x.max(dim=-1)``."""
    if x.device.type != "cpu" or x.dtype != torch.float32 or not x.is_contiguous():
        return x.max(dim=-1)
    if native_problem() is not None or not x.numel():
        return x.max(dim=-1)
    most, places = x.new_empty(len(x)), x.new_empty(len(x), dtype=torch.int64)
    load(x.dtype).largest(x.data_ptr(), *x.shape, most.data_ptr(), places.data_ptr())
    return most, places
