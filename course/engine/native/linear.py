"""The matrix product of every layer, in the form that is fastest on this machine.

A small batch reads each weight for little arithmetic, so what counts is how fast the weights
stream through the cores. On CPUs that PyTorch's oneDNN backend knows, bfloat16 weights laid out
once in oneDNN's own blocked order stream 1.3 to 1.7 times as fast at 1 to 32 rows as the plain
layout, which it has to work around in every call.

Float32 would gain as much, but oneDNN's order of summing rounds 1.4 times as much there as the
plain product (root mean square against float64, logits of SmolLM2). Float32 is for the lessons'
exact comparisons, so it keeps the plain product.
"""

from functools import lru_cache

import torch
import torch.nn.functional as F

PACKED_DTYPES = (torch.bfloat16,)

# The layout suits any number of rows; oneDNN asks for one to choose it by.
_TYPICAL_ROWS = 64


class Linear:
    """x @ weight.T + bias, weight [out_features, in_features] as checkpoints store it."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None):
        self.bias = bias
        self.packed = weight.device.type == "cpu" and can_pack(weight.dtype)
        self.weight = _pack(weight) if self.packed else weight

    def __call__(self, x: torch.Tensor, plus: torch.Tensor | None = None) -> torch.Tensor:
        """x [num_tokens, in_features] -> [num_tokens, out_features], dtype kept.

        `plus`, of the result's shape, is added in the same pass: the residual of a layer.
        """
        if not self.packed:
            y = F.linear(x, self.weight, self.bias)
            return y if plus is None else y.add_(plus)
        return _packed_linear(x, self.weight, self.bias, plus)


def _pack(weight: torch.Tensor) -> torch.Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _TYPICAL_ROWS)


def _packed_linear(x, weight, bias, plus) -> torch.Tensor:
    if plus is None:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return torch.ops.mkldnn._linear_pointwise.binary(x, plus, weight, bias, "add")


@lru_cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether this PyTorch and this CPU multiply packed weights of that dtype, and rightly.

    The operators belong to PyTorch's compiler and are not a public interface. Where they are
    absent, refuse, or differ from F.linear on a small example, the plain product is used.
    """
    if dtype not in PACKED_DTYPES or not torch.backends.mkldnn.is_available():
        return False
    generator = torch.Generator().manual_seed(0)
    x, weight, plus = (
        torch.randn(rows, columns, generator=generator).to(dtype)
        for rows, columns in ((3, 32), (48, 32), (3, 48))
    )
    try:
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        found = _packed_linear(x, _pack(weight), None, plus)
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    expected = x.double() @ weight.double().T + plus.double()
    return torch.allclose(found.double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-2)
