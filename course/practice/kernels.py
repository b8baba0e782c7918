"""Triton for a lab's notebook: ``from course.practice.kernels import tl, triton``.

Where there is no GPU, Triton's interpreter is turned on first, so that a kernel can also be called
in the notebook. Where Triton is not installed, a stand-in lets the notebook run to its end: a
kernel can be written there, and its check says "not run here".
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from course.engine.triton_support import use_interpreter_without_gpu

__all__ = ["load_rows", "tl", "triton"]


def _not_here(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("Triton is not installed here, so no kernel can run")


use_interpreter_without_gpu()
try:
    import triton
    import triton.language as tl

    from course.engine.triton_decode import load_rows
except ImportError:
    triton: Any = SimpleNamespace(jit=lambda kernel: kernel, cdiv=lambda a, b: -(-a // b))
    tl: Any = SimpleNamespace(constexpr=None)
    load_rows: Any = _not_here
