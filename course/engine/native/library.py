"""Compile kernels.c, with its headers, for this machine, once, and load it; or say why not.

The compiled file is kept in the user's cache folder, under a name made of everything that it
depends on: the source, the flags, the processor. Two processes may compile it at once: each writes
a file of its own and then renames it.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("kernels.c")
FLAGS = (
    *("-O3", "-march=native", "-std=gnu11", "-fopenmp", "-fPIC", "-shared"),
    *("-fno-math-errno", "-fno-trapping-math"),
)
DEFINES = {torch.float32: (), torch.bfloat16: ("-DBF16",)}
COMPILE_SECONDS = 60  # it takes one or two; a compiler that waits for a licence must not hang us

# p: address, i: int64, f: float
SIGNATURES = {
    "rms_norm": "pppiif",
    "rope": "pippiii",
    "silu_mul": "ppii",
    "write": "pipipiippi",
    "attend": "ppipppp",
    "largest": "piipp",
    "places": "piipp",
    "linear": "piiipppppipp",
    "forward": "pppipppppppp",
}


class Attention(ctypes.Structure):
    """`attention` of attention.h."""

    _fields_ = [
        ("tables", ctypes.c_void_p),
        ("max_blocks", ctypes.c_int64),
        ("parts", ctypes.c_void_p),
        ("items", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("num_items", "num_heads", "num_kv_heads")),
        *((name, ctypes.c_int64) for name in ("head_dim", "block_size", "window", "work")),
        ("scale", ctypes.c_float),
    ]


class Layer(ctypes.Structure):
    """`layer` of kernels.c: addresses of weights."""

    _fields_ = [
        (name, ctypes.c_void_p)
        for name in ("attention_norm", "qkv", "qkv_bias", "o", "mlp_norm", "gate_up", "down")
    ]


class Model(ctypes.Structure):
    """`model` of kernels.c."""

    _fields_ = [
        ("layers", ctypes.POINTER(Layer)),
        ("final_norm", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("num_layers", "hidden_size", "intermediate_size")),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("layer_stride", ctypes.c_int64),
        ("eps", ctypes.c_float),
    ]


class NativeUnavailable(RuntimeError):
    """The C operations cannot be used here; the message says why."""


@cache
def native_problem(dtype: torch.dtype = torch.float32) -> str | None:
    """None where the C operations work for `dtype`, or why not."""
    try:
        load(dtype)
    except NativeUnavailable as problem:
        return str(problem)
    return None


@cache
def load(dtype: torch.dtype) -> ctypes.CDLL:
    """The library for `dtype`; NativeUnavailable says why there is none."""
    if os.environ.get("COURSE_NATIVE", "1") == "0":
        raise NativeUnavailable("COURSE_NATIVE=0 turns the C operations off")
    if dtype not in DEFINES:
        raise NativeUnavailable(f"they are for float32 and bfloat16, not {dtype}")
    if sys.platform != "linux":
        raise NativeUnavailable("they have been tried on Linux only")
    try:
        library = ctypes.CDLL(str(_compiled(dtype)))
    except OSError:  # a damaged file in the cache
        try:
            library = ctypes.CDLL(str(_compiled(dtype, again=True)))
        except OSError as error:
            raise NativeUnavailable(f"the compiled file cannot be loaded: {error}") from error
    for name, letters in SIGNATURES.items():
        function = getattr(library, name)
        kinds = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "f": ctypes.c_float}
        function.argtypes = [kinds[letter] for letter in letters]
        function.restype = ctypes.c_int64 if name == "write" else None
    _check(library, dtype)
    os.register_at_fork(after_in_child=_work_alone)
    return library


def _work_alone() -> None:
    """In a forked process: it has the books of its parent's OpenMP threads but not the threads, and
    would wait for them for ever. PyTorch does the same in the workers of a DataLoader."""
    torch.set_num_threads(1)


def sources() -> list[Path]:
    """kernels.c and what it includes."""
    return [SOURCE, *sorted(SOURCE.parent.glob("*.h"))]


def _compiled(dtype: torch.dtype, again: bool = False) -> Path:
    threads = _openmp_of_pytorch()
    key = hashlib.sha256()
    texts = [path.read_bytes() for path in sources()]
    for part in (*texts, *FLAGS, *DEFINES[dtype], threads, platform.machine(), _cpu()):
        key.update(part if isinstance(part, bytes) else part.encode())
        key.update(b"\0")
    name = f"kernels-{key.hexdigest()[:24]}"
    folder = _cache_folder()
    for path in () if again else folder.glob(f"{name}-*.so"):
        if path.stem == f"{name}-{path.stat().st_size}":  # to load one cut short is to crash
            return path
    names = (os.environ.get("CC", "cc"), "gcc", "clang")
    compiler = next(filter(None, map(shutil.which, names)), None)
    if compiler is None:
        raise NativeUnavailable("there is no C compiler: install gcc, or do without")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, started = tempfile.mkstemp(suffix=".so", dir=folder)
    except OSError:  # a home that is read-only or full: for this process only
        folder = Path(tempfile.mkdtemp(prefix="paged-attention-course-"))
        handle, started = tempfile.mkstemp(suffix=".so", dir=folder)
    os.close(handle)
    # Without -fopenmp here the linker would not add a second OpenMP, whose threads would fight
    # PyTorch's for the cores; so compiling and linking are two steps.
    compile_flags = [flag for flag in FLAGS if flag != "-shared"]
    made = f"{started}.o"
    try:
        _run([compiler, *compile_flags, *DEFINES[dtype], "-c", str(SOURCE), "-o", made])
        _run([compiler, "-shared", made, threads, "-lm", "-o", started])
        path = folder / f"{name}-{os.path.getsize(started)}.so"
        os.replace(started, path)
    finally:
        for leftover in (made, started):
            Path(leftover).unlink(missing_ok=True)
    return path


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMPILE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailable(f"the C compiler did not work: {error}") from error
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise NativeUnavailable(f"the C compiler refused: {said[0] if said else 'no message'}")


def _openmp_of_pytorch() -> str:
    """The OpenMP library that PyTorch has loaded into this process: our loops use its threads."""
    torch.get_num_threads()
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.split(maxsplit=5)[-1].strip()
            if Path(path).name.startswith("libgomp"):
                return path
    raise NativeUnavailable("this PyTorch does not use GNU OpenMP")


def _cpu() -> str:
    """What -march=native depends on: a home folder may be shared by machines that differ."""
    with open("/proc/cpuinfo") as lines:
        wanted = ("model name", "flags", "Features", "CPU part")
        return "".join(sorted({line for line in lines if line.startswith(wanted)}))


def _cache_folder() -> Path:
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # a user without a home, as in some containers: for this process only
        base = tempfile.mkdtemp(prefix="paged-attention-course-")
    return Path(base) / "paged-attention-course"


def _check(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    """One small norm against PyTorch: a compiler or a file that went wrong is not used."""
    here = {"dtype": torch.float32, "device": "cpu"}  # whatever the user's defaults are
    x = torch.linspace(-2, 3, 3 * 40, **here).view(3, 40).to(dtype)
    weight, out = torch.linspace(0.5, 1.5, 40, **here).to(dtype), torch.empty_like(x)
    library.rms_norm(x.data_ptr(), weight.data_ptr(), out.data_ptr(), 3, 40, 1e-5)
    expected = torch.nn.functional.rms_norm(x.float(), (40,), weight.float(), 1e-5)
    if not torch.allclose(out.float(), expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-6):
        raise NativeUnavailable("the compiled file computes something else than PyTorch")
