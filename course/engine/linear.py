"""The matrix product of every layer, in the form that is fastest on this machine."""

import torch
import torch.nn.functional as F


class Linear:
    """y = x @ weight.T (+ bias), weight [out_features, in_features] as checkpoints store it."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None):
        self.weight = weight
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [num_tokens, in_features] -> [num_tokens, out_features], dtype kept."""
        return F.linear(x, self.weight, self.bias)
