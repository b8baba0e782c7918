"""The self-test: every state of a machine gives its line, its remedy and the right exit status."""

import dataclasses
import hashlib
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from course import doctor, pins
from course.doctor import BROKEN, LIMITED, NOT_RUN, NOTE, OK, Check, Report

CPU = {"version": "2.13.0", "threads": 2, "kind": "cpu", "errors": {}}
GPU = {
    "version": "2.13.0", "threads": 2, "kind": "cuda", "errors": {}, "name": "GPU X",
    "memory": 80 * 2**30, "capability": "9.0", "count": 1,
}  # fmt: skip
GOOD = {"mode": "interpreter", "agrees": True, "difference": 0.0, "seconds": 0.004}


def answers(seen=None, problem=""):
    return SimpleNamespace(result=lambda: (seen, problem))


@pytest.fixture
def versions(monkeypatch):
    """The installed packages, as a dictionary that a test may change."""
    installed = dict(pins.pins())
    monkeypatch.setattr(doctor, "package_version", installed.get)
    return installed


@pytest.fixture
def system(monkeypatch):
    return lambda name: monkeypatch.setattr(sys, "platform", name)


# --- the whole ----------------------------------------------------------------------------------


def test_this_machine():
    """It runs here, whatever here is: every line is complete and nothing is raised."""
    result = doctor.report()
    names = [check.name for check in result]
    for name in ("System", "Python", "Device", "Triton", "torch", "Model file", "Widgets"):
        assert name in names
    assert {"Memory", "Cores", "Disk", "numpy", "jupyterlab"} <= set(names)
    assert len(names) == len(set(names))
    for check in result:
        assert check.found
        assert check.status in (OK, NOTE, LIMITED, BROKEN, NOT_RUN)
        assert check.remedy or check.status == OK or check.name in ("Device", "Memory")
    assert result.can_run


def test_the_table_says_all_in_words():
    result = Report(
        [
            Check("Python", OK, "3.11"),
            Check("Triton", LIMITED, "absent <here>", "Install it & run again."),
        ]
    )
    text = str(result)
    assert "Triton  limited  absent <here>" in text
    assert "-> Install it & run again." in text
    assert "with 1 limit (see above)" in text
    page = result._repr_html_()
    assert "absent &lt;here&gt;" in page
    assert "Install it &amp; run again." in page
    assert page.count("scope='col'") == 4
    assert page.count("scope='row'") == 2
    assert "<caption>" in page
    assert "color" not in page


def test_only_broken_means_that_the_course_cannot_run():
    for status in (OK, NOTE, LIMITED, NOT_RUN):
        assert Report([Check("x", status, "y")]).can_run
    broken = Report([Check("x", BROKEN, "y")])
    assert not broken.can_run
    assert "cannot run" in broken.verdict
    assert Report([Check("x", OK, "y")]).verdict == "The course runs here in full."
    assert "2 limits" in Report([Check("x", LIMITED, "y"), Check("z", NOT_RUN, "y")]).verdict


def test_report_with_nothing_installed_is_still_a_report(monkeypatch):
    monkeypatch.setattr(doctor, "package_version", lambda name: None)
    monkeypatch.setattr(doctor, "model_file", lambda: None)
    monkeypatch.setattr(doctor, "Probe", lambda *words: pytest.fail("nothing is to be started"))
    result = doctor.report()
    assert not result.can_run
    status = {check.name: check.status for check in result}
    assert status["torch"] == status["numpy"] == BROKEN
    assert status["Device"] == NOT_RUN
    assert status["Triton"] == LIMITED


@pytest.mark.parametrize(
    "command", [["-m", "course", "doctor"], ["-c", "from course import doctor"]]
)
def test_importing_it_brings_in_neither_torch_nor_triton(command):
    if command[0] == "-m":
        script = "import sys, course.doctor, course.commands.doctor"
    else:
        script = command[1]
    script += "\nimport sys; sys.exit(str({'torch', 'triton'} & set(sys.modules) or ''))"
    done = subprocess.run([sys.executable, "-c", script], cwd=pins.ROOT, capture_output=True)
    assert done.stderr.strip() == b""


# --- the command --------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "code"), [(OK, 0), (LIMITED, 0), (BROKEN, 1)])
def test_exit_status_and_json(monkeypatch, status, code):
    from typer.testing import CliRunner

    from course.cli import app

    result = Report([Check("Python", status, "3.11", "Do this.")])
    monkeypatch.setattr(doctor, "report", lambda: result)
    shown = CliRunner().invoke(app, ["doctor", "--json"])
    assert shown.exit_code == code
    told = json.loads(shown.stdout)
    assert told["can_run"] == (code == 0)
    assert told["checks"] == [dataclasses.asdict(result[0])]
    table = CliRunner().invoke(app, ["doctor"])
    assert table.exit_code == code
    for word in ("Python", status, "3.11", "-> Do this.", result.verdict):
        assert word in table.stdout
    assert doctor.plain_main([]) == code


