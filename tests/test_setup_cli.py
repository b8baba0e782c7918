"""The command line: every command is found, explains itself, and fails in one line."""

import subprocess
import sys
from pkgutil import iter_modules

import pytest
import typer
from typer.testing import CliRunner

import course
from course import cli, commands, pins

NAMES = sorted(module.name for module in iter_modules(commands.__path__))


def run(*words, **env):
    return subprocess.run(
        [sys.executable, "-m", "course", *words], cwd=pins.ROOT, capture_output=True, text=True
    )


@pytest.mark.parametrize("name", NAMES)
def test_each_file_is_a_command_with_help(name):
    shown = CliRunner().invoke(cli.app, [name.replace("_", "-"), "--help"])
    assert shown.exit_code == 0, shown.output
    assert "Usage" in shown.output
    function = getattr(__import__(f"course.commands.{name}", fromlist=[name]), name)
    assert function.__doc__.strip().splitlines()[0] in " ".join(shown.output.split())
    # Every option says what it is for.
    command = typer.main.get_command(cli.app).commands[name.replace("_", "-")]
    for parameter in command.params:
        assert getattr(parameter, "help", None), f"{name}: {parameter.name} has no help"


def test_the_commands_are_listed():
    shown = run("--help")
    assert shown.returncode == 0
    for name in NAMES:
        assert name.replace("_", "-") in shown.stdout
    assert "doctor" in NAMES


def test_no_command_shows_the_help():
    assert "Commands" in run().stdout + run().stderr


def test_version():
    assert run("--version").stdout.strip() == course.__version__


def test_an_unknown_command_fails():
    done = run("doktor")
    assert done.returncode == 2
    assert "doktor" in done.stderr


@pytest.mark.parametrize("error", [ValueError, OSError, RuntimeError, ImportError])
def test_a_wrong_input_is_one_line_and_a_failure(monkeypatch, capsys, error):
    def broken(**options):
        raise error("--size 0 must be at least 1")

    monkeypatch.setattr(cli, "app", broken)
    monkeypatch.delenv("COURSE_DEBUG", raising=False)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == "error: --size 0 must be at least 1\n"
    monkeypatch.setenv("COURSE_DEBUG", "1")
    with pytest.raises(error):
        cli.main()


def test_a_fault_of_the_course_keeps_its_traceback(monkeypatch):
    def broken(**options):
        raise KeyError("x")

    monkeypatch.setattr(cli, "app", broken)
    with pytest.raises(KeyError):
        cli.main()
