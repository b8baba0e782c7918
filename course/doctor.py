"""A self-test of this machine: what is here, what works, what to do about the rest.

    from course import doctor
    doctor.report()          # a table in a notebook, a list of Check in a program

Importing it is quick and needs the standard library only, so it also runs where little else does.
torch and triton are tried in processes of their own: a broken one is a line in the table.
"""

from __future__ import annotations

import html
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from course.engine.loading.model_file import MODEL_BYTES, MODEL_SHA256, model_file
from course.pins import ROOT, in_range, parse_requirement, pins, wanted_packages

OK = "ok"
NOTE = "note"  # works; worth knowing
LIMITED = "limited"  # the course runs, less one part of it
BROKEN = "broken"  # the course cannot run
NOT_RUN = "not run"  # this could not be tried

# Without these nothing runs (without tokenizers no model does, not even "tiny"); without any other
# package some part does not.
ESSENTIAL = ("numpy", "torch", "matplotlib", "ipywidgets", "tokenizers")
PROBE_SECONDS = 180  # a first import of torch from a cold network disk takes its time


@dataclass(frozen=True)
class Check:
    """One line of the table: what was looked at, how it stands, what was found, what to do."""

    name: str
    status: str
    found: str
    remedy: str = ""


class Report(list[Check]):
    """The checks in order; shows itself as a table."""

    @property
    def can_run(self) -> bool:
        return all(check.status != BROKEN for check in self)

    @property
    def verdict(self) -> str:
        if not self.can_run:
            return "The course cannot run here yet."
        limited = sum(check.status in (LIMITED, NOT_RUN) for check in self)
        if limited:
            return f"The course runs here, with {limited} limit{'s' * (limited > 1)} (see above)."
        return "The course runs here in full."

    def __str__(self) -> str:
        wide = max((len(check.name) for check in self), default=0)
        lines = []
        for check in self:
            lines.append(f"{check.name:<{wide}}  {check.status:<7}  {check.found}")
            lines += [
                " " * (wide + 11) + line
                for line in textwrap.wrap(check.remedy, 78, initial_indent="-> ")
            ]
        return "\n".join([*lines, "", self.verdict])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        left = "style='text-align:left'"  # front ends set table cells to the right
        rows = "".join(
            f"<tr><th scope='row' {left}>{html.escape(check.name)}</th>"
            + "".join(
                f"<td {left}>{html.escape(text)}</td>"
                for text in (check.status, check.found, check.remedy)
            )
            + "</tr>"
            for check in self
        )
        titles = ("Check", "Status", "Found", "What to do")
        head = "".join(f"<th scope='col' {left}>{title}</th>" for title in titles)
        return (
            f"<table><caption>Self-test of this machine. {html.escape(self.verdict)}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        )

    def as_dict(self) -> dict:
        return {
            "can_run": self.can_run,
            "verdict": self.verdict,
            "checks": [asdict(check) for check in self],
        }


def report() -> Report:
    """Look at everything. Takes a few seconds: torch and a kernel are started on the side."""
    installed = package_version("torch") is not None
    torch_probe = Probe("-c", _TORCH_PROBE, *ESSENTIAL[:1], *ESSENTIAL[2:]) if installed else None
    canary = Probe("-m", "course.canary") if installed and package_version("triton") else None
    checks = [check_system(), check_python(), *check_packages()]
    checks += [check_model(), check_widgets(), check_memory(), check_cores(), check_disk()]
    device, has_gpu = check_device(torch_probe)
    checks[2:2] = [device, check_triton(canary, has_gpu)]
    return Report(checks)


# --- Looking at things --------------------------------------------------------------------------


def package_version(name: str) -> str | None:
    """The version of an installed package, or None. `triton-windows` counts as triton."""
    for candidate in (name, "triton-windows") if name == "triton" else (name,):
        try:
            return importlib.metadata.version(candidate)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


_TORCH_PROBE = """
import importlib, json, sys
import torch
seen = {"version": torch.__version__, "threads": torch.get_num_threads(), "kind": "cpu"}
if torch.cuda.is_available():
    device = torch.cuda.get_device_properties(0)
    major, minor = torch.cuda.get_device_capability(0)
    seen.update(kind="rocm" if torch.version.hip else "cuda", name=device.name,
                memory=device.total_memory, capability=f"{major}.{minor}",
                count=torch.cuda.device_count())
elif getattr(torch.backends, "mps", None) and torch.backends.mps.is_available():
    seen["kind"] = "mps"
try:
    from course.engine.native.library import native_problem
    seen["native"] = native_problem() or ""
except Exception as error:
    seen["native"] = f"{type(error).__name__}: {error}"
seen["errors"] = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        seen["errors"][name] = f"{type(error).__name__}: {error}"
print(json.dumps(seen))
"""


class Probe:
    """A Python process that prints one line of JSON, started now and read later."""

    def __init__(self, *arguments: str):
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    def result(self) -> tuple[dict | None, str]:
        """What it printed, or None and why: its last line of error, or the signal that ended it."""
        try:
            out, err = self.process.communicate(timeout=PROBE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            return None, f"no answer within {PROBE_SECONDS} s"
        code = self.process.returncode
        if code < 0:
            return None, f"its process was ended by {signal.Signals(-code).name}"
        try:
            return json.loads(out.strip().splitlines()[-1]), ""
        except (ValueError, IndexError):
            lines = [line for line in err.strip().splitlines() if line.strip()]
            return None, lines[-1].strip() if lines else f"exit status {code}, no message"


# --- The checks ---------------------------------------------------------------------------------

_ELSEWHERE = (
    "Lessons, engine and labs run on PyTorch; only the Triton kernels of lesson 05 do not."
    " To run those too, take any Linux machine, with or without a GPU:"
)


def check_system() -> Check:
    found = f"{platform.system()} {platform.release()}, {platform.machine()}"
    if sys.platform == "darwin":
        return Check("System", NOTE, found, f"{_ELSEWHERE} a cloud notebook, a container.")
    if sys.platform == "win32":
        return Check("System", NOTE, found, f"{_ELSEWHERE} WSL2 on this one is the nearest.")
    return Check("System", OK, found)


def check_python() -> Check:
    found = f"{platform.python_version()} ({sys.executable})"
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        return Check("Python", OK, found)
    remedy = "The course is written for Python 3.11 to 3.13: make setup finds one of these or says"
    return Check("Python", BROKEN, found, f"{remedy} how to get it.")


def ranges() -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Version ranges: of the packages everything needs, of the notebooks', of the checks' tools."""
    if (ROOT / "pyproject.toml").exists():
        core = wanted_packages(extras="")
        notebooks, everything = wanted_packages(extras="notebooks"), wanted_packages()
    else:  # installed without its folder: what the package says of itself
        lines = importlib.metadata.requires("paged-attention-course") or []
        split = [(*parse_requirement(line)[:2], line) for line in lines]
        core = {name: spec for name, spec, line in split if "extra ==" not in line}
        notebooks = core | {n: s for n, s, line in split if "notebooks" in line.partition(";")[2]}
        everything = {name: spec for name, spec, _ in split}
    return (
        core,
        {name: spec for name, spec in notebooks.items() if name not in core},
        {name: spec for name, spec in everything.items() if name not in notebooks},
    )


def check_packages() -> list[Check]:
    """One line for each package that the course runs on; one for all that only its checks need."""
    core, notebooks, tools = ranges()
    core.pop("triton", None)  # has a line of its own, with the kernel
    tested = pins()
    checks = [
        check_package(n, spec, tested.get(n, "")) for n, spec in {**core, **notebooks}.items()
    ]
    absent = [name for name in tools if package_version(name) is None]
    if absent:
        remedy = "Needed only to work on the course itself: make setup brings them."
        checks.append(Check("tools of make test", NOTE, f"not here: {', '.join(absent)}", remedy))
    else:
        checks.append(Check("tools of make test", OK, f"all {len(tools)} here"))
    return checks


def check_package(name: str, spec: str, tested: str = "") -> Check:
    version = package_version(name)
    remedy = f'make setup, or: {sys.executable} -m pip install "{name}{spec}"'
    bad = BROKEN if name in ESSENTIAL else LIMITED
    if version is None:
        return Check(name, bad, f"not installed (wanted: {spec})", remedy)
    if not in_range(version, spec):
        # Too new may work; too old lacks something that the course calls.
        newer = in_range(version, ",".join(c for c in spec.split(",") if c.startswith(">=")))
        status = LIMITED if newer else bad
        return Check(name, status, f"{version} is outside {spec}", remedy)
    if tested and version.split("+")[0] != tested:
        return Check(name, OK, f"{version} (in range {spec}; tested with {tested})")
    return Check(name, OK, version)


def check_device(probe: Probe | None) -> tuple[Check, bool]:
    """The device that torch computes on, and whether it is a GPU that Triton compiles for."""
    if probe is None:
        return Check("Device", NOT_RUN, "needs torch, which is not installed", "make setup"), False
    seen, problem = probe.result()
    if seen is None:
        remedy = "PyTorch is installed but does not start. Remove .venv and run make setup."
        return Check("Device", BROKEN, f"import torch: {problem}", remedy), False
    if seen["errors"]:
        found = "; ".join(f"import {name}: {text}" for name, text in seen["errors"].items())
        return Check("Device", BROKEN, found, "Remove .venv and run make setup."), False
    if seen["kind"] in ("cuda", "rocm"):
        several = f", first of {seen['count']}" if seen["count"] > 1 else ""
        found = f"{seen['name']}, {seen['memory'] / 2**30:.0f} GiB"
        found += f", capability {seen['capability']}" * (seen["kind"] == "cuda") + several
        return Check("Device", OK, f"GPU: {found}"), True
    found = f"CPU, {seen['threads']} thread{'s' * (seen['threads'] != 1)}"
    if seen["kind"] == "mps":
        return Check("Device", NOTE, f"{found} (the course leaves Apple's GPU alone)"), False
    if shutil.which("nvidia-smi"):
        remedy = (
            "There seems to be an NVIDIA GPU that this PyTorch does not see: it is a CPU build, or"
            " the driver is too old for it. The course runs on the CPU meanwhile."
        )
        return Check("Device", NOTE, found, remedy), False
    if problem := seen.get("native"):
        remedy = f"The engine computes in PyTorch alone, a little slower. C operations: {problem}."
        return Check("Device", NOTE, found, remedy), False
    return Check("Device", OK, f"{found}. Enough for everything; a GPU makes it faster"), False


def check_triton(canary: Probe | None, has_gpu: bool) -> Check:
    """Which way Triton runs here, by a small kernel compared with PyTorch."""
    version = package_version("triton")
    spec = ranges()[0].get("triton", ">=3.6")
    if version is None:
        if sys.platform == "darwin":
            found, remedy = "absent: Triton has no release for macOS", f"{_ELSEWHERE} see System."
        elif sys.platform == "win32":
            found, remedy = "absent: Triton has no release for Windows", f"{_ELSEWHERE} see System."
        else:
            found = "absent: not installed"
            remedy = f"The kernels of lesson 05 do not run without. {_pip(f'triton{spec}')}"
        return Check("Triton", LIMITED, found, remedy)
    if canary is None:
        return Check("Triton", NOT_RUN, f"{version}; needs torch", "make setup")
    seen, problem = canary.result()
    if seen is not None and seen["agrees"]:
        speed = f"{seen['seconds'] * 1000:.1f} ms"
        found = f"{version}, {seen['mode']}: a test kernel agrees with PyTorch ({speed})"
        if has_gpu and seen["mode"] == "interpreter":
            remedy = "TRITON_INTERPRET is set, so kernels do not use the GPU. Unset it for speed."
            return Check("Triton", NOTE, found, remedy)
        return Check("Triton", OK, found)
    if seen is not None:
        problem = f"a test kernel is off by {seen['difference']:g} ({seen['mode']})"
    numpy = package_version("numpy") or "0"
    if in_range(version, "<3.7") and not in_range(numpy, "<2.4"):
        remedy = f"The interpreter of Triton {version} fails with numpy {numpy}. "
        remedy += _pip("numpy<2.4")
    elif has_gpu:
        remedy = (
            "Compiling needs a C compiler and Python's headers (Debian, Ubuntu: sudo apt install"
            " gcc python3-dev). Or set TRITON_INTERPRET=1: slower, no compiler needed."
        )
    else:
        remedy = "The kernels of lesson 05 will not run, the rest will. " + _pip(f"triton{spec}")
    return Check("Triton", LIMITED, f"{version}: {problem}", remedy)


def _pip(requirement: str) -> str:
    return f'{sys.executable} -m pip install "{requirement}"'


def check_model() -> Check:
    """The language model's file, with its hash."""
    import hashlib

    name = "Model file"
    get = f"{sys.executable} -m course.bootstrap finish"
    path = model_file()
    if path is None:
        remedy = f"Lessons fall back on a random model. To fetch it (93 MB): make setup, or {get}"
        return Check(name, LIMITED, "not here", remedy)
    again = f"To fetch it again: make setup, or {get}"
    size = path.stat().st_size
    if size != MODEL_BYTES:
        found = f"{path} has {size:,} bytes, not {MODEL_BYTES:,}: it is cut off or another file"
        return Check(name, LIMITED, found, again)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != MODEL_SHA256:
        found = f"{path} has sha256 {digest[:12]}..., not {MODEL_SHA256[:12]}..."
        return Check(name, LIMITED, found, again)
    return Check(name, OK, f"SmolLM2-135M-Instruct, {size / 1e6:.0f} MB, sha256 {digest[:12]}...")


def labextension_folders() -> Iterable[Path]:
    """Where JupyterLab looks for the browser's side of ipywidgets."""
    try:
        from jupyter_core.paths import jupyter_path

        paths = jupyter_path("labextensions")
    except ImportError:
        paths = [os.path.join(sys.prefix, "share", "jupyter", "labextensions")]
    return [Path(path) / "@jupyter-widgets" / "jupyterlab-manager" for path in paths]


def check_widgets() -> Check:
    """ipywidgets has two halves: one in Python, one in the browser."""
    python_half = package_version("ipywidgets")
    if python_half is None:
        return Check("Widgets", LIMITED, "ipywidgets is not installed", "make setup")
    for folder in labextension_folders():
        try:
            browser_half = json.loads((folder / "package.json").read_text("utf-8"))["version"]
        except (OSError, ValueError, KeyError):
            continue
        return Check("Widgets", OK, f"ipywidgets {python_half}, in the browser {browser_half}")
    remedy = (
        "Sliders stay empty, every figure has a static twin. If JupyterLab runs in an environment"
        f" of its own, install jupyterlab_widgets there; else {_pip('jupyterlab_widgets>=3')}"
    )
    found = f"ipywidgets {python_half}, but JupyterLab here lacks its browser half"
    return Check("Widgets", LIMITED, found, remedy)


def memory_bytes() -> int | None:
    """Memory that this process may use: the machine's, or less where a container says so."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        try:
            import psutil  # ipykernel brings it

            total = psutil.virtual_memory().total
        except ImportError:
            return None
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(name).read_text()))
        except (OSError, ValueError):  # not here, or "max"
            continue
    return total


def usable_cores() -> int:
    """Cores that this process may use: fewer than the machine's in many containers."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        cores = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        pass
    return cores


def check_memory() -> Check:
    total = memory_bytes()
    if total is None:
        return Check("Memory", NOT_RUN, "this system does not say")
    found = f"{total / 2**30:.1f} GiB"
    if total < 3 * 2**30:
        remedy = "The real model wants 1.5 GB beside JupyterLab: close other programs and kernels."
        return Check("Memory", LIMITED, found, remedy)
    return Check("Memory", OK, found)


def check_cores() -> Check:
    cores = usable_cores()
    if cores < 2:
        return Check("Cores", NOTE, "1", "Everything runs; long cells take about twice as long.")
    return Check("Cores", OK, str(cores))


def check_disk() -> Check:
    free = shutil.disk_usage(ROOT).free
    found = f"{free / 2**30:.1f} GiB free at {ROOT}"
    if not os.access(ROOT, os.W_OK):
        remedy = "Your answers and notebooks cannot be saved here: copy the folder to one of yours."
        return Check("Disk", LIMITED, f"{found}, not writable", remedy)
    if free < 2**29:
        return Check("Disk", LIMITED, found, "Make room: saving notebooks needs some.")
    return Check("Disk", OK, found)


def plain_main(arguments: list[str]) -> int:
    """The command without typer and rich, for a machine that lacks them."""
    result = report()
    print(json.dumps(result.as_dict(), indent=2) if "--json" in arguments else result)
    return 0 if result.can_run else 1