def test_it_runs_where_its_own_packages_are_missing(tmp_path):
    """typer and rich are not there: the plain table comes instead."""
    script = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('typer', 'rich', 'click'):\n"
        "            raise ModuleNotFoundError(f'no {name}', name=name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "import course.doctor, runpy\n"
        "course.doctor.report = lambda: course.doctor.Report(\n"
        "    [course.doctor.Check('rich', 'limited', 'not installed', 'make setup')])\n"
        "sys.argv = ['course', *sys.argv[1:]]\n"
        "runpy.run_module('course', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "doctor"], cwd=pins.ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "no typer" in done.stdout
    assert "make setup" in done.stdout
    assert "limited" in done.stdout
    other = subprocess.run(
        [sys.executable, "-c", script, "generate"], cwd=pins.ROOT, capture_output=True, text=True
    )
    assert other.returncode == 1
    assert "Traceback" not in other.stderr


# --- Python and system --------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "status"), [
    ((3, 10, 9), BROKEN), ((3, 11, 0), OK), ((3, 13, 5), OK), ((3, 14, 0), BROKEN),
])  # fmt: skip
def test_python(monkeypatch, version, status):
    monkeypatch.setattr(sys, "version_info", version)
    check = doctor.check_python()
    assert check.status == status
    assert ("3.11 to 3.13" in check.remedy) == (status == BROKEN)


@pytest.mark.parametrize(("name", "word"), [("darwin", "macOS"), ("win32", "Windows")])
def test_where_triton_has_no_release(versions, system, name, word):
    system(name)
    versions.pop("triton")
    check = doctor.check_triton(None, has_gpu=False)
    assert check.status == LIMITED
    assert f"Triton has no release for {word}" in check.found
    # What runs, what does not, where to run the rest.
    assert "Lessons, engine and labs run on PyTorch" in check.remedy
    assert "only the Triton kernels of lesson 05 do not" in check.remedy
    assert "any Linux machine" in check.remedy
    assert doctor.check_system().status == NOTE
    assert "Linux machine" in doctor.check_system().remedy
    assert ("WSL2" in doctor.check_system().remedy) == (name == "win32")
    # Triton is no requirement there, so nothing else complains of it.
    assert not any("triton" in check.name for check in doctor.check_packages())


def test_linux_needs_no_remark(system):
    system("linux")
    assert doctor.check_system().status == OK


def test_triton_windows_counts_as_triton(monkeypatch):
    def version(name):
        if name == "triton-windows":
            return "3.7.1"
        raise doctor.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.importlib.metadata, "version", version)
    assert doctor.package_version("triton") == "3.7.1"
    assert doctor.package_version("torch") is None


# --- packages -----------------------------------------------------------------------------------


def line(checks, name):
    (found,) = [check for check in checks if check.name == name]
    return found


def test_packages_as_tested_are_ok(versions):
    assert all(check.status == OK for check in doctor.check_packages())
    assert line(doctor.check_packages(), "numpy").found == versions["numpy"]


def test_a_version_in_range_but_not_the_tested_one_is_ok_and_says_so(versions):
    versions.update(torch="2.11.0+cu130")
    check = line(doctor.check_packages(), "torch")
    assert check.status == OK
    assert "in range" in check.found
    assert "tested with 2.13.0" in check.found


def test_a_build_label_is_no_difference(versions):
    versions.update(torch="2.13.0+cpu")
    assert line(doctor.check_packages(), "torch") == Check("torch", OK, "2.13.0+cpu")


@pytest.mark.parametrize(("name", "version", "status"), [
    ("torch", "2.4.1", BROKEN), ("numpy", None, BROKEN), ("gguf", "0.1.0", LIMITED),
    ("jupyterlab", None, LIMITED), ("torch", "2.99.0", LIMITED), ("matplotlib", "3.1", BROKEN),
])  # fmt: skip
def test_an_old_or_missing_package_says_how_to_get_it(versions, name, version, status):
    versions[name] = version
    check = line(doctor.check_packages(), name)
    assert check.status == status
    spec = pins.wanted_packages()[name]
    assert spec in check.found
    assert f'-m pip install "{name}{spec}"' in check.remedy
    assert "make setup" in check.remedy


def test_tools_of_the_checks_are_no_limit_for_a_learner(versions):
    versions.update(nbgrader=None, ruff=None)
    check = line(doctor.check_packages(), "tools of make test")
    assert check.status == NOTE
    assert check.found == "not here: ruff, nbgrader"


