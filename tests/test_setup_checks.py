"""`make test`: passed, failed and not run are told apart, counted, and decide the exit status."""

import dataclasses
import os
import subprocess
import sys
import time

import pytest

from course import checks, pins
from course.checks import FAILED, NOT_RUN, PASSED, Task, main, run_task


def script(text: str, **options) -> Task:
    return Task(options.pop("name", "a script"), ("-c", text), **options)


def small_tests(tmp_path, text: str, **options) -> Task:
    (tmp_path / "test_small.py").write_text(text)
    arguments = ("-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "test_small.py"))
    return Task("small tests", arguments, counts=True, **options)


def last_line(capfd) -> str:
    return capfd.readouterr().out.rstrip().splitlines()[-1]


def test_a_command_passes_or_fails_by_its_exit_status(tmp_path, capfd):
    good, bad = script("pass"), script("raise SystemExit(3)")
    assert main([], (good,), tmp_path) == 0
    assert last_line(capfd) == "1 passed, 0 failed, 0 skipped"
    assert main([], (good, bad), tmp_path) == 1
    out = capfd.readouterr().out
    assert out.rstrip().endswith("1 passed, 1 failed, 0 skipped")
    assert "failed" in out
    assert "exit status 3" in out


@pytest.mark.parametrize("required", [True, False])
def test_what_could_not_run_is_never_passed(tmp_path, capfd, required):
    task = script("pass", lacks=checks.needs_files("solutions/*.ipynb"), required=required)
    assert run_task(task, tmp_path).status == NOT_RUN
    assert main([], (task, script("pass")), tmp_path) == int(required)
    out = capfd.readouterr().out
    assert "not run" in out
    assert "there is no solutions/*.ipynb" in out
    assert out.rstrip().endswith("1 passed, 0 failed, 1 skipped")
    (tmp_path / "solutions").mkdir()
    (tmp_path / "solutions" / "a.ipynb").touch()
    assert run_task(task, tmp_path).status == PASSED


def test_a_missing_tool_is_said():
    assert checks.needs_module("no_such_tool")(pins.ROOT) == (
        "no_such_tool is not installed: make setup"
    )
    assert checks.needs_module("pytest")(pins.ROOT) == ""


def test_pytest_is_counted_test_by_test(tmp_path, capfd):
    text = (
        "import pytest\n"
        "def test_a(): pass\n"
        "def test_b(): pass\n"
        "@pytest.mark.skip\ndef test_c(): pass\n"
    )
    assert main([], (small_tests(tmp_path, text), script("pass")), tmp_path) == 0
    assert last_line(capfd) == "3 passed, 0 failed, 1 skipped"
    text += "def test_d(): assert 0\n@pytest.fixture\ndef x(): assert 0\ndef test_e(x): pass\n"
    assert main([], (small_tests(tmp_path, text),), tmp_path) == 1
    assert last_line(capfd) == "2 passed, 2 failed, 1 skipped"


@pytest.mark.parametrize(
    "text",
    ["", "import pytest\n@pytest.mark.skip\ndef test_a(): pass\n"],
    ids=["no test", "all skipped"],
)
def test_tests_of_which_none_ran_show_nothing(tmp_path, text):
    task = small_tests(tmp_path, text)
    assert run_task(task, tmp_path).status == NOT_RUN
    assert main([], (task,), tmp_path) == 1


def test_a_pytest_that_breaks_off_has_failed(tmp_path, capfd):
    dying = small_tests(tmp_path, "def test_a():\n    import os; os._exit(0)\n")
    assert run_task(dying, tmp_path).status == NOT_RUN  # it says success, and shows none
    assert main([], (dying,), tmp_path) == 1
    broken = small_tests(tmp_path, "this is no Python")
    assert run_task(broken, tmp_path).status == FAILED
    capfd.readouterr()
    assert main([], (broken,), tmp_path) == 1
    assert ", 0 failed" not in last_line(capfd)


def test_the_report_of_an_earlier_run_is_not_read_again(tmp_path):
    assert run_task(small_tests(tmp_path, "def test_a(): pass\n"), tmp_path).status == PASSED
    dying = small_tests(tmp_path, "import os; os._exit(0)\n")
    assert run_task(dying, tmp_path).status == NOT_RUN


@pytest.mark.skipif(os.name != "posix", reason="groups of processes are POSIX")
def test_a_check_that_hangs_is_ended_with_what_it_started(tmp_path):
    flag = tmp_path / "pid"
    child = f"import os, time; open({str(flag)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    text = f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {child!r}])"
    started = time.time()
    result = run_task(script(text, limit=4), tmp_path)
    assert result.status == FAILED
    assert "still running after 4 s" in result.why
    assert time.time() - started < 30
    pid = int(flag.read_text())
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.05)
    else:
        pytest.fail("its child is still there")


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "two workers"])
def test_what_a_hanging_run_waited_for_is_said(tmp_path, workers):
    text = "import time\ndef test_quick(): pass\ndef test_forever(): time.sleep(60)\n"
    task = small_tests(tmp_path, text, limit=8)
    task = dataclasses.replace(task, arguments=(*task.arguments, *workers))
    why = run_task(task, tmp_path).why
    assert "still running after 8 s: " in why
    assert "test_small.py::test_forever (" in why
    assert "test_quick" not in why


def test_one_can_be_chosen_and_a_wrong_name_is_refused(tmp_path, capfd):
    good, bad = script("pass", name="good", quick=True), script("1 / 0", name="bad")
    assert main(["--only", "good"], (good, bad), tmp_path) == 0
    assert main(["--quick"], (good, bad), tmp_path) == 0
    assert main(["--only", "bad"], (good, bad), tmp_path) == 1
    with pytest.raises(SystemExit):
        main(["--only", "ugly"], (good, bad), tmp_path)
    assert "no check is named ugly; there are 'good', 'bad'" in capfd.readouterr().err


def test_the_list_holds_what_the_project_promises():
    words = {task.name: " ".join(task.arguments) for task in checks.TASKS}
    assert words["lint"] == "-m ruff check"
    assert words["format"] == "-m ruff format --check"
    assert words["types"] == "-m pyright"
    assert words["notebooks are built"] == "-m course build --check"
    assert "--nbval notebooks" in words["outputs of notebooks/"]
    assert "--nbval solutions" in words["outputs of solutions/"]
    assert "--nbval-cell-timeout" in words["outputs of notebooks/"]
    # Left out of the big run only because they have run already.
    for path in checks.SHAPE:
        assert path in words["shape"]
        assert f"--ignore={path}" in words["tests"]
        assert (pins.ROOT / path).exists()
    assert [task.name for task in checks.TASKS if not task.required] == ["outputs of solutions/"]


def test_it_is_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "course.checks", "--only", "lint"],
        cwd=pins.ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert "=== lint: python -m ruff check" in done.stdout
    assert done.stdout.rstrip().splitlines()[-1].endswith(" failed, 0 skipped")
