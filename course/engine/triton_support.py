"""Can Triton run here, and how: compiled for a GPU, in its interpreter, or not at all."""

import os
import sys
from dataclasses import dataclass
from functools import cache

import torch

from course.engine.native.library import native_problem

BACKENDS = ("reference", "torch", "native", "triton")


class BackendUnavailable(RuntimeError):
    """The backend that was asked for cannot run here; the message says why and what to do."""


@dataclass(frozen=True)
class TritonStatus:
    """``mode``: "compiled", "interpreter" or "absent"; ``problem``: None, or why it cannot run."""

    mode: str
    version: str | None
    problem: str | None


def use_interpreter_without_gpu() -> None:
    """Turn Triton's interpreter on where there is no GPU. Call it before triton is imported."""
    if not torch.cuda.is_available() and "triton" not in sys.modules:
        os.environ.setdefault("TRITON_INTERPRET", "1")


@cache
def triton_status() -> TritonStatus:
    """How Triton runs in this process. It does not change once triton has been imported."""
    try:
        import triton
        import triton.language as tl
        from triton.runtime.interpreter import InterpretedFunction
    except ImportError as error:
        where = "it runs on Linux; elsewhere use the torch backend, or a hosted notebook with a GPU"
        return TritonStatus("absent", None, f"triton cannot be imported ({error}): {where}")
    version = triton.__version__
    wanted = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")
    # Triton decides when a kernel is defined, and its own library was defined at its import.
    is_on = isinstance(tl.sum, InterpretedFunction)
    if wanted != is_on:
        return TritonStatus(
            "absent",
            version,
            f"TRITON_INTERPRET is {'1' if wanted else 'not 1'} now, but was "
            f"{'not 1' if wanted else '1'} when triton was imported: "
            "restart Python (or the notebook's kernel) and set it first",
        )
    if is_on:
        return TritonStatus("interpreter", version, None)
    if torch.cuda.is_available():
        return TritonStatus("compiled", version, None)
    return TritonStatus(
        "absent",
        version,
        "no GPU is visible to PyTorch: set TRITON_INTERPRET=1 before Python starts to run the "
        "kernels in Triton's interpreter (slow, for study), or use the torch backend",
    )


def choose_backend(name: str, device: torch.device) -> str:
    """The backend that "auto" means on this device, or `name` if it can run there."""
    if name == "auto":  # on a CPU without asking: Triton's mode is fixed when it is imported
        if device.type == "cpu":
            return "torch" if native_problem() else "native"
        on_gpu = device.type == "cuda" and triton_status().mode == "compiled"
        return "triton" if on_gpu else "torch"
    if name not in BACKENDS:
        raise ValueError(f"backend {name!r}: there are {', '.join(BACKENDS)} and auto")
    if name == "native":
        problem = native_problem()
        if device.type != "cpu":
            problem = f"it is for CPUs and the tensors are on {device}"
        if problem:
            raise BackendUnavailable(f"backend 'native' cannot run here: {problem}")
    if name == "triton":
        status = triton_status()
        problem = status.problem
        if status.mode == "compiled" and device.type != "cuda":
            problem = (
                f"the tensors are on {device}, and compiled kernels run on a GPU: move them to "
                "cuda, or start Python with TRITON_INTERPRET=1 to run the kernels here, slowly"
            )
        if problem:
            raise BackendUnavailable(f"backend 'triton' cannot run here: {problem}")
    return name


def refuse_bfloat16_in_interpreter(*dtypes: torch.dtype) -> None:
    """ValueError where Triton would go on and give wrong numbers."""
    if torch.bfloat16 in dtypes and triton_status().mode == "interpreter":
        raise ValueError(
            "bfloat16 gives wrong numbers in Triton's interpreter: use float32 or float16 here, "
            "or run on a GPU"
        )
