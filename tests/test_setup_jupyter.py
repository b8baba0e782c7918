"""JupyterLab as `make lab` starts it: its terminals find the course, its links open to be read."""

import json
import os
import secrets
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from course import bootstrap
from course.pins import ROOT

websocket = pytest.importorskip("websocket")
pytest.importorskip("jupyterlab")
pytestmark = pytest.mark.timeout(180)

SCRIPTS = Path(sys.prefix) / ("Scripts" if os.name == "nt" else "bin")
PYTHON = SCRIPTS / Path(sys.executable).name
SETTINGS = "share/jupyter/lab/settings"
START = """
import sys
from pathlib import Path
from course import bootstrap
command = bootstrap.lab_command(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
bootstrap.start(command, Path(sys.argv[2]))
"""


class Server:
    def __init__(self, url: str, token: str):
        self.url, self.token = url, token

    def ask(self, path: str, data: bytes | None = None) -> dict:
        request = urllib.request.Request(
            f"{self.url}{path}", data, {"Authorization": f"token {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def terminal(self, line: str, until: str) -> str:
        """What a new terminal prints for a line, up to the text ``until``."""
        name = self.ask("api/terminals", b"{}")["name"]
        where = f"{self.url}terminals/websocket/{name}?token={self.token}"
        socket = websocket.create_connection(where.replace("http", "ws", 1), timeout=30)
        socket.send(json.dumps(["stdin", line + "\r"]))
        said = ""
        while until not in said:
            kind, *rest = json.loads(socket.recv())
            said += rest[0] if kind == "stdout" else ""
        socket.close()
        return said


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The server, started from an environment that knows nothing of .venv."""
    folder = tmp_path_factory.mktemp("lab")
    token = secrets.token_hex(8)
    (folder / "notebooks").mkdir()
    (folder / bootstrap.FIRST_NOTEBOOK).write_text("{}")
    bootstrap.write_settings(folder, bootstrap.LAB_DEFAULTS)
    env = {
        "PATH": os.defpath,
        "HOME": str(folder),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "PYTHONPATH": str(ROOT),
    }
    words = [
        "--no-browser",
        "--ServerApp.port=0",
        f"--IdentityProvider.token={token}",
        f"--LabServerApp.app_settings_dir={folder / SETTINGS}",
    ]
    command = [sys.executable, "-c", START, str(PYTHON), str(folder), *words]
    with open(folder / "told.txt", "w") as told:
        child = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=told, stderr=told, stdin=subprocess.DEVNULL
        )
    try:
        deadline = time.monotonic() + 90
        while not (found := list(folder.glob("runtime/jpserver-*.json"))):
            said = (folder / "told.txt").read_text()
            assert child.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.1)
        made = None
        while made is None:
            try:
                made = Server(json.loads(found[0].read_text())["url"], token)
                made.ask("api/status")
            except (OSError, ValueError):  # not whole yet, or not listening yet
                assert time.monotonic() < deadline
                made = time.sleep(0.1)
        yield made
    finally:
        child.terminate()
        child.wait(30)


@pytest.mark.skipif(os.name == "nt", reason="not run: POSIX terminals")
def test_a_terminal_finds_the_course(server):
    """Set-up installs `course` beside `python`."""
    names = [name for name in ("python", "course") if (SCRIPTS / name).exists()]
    found = "|".join(f"$(command -v {name})" for name in names)
    wanted = "|".join(str(SCRIPTS / name) for name in names)
    said = server.terminal(f'echo "<{found}|$VIRTUAL_ENV>"', f"|{sys.prefix}>")
    assert f"<{wanted}|{sys.prefix}>" in said


def test_open_tabs_belong_to_this_copy_of_the_course(monkeypatch, tmp_path):
    given = {}

    class Started(Exception):
        pass

    def become(*args, env, **kwargs):
        given.update(env)
        raise Started

    # Where there is exec, this process becomes JupyterLab; elsewhere it starts it and waits.
    monkeypatch.setattr(bootstrap.os, "execve", lambda path, command, env: become(env=env))
    monkeypatch.setattr(bootstrap.subprocess, "call", become)
    monkeypatch.chdir(tmp_path)
    wanted = str(tmp_path / ".venv" / "workspaces")
    for already, found in ((None, wanted), ("elsewhere", "elsewhere")):
        monkeypatch.delenv("JUPYTERLAB_WORKSPACES_DIR", raising=False)
        if already:
            monkeypatch.setenv("JUPYTERLAB_WORKSPACES_DIR", already)
        with pytest.raises(Started):
            bootstrap.start([str(tmp_path / ".venv" / "bin" / "python")], tmp_path)
        assert given["JUPYTERLAB_WORKSPACES_DIR"] == found


def test_pages_of_docs_open_to_be_read(server):
    """The value is what the server gives to JupyterLab; the key is one that JupyterLab knows."""
    told = server.ask("lab/api/settings/@jupyterlab/docmanager-extension:plugin")
    assert told["schema"]["properties"]["defaultViewers"]["default"] == {
        "markdown": "Markdown Preview"
    }
    news = server.ask("lab/api/settings/@jupyterlab/apputils-extension:notification")
    assert news["schema"]["properties"]["fetchNews"]["default"] == "false"