def test_ranges_come_from_the_package_itself_where_there_is_no_folder(monkeypatch, tmp_path):
    here = doctor.ranges()
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    lines = ["numpy<3,>=2.1", "torch>=2.11", 'jupyterlab<5,>=4.4; extra == "notebooks"',
             'ruff>=0.12; extra == "dev"']  # fmt: skip
    monkeypatch.setattr(doctor.importlib.metadata, "requires", lambda name: lines)
    core, notebooks, tools = doctor.ranges()
    assert core == {"numpy": "<3,>=2.1", "torch": ">=2.11"}
    assert notebooks == {"jupyterlab": "<5,>=4.4"}
    assert tools == {"ruff": ">=0.12"}
    assert "jupyterlab" in here[1]
    assert "ruff" in here[2]


# --- device and Triton --------------------------------------------------------------------------


def test_device_states(versions, monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    check, has_gpu = doctor.check_device(answers(CPU))
    assert (check.status, has_gpu) == (OK, False)
    assert "CPU, 2 threads" in check.found
    check, has_gpu = doctor.check_device(answers(GPU))
    assert (check.status, has_gpu) == (OK, True)
    assert "GPU X, 80 GiB, capability 9.0" in check.found
    check, has_gpu = doctor.check_device(answers({**GPU, "kind": "rocm", "count": 4}))
    assert (check.status, has_gpu) == (OK, True)
    assert "first of 4" in check.found
    check, _ = doctor.check_device(answers({**CPU, "native": "there is no C compiler"}))
    assert check.status == NOTE
    assert "no C compiler" in check.remedy
    check, has_gpu = doctor.check_device(answers({**CPU, "kind": "mps"}))
    assert (check.status, has_gpu) == (NOTE, False)
    check, _ = doctor.check_device(None)
    assert check.status == NOT_RUN


def test_a_gpu_that_torch_does_not_see_is_mentioned(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    check, has_gpu = doctor.check_device(answers(CPU))
    assert (check.status, has_gpu) == (NOTE, False)
    assert "driver" in check.remedy


def test_packages_that_do_not_start_are_broken_though_installed():
    check, _ = doctor.check_device(answers(None, "ImportError: libc10.so: cannot open"))
    assert check.status == BROKEN
    assert "libc10.so" in check.found
    errors = {"numpy": "ImportError: no core"}
    check, _ = doctor.check_device(answers({**CPU, "errors": errors}))
    assert check.status == BROKEN
    assert "import numpy: ImportError: no core" in check.found


def test_triton_modes(versions):
    check = doctor.check_triton(answers(GOOD), has_gpu=False)
    assert check.status == OK
    assert "interpreter" in check.found
    check = doctor.check_triton(answers({**GOOD, "mode": "compiled"}), has_gpu=True)
    assert check.status == OK
    assert "compiled" in check.found
    check = doctor.check_triton(answers(GOOD), has_gpu=True)
    assert check.status == NOTE
    assert "TRITON_INTERPRET" in check.remedy


def test_triton_absent_where_it_could_be(versions, system):
    system("linux")
    versions.pop("triton")
    check = doctor.check_triton(None, has_gpu=False)
    assert check.status == LIMITED
    assert "absent: not installed" in check.found
    assert 'pip install "triton>=' in check.remedy


def test_triton_without_torch_was_not_tried(versions):
    assert doctor.check_triton(None, has_gpu=False).status == NOT_RUN


def test_a_kernel_that_computes_wrongly_or_dies_is_a_limit(versions):
    wrong = {**GOOD, "agrees": False, "difference": 0.25}
    check = doctor.check_triton(answers(wrong), has_gpu=False)
    assert check.status == LIMITED
    assert "off by 0.25" in check.found
    check = doctor.check_triton(answers(None, "its process was ended by SIGSEGV"), has_gpu=True)
    assert check.status == LIMITED
    assert "SIGSEGV" in check.found
    assert "C compiler" in check.remedy


def test_old_triton_with_new_numpy_is_told_apart(versions):
    versions.update(triton="3.6.0", numpy="2.4.6")
    check = doctor.check_triton(answers(None, "TypeError"), has_gpu=False)
    assert check.status == LIMITED
    assert 'pip install "numpy<2.4"' in check.remedy


@pytest.mark.parametrize(("script", "word"), [
    ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
    ("raise ImportError('no such library')", "ImportError: no such library"),
    ("raise SystemExit(3)", "exit status 3"),
    ("print('no json')", "no message"),
    ("import time; time.sleep(30)", "no answer within 1 s"),
])  # fmt: skip
def test_a_probe_that_fails_says_how(monkeypatch, script, word):
    monkeypatch.setattr(doctor, "PROBE_SECONDS", 1 if "sleep" in script else 60)
    seen, problem = doctor.Probe("-c", script).result()
    assert seen is None
    assert word in problem


def test_a_probe_may_be_preceded_by_chatter():
    assert doctor.Probe("-c", "print('hello'); print('{\"a\": 1}')").result() == ({"a": 1}, "")


def test_the_canary_can_sing_and_can_die(monkeypatch):
    """The real kernel: right as it is, and noticed when its arithmetic is broken."""
    pytest.importorskip("triton")
    good, problem = doctor.Probe("-m", "course.canary").result()
    assert good is not None, problem
    assert good["agrees"]
    source = (pins.ROOT / "course" / "canary.py").read_text()
    # The misunderstanding of the course itself: the second block taken to lie after the first.
    text = "block = tl.load(table + position // BLOCK_SIZE)"
    assert text in source
    broken = source.replace(text, "block = tl.load(table) + position // BLOCK_SIZE")
    with pytest.MonkeyPatch.context() as patch:
        folder = pins.ROOT / ".artifacts"
        folder.mkdir(exist_ok=True)
        path = folder / "broken_canary.py"
        path.write_text(broken)
        patch.setenv("PYTHONPATH", str(folder))
        seen, problem = doctor.Probe(str(path)).result()
        path.unlink()
    assert seen is not None, problem
    assert not seen["agrees"]


# --- model --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "status", "word"), [
    ("missing", LIMITED, "not here"), ("cut off", LIMITED, "cut off"),
    ("changed", LIMITED, "sha256"), ("whole", OK, "sha256"),
])  # fmt: skip
def test_model_file(monkeypatch, tmp_path, state, status, word):
    whole = b"weights" * 100
    path = tmp_path / "model.gguf"
    path.write_bytes({"cut off": whole[:-1], "changed": b"X" + whole[1:]}.get(state, whole))
    monkeypatch.setattr(doctor, "MODEL_BYTES", len(whole))
    monkeypatch.setattr(doctor, "MODEL_SHA256", hashlib.sha256(whole).hexdigest())
    monkeypatch.setattr(doctor, "model_file", lambda: None if state == "missing" else path)
    check = doctor.check_model()
    assert check.status == status
    assert word in check.found
    assert ("make setup" in check.remedy) == (status != OK)


