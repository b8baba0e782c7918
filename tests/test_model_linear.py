"""The packed product against the plain one, and the way back to it where packing cannot be."""

import pytest
import torch
import torch.nn.functional as F

from course.engine.native import linear
from course.engine.native.linear import Linear, can_pack

DTYPES = [torch.float32, torch.bfloat16]


def example(rows, columns, out, dtype):
    generator = torch.Generator().manual_seed(rows)
    shapes = (rows, columns), (out, columns), (out,), (rows, out)
    x, weight, bias, plus = (torch.randn(s, generator=generator).to(dtype) for s in shapes)
    return x, weight / columns**0.5, bias, plus


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 2, 7, 8, 32, 33, 64, 300])
@pytest.mark.parametrize(("columns", "out"), [(64, 96), (576, 960), (33, 17)])
def test_agrees_with_the_plain_product(monkeypatch, dtype, rows, columns, out, packing):
    if packing and not can_pack(torch.bfloat16):
        pytest.skip("not run: this machine cannot pack weights")
    monkeypatch.setattr(linear, "can_pack", lambda _: packing)
    x, weight, bias, plus = example(rows, columns, out, dtype)
    exact = F.linear(x.double(), weight.double())
    atol = {torch.float32: 2e-5, torch.bfloat16: 3e-2}[dtype]
    for b in (None, bias):
        for p in (None, plus):
            kept = None if p is None else p.clone()
            found = Linear(weight, b)(x, plus=p)
            expected = exact + (0 if b is None else b.double()) + (0 if p is None else p.double())
            assert found.dtype == dtype
            assert found.shape == expected.shape
            torch.testing.assert_close(
                found.double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=atol
            )
            assert p is None or torch.equal(p, kept)  # the residual itself is only read


@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_that_are_views(dtype):
    x, weight, _, _ = example(12, 128, 40, dtype)
    wide = Linear(weight[:, :64].contiguous())
    view = x[:, 64:]
    torch.testing.assert_close(wide(view), wide(view.contiguous()), rtol=0, atol=0)


def test_the_same_rows_twice_are_bit_for_bit_the_same():
    for dtype in DTYPES:
        x, weight, bias, plus = example(9, 64, 96, dtype)
        product = Linear(weight, bias)
        assert torch.equal(product(x, plus), product(x, plus))


def test_an_operator_that_is_absent_or_wrong_is_not_used(monkeypatch):
    def absent(*_):
        raise AttributeError("no such operator")

    def wrong(x, weight, bias, plus):
        return plus

    for broken in (absent, wrong):
        can_pack.cache_clear()
        monkeypatch.setattr(linear, "_packed_linear", broken)
        assert not can_pack(torch.bfloat16)
        x, weight, bias, plus = example(4, 64, 96, torch.bfloat16)
        assert not Linear(weight, bias).packed
        expected = F.linear(x, weight, bias) + plus
        torch.testing.assert_close(Linear(weight, bias)(x, plus), expected)
    monkeypatch.undo()
    can_pack.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_other_dtypes_stay_plain(dtype):
    assert not Linear(torch.zeros(8, 8, dtype=dtype)).packed
