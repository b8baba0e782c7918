"""The matrix product of every layer, in the form that is fastest on this machine.

A small batch reads each weight for little arithmetic, so what counts is how fast the weights
stream through the cores. On a CPU they are laid out once in the order in which linear.h reads
them. There one row's result is the same whoever shares its batch: the sums are always added in
the same order, which is more than PyTorch's products promise.

Where there is no compiler, the plain layout stays, and PyTorch's product with it.
"""

import torch
import torch.nn.functional as F

from course.engine.native.large_pages import in_large_pages
from course.engine.native.library import load, native_problem

PANEL = 32  # output features that lie side by side, as in linear.h


class Linear:
    """x @ weight.T + bias, weight [out_features, in_features] as checkpoints store it."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None):
        self.bias = None if bias is None else bias.contiguous()
        self.out_features, self.in_features = weight.shape
        self.weight = in_large_pages(pack(weight)) if can_pack(weight) else weight

    @property
    def packed(self) -> bool:
        """Whether the weight is in panels: not so where a plain one was put in its place."""
        return self.weight.dim() == 4

    def __call__(self, x: torch.Tensor, plus: torch.Tensor | None = None) -> torch.Tensor:
        """x [num_tokens, in_features] -> [num_tokens, out_features], dtype kept.

        `plus`, of the result's shape, is added in the same pass: the residual of a layer.
        """
        if not self.packed:
            y = F.linear(x, self.weight, self.bias)
            return y if plus is None else y.add_(plus)
        y = x.new_empty(len(x), self.out_features)
        if plus is not None:
            plus = plus.expand_as(y).to(y.dtype).contiguous()
        self._multiply(x, plus, y, None)
        return y

    def floats(self, x: torch.Tensor) -> torch.Tensor:
        """The same numbers as float32, without a pass of its own over the widest result."""
        if not self.packed:
            return self(x).float()
        y = x.new_empty(len(x), self.out_features, dtype=torch.float32)
        self._multiply(x, None, None, y)
        return y

    def floats_and_largest(self, x: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """``floats(x)``, written to out (float32, contiguous), and what ``out.max(dim=-1)`` gives.
        Only for a packed weight.

        To look for the largest of each row afterwards would be to read it all once more.
        """
        most = out.new_empty(len(x))
        places = out.new_empty(len(x), dtype=torch.int64)
        self._multiply(x, None, None, out, most, places)
        return out, most, places

    def _multiply(self, x, plus, out, floats, most=None, places=None) -> None:
        if x.dtype != self.weight.dtype or x.dim() != 2 or x.shape[1] != self.in_features:
            raise ValueError(
                f"x is {x.dtype} {tuple(x.shape)}; this layer takes {self.weight.dtype} "
                f"[num_tokens, {self.in_features}]"
            )
        if x.stride(1) != 1:
            x = x.contiguous()
        load(x.dtype).linear(
            x.data_ptr(),
            x.stride(0),
            len(x),
            self.in_features,
            self.weight.data_ptr(),
            *map(_address, (self.bias, plus, out, floats)),
            self.out_features,
            *map(_address, (most, places)),
        )


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def pack(weight: torch.Tensor) -> torch.Tensor:
    """[out, in] -> [panels, in / pair, 32, pair]; the last panel is filled up with zeros."""
    out_features, in_features = weight.shape
    weight = F.pad(weight, (0, 0, 0, -out_features % PANEL))
    panels = weight.view(-1, PANEL, in_features // pair(weight), pair(weight))
    return panels.transpose(1, 2).contiguous()


def pair(weight: torch.Tensor) -> int:
    """Steps of the sum that the processor takes together."""
    return 2 if weight.dtype == torch.bfloat16 else 1


def can_pack(weight: torch.Tensor) -> bool:
    """Whether linear.h multiplies by this weight."""
    is_here = weight.device.type == "cpu" and native_problem(weight.dtype) is None
    return is_here and weight.shape[1] % pair(weight) == 0