# --- widgets, memory, cores, disk ---------------------------------------------------------------


def test_widgets(versions, monkeypatch, tmp_path):
    folder = tmp_path / "manager"
    folder.mkdir()
    monkeypatch.setattr(doctor, "labextension_folders", lambda: [tmp_path / "none", folder])
    assert doctor.check_widgets().status == LIMITED
    assert "jupyterlab_widgets" in doctor.check_widgets().remedy
    (folder / "package.json").write_text('{"version": "5.0.1"}')
    check = doctor.check_widgets()
    assert check.status == OK
    assert "5.0.1" in check.found
    versions["ipywidgets"] = None
    assert doctor.check_widgets().status == LIMITED


@pytest.mark.parametrize(("gib", "status"), [(24, OK), (2.5, LIMITED), (None, NOT_RUN)])
def test_memory(monkeypatch, gib, status):
    monkeypatch.setattr(doctor, "memory_bytes", lambda: None if gib is None else int(gib * 2**30))
    assert doctor.check_memory().status == status


def test_a_container_may_have_less_than_its_machine(monkeypatch, tmp_path):
    real = doctor.Path

    def fake(path, *rest):
        inside = {"/sys/fs/cgroup/memory.max": "memory", "/sys/fs/cgroup/cpu.max": "cpu"}
        return real(tmp_path / inside[path]) if path in inside else real(path, *rest)

    monkeypatch.setattr(doctor, "Path", fake)
    (tmp_path / "memory").write_text("max\n")
    (tmp_path / "cpu").write_text("max 100000\n")
    memory, cores = doctor.memory_bytes(), doctor.usable_cores()
    (tmp_path / "memory").write_text(str(2**30))
    (tmp_path / "cpu").write_text("50000 100000\n")
    assert doctor.memory_bytes() == 2**30 < memory
    assert doctor.usable_cores() == 1 <= cores


def test_cores(monkeypatch):
    monkeypatch.setattr(doctor, "usable_cores", lambda: 1)
    assert doctor.check_cores().status == NOTE
    monkeypatch.setattr(doctor, "usable_cores", lambda: 8)
    assert doctor.check_cores() == Check("Cores", OK, "8")


def test_disk(monkeypatch):
    usage = SimpleNamespace(free=10 * 2**30)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage)
    assert doctor.check_disk().status == OK
    usage.free = 2**20
    assert doctor.check_disk().status == LIMITED
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: False)
    assert "not writable" in doctor.check_disk().found


def test_tokenizers_are_essential_and_tried():
    """An installed package whose import fails used to pass for whole."""
    assert "tokenizers" in doctor.ESSENTIAL
    probe = doctor.Probe("-c", doctor._TORCH_PROBE, "tokenizers", "no_such_package")
    seen, _ = probe.result()
    assert set(seen["errors"]) == {"no_such_package"}
