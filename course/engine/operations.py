"""What a layer does between its matrix products: norm, rotary positions, SwiGLU.

Here in PyTorch, to be read; engine/native has the same in C, for CPUs, where calling so many small
operations costs more than their arithmetic. The tests hold one against the other.
"""

import torch
import torch.nn.functional as F

from course.engine.native.library import native_problem
from course.engine.native.operations import NativeOperations


def operations(device: torch.device, dtype: torch.dtype):
    """The operations that are quickest on this device and dtype."""
    if device.type == "cpu" and native_problem(dtype) is None:
        return NativeOperations(dtype)
    return TorchOperations()


class TorchOperations:
    """The layer's small operations, on any device."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x [num_tokens, width] over its root mean square, times weight [width]."""
        return F.rms_norm(x, weight.shape, weight, eps)

    def rope_angles(self, positions: torch.Tensor, rate: torch.Tensor, dtype: torch.dtype):
        """What `rope` needs of positions int64 [num_tokens], once for all layers."""
        return rope_angles(positions, rate, dtype)

    def rope(self, x: torch.Tensor, num_heads: int, angles) -> torch.Tensor:
        """The first num_heads heads of x [num_tokens, heads, head_dim], turned; x may change."""
        return apply_rope(x[:, :num_heads], *angles)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up; a row of gate_up [num_tokens, 2 * width] is gate, then up."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)


def rope_angles(
    positions: torch.Tensor, rate: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [num_tokens, 1, head_dim] for `apply_rope`, of positions int64 [num_tokens].

    The sine carries the sign that its half of the pair needs, so that turning takes no negation.
    """
    angle = positions[:, None, None] * rate
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([cos, cos], dim=-1).to(dtype), torch.cat([-sin, sin], dim=-1).to(dtype)


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn x [num_tokens, heads, head_dim] to its positions, by their `rope_angles`.

    Rolling by half a head lays each element's partner under it: x cos + partner (+-sin).
    """
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)
