"""The packed product against the plain one, and the way back to it where packing cannot be."""

import pytest
import torch
import torch.nn.functional as F

from course.engine.native import linear
from course.engine.native.library import native_problem
from course.engine.native.linear import Linear

needs_native = pytest.mark.skipif(
    native_problem() is not None, reason=f"no C operations: {native_problem()}"
)
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
    x, weight, bias, plus = example(rows, columns, out, dtype)
    if packing and native_problem():
        pytest.skip(f"not run: {native_problem()}")
    if not packing:
        monkeypatch.setattr(linear, "can_pack", lambda _: False)
    assert Linear(weight).packed == (packing and (columns % 2 == 0 or dtype == torch.float32))
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


@needs_native
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_alone_is_bit_for_bit_what_it_is_among_others(dtype):
    x, weight, bias, plus = example(200, 576, 96, dtype)
    product = Linear(weight, bias)
    whole = product(x, plus)
    for first, rows in [(0, 1), (3, 7), (96, 8), (50, 97), (199, 1)]:
        part = slice(first, first + rows)
        assert torch.equal(product(x[part], plus[part]), whole[part])


@needs_native
def test_it_rounds_about_as_much_as_pytorch():
    """Float32 serves the lessons' exact comparisons."""
    x, weight, _, _ = example(64, 1536, 576, torch.float32)
    exact = x.double() @ weight.double().T
    ours, torchs = (
        (found.double() - exact).square().mean().sqrt()
        for found in (Linear(weight)(x), F.linear(x, weight))
    )
    assert ours < 1.25 * torchs


@needs_native
@pytest.mark.parametrize("dtype", DTYPES)
def test_wrong_inputs_are_refused(dtype):
    product = Linear(torch.zeros(8, 6, dtype=dtype))
    for x in (torch.zeros(2, 4), torch.zeros(2, 3, 6), torch.zeros(2, 6).double()):
        with pytest.raises(ValueError, match="this layer takes"):
            product(x)


def test_float16_stays_plain():
    assert not Linear(torch.zeros(8, 8, dtype=torch.float16)).packed
