"""The course as its users meet it: a Jupyter server on a copy of the notebooks, and a Chromium.

Everything happens in a folder of its own on a free port; server, kernels and browser are ended
whatever comes. COURSE_BROWSER=all runs the whole round, which takes long; see CONTRIBUTING.md.
Screenshots go to .artifacts/browser/.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from course.bootstrap import lab_command

ROOT = Path(__file__).resolve().parents[1]
SHOTS = ROOT / ".artifacts" / "browser"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ALL = os.environ.get("COURSE_BROWSER", "") == "all"
needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="not run: no chromium")
whole_round = pytest.mark.skipif(
    not ALL, reason="not run: the whole round in a browser is asked for with COURSE_BROWSER=all"
)
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update"]  # fmt: skip
# ms. Two busy cores are slow; what is waited for is a state, never a time.
WAIT, KERNEL = 60_000, 600_000
# `make lab` without the steps that made this Python.
LAB = """
import sys
from pathlib import Path
from course import bootstrap
bootstrap.ROOT = Path(sys.argv[1])
for step in ("make_environment", "install_packages", "fetch_model"):
    assert hasattr(bootstrap.Setup, step)
    setattr(bootstrap.Setup, step, lambda self: "in place")
sys.exit(bootstrap.main(["lab", *sys.argv[2:]]))
"""
# What the course puts on the page; JupyterLab's own shell has faults that are not ours to mend.
OURS = [".jp-Notebook .jp-OutputArea-output", ".jp-Notebook .jp-RenderedMarkdown"]
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]


def until(true, seconds, why):
    """What ``true`` gives, as soon as it is anything."""
    end = time.monotonic() + seconds
    while True:
        if found := true():
            return found
        if time.monotonic() > end:
            raise AssertionError(f"{why() if callable(why) else why} (after {seconds} s)")
        time.sleep(0.1)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def copy_course(folder):
    """The notebooks as a learner has them, with stored outputs but nothing counted as run."""
    for name in ("notebooks", "exercises", "solutions"):
        (folder / name).mkdir(parents=True)
        for path in sorted((ROOT / name).glob("*.ipynb")):
            copy_notebook(path, folder / name / path.name)
    (folder / ".venv").symlink_to(sys.prefix, target_is_directory=True)
    return folder


def copy_notebook(source, target):
    notebook = json.loads(source.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["execution_count"] = None
    target.write_text(json.dumps(notebook), encoding="utf-8")


def write_notebook(path, cells):
    """A notebook of code cells under a title."""
    title = {"cell_type": "markdown", "id": "title", "metadata": {}, "source": f"# {path.stem}"}
    made = [title] + [
        {"cell_type": "code", "id": f"cell-{place}", "metadata": {}, "source": source,
         "outputs": [], "execution_count": None}
        for place, source in enumerate(cells)
    ]  # fmt: skip
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": made}
    path.write_text(json.dumps(book), encoding="utf-8")
    return path


class Server:
    """A Jupyter server on a folder.

    app: "make lab", with all that it does first; "lab", JupyterLab alone; "notebook", Notebook 7.
    """

    def __init__(self, folder, app="make lab", **variables):
        self.app, self.folder, state = app, folder, folder / ".state"
        state.mkdir(exist_ok=True)
        self.log = state / "server.log"
        env = {k: v for k, v in os.environ.items() if not k.startswith(("COURSE_", "PYTEST"))}
        env |= {
            "COURSE_NO_BROWSER": "1", "JUPYTER_CONFIG_DIR": str(state / "config"),
            "JUPYTER_DATA_DIR": str(state / "data"), "JUPYTER_RUNTIME_DIR": str(state / "run"),
            "JUPYTERLAB_SETTINGS_DIR": str(state / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(state / "workspaces"),
            "IPYTHONDIR": str(state / "ipython"), "OMP_NUM_THREADS": "1", **variables,
        }  # fmt: skip
        port = ["--ServerApp.port", str(free_port()), "--ServerApp.port_retries=0"]
        command = {
            "make lab": [sys.executable, "-c", LAB, str(folder), *port],
            "lab": lab_command(Path(sys.executable), folder, [*port, "--no-browser"]),
            "notebook": [sys.executable, "-m", "notebook", "--no-browser", "--allow-root", *port],
        }[app]
        with self.log.open("w") as told:
            self.process = subprocess.Popen(
                command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=told, stderr=told,
                start_new_session=True,
            )  # fmt: skip
        try:
            address = until(self._address, 120, lambda: f"no server: {self.log.read_text()}")
            self.address, self.first, self.token = address
        except BaseException:
            self.stop()
            raise

    def _address(self):
        assert self.process.poll() is None, self.log.read_text()
        found = re.search(r"(http://127\.0\.0\.1:\d+)(/\S*)\?token=(\w+)", self.log.read_text())
        return found and found.groups()

    def settings(self, **plugins):
        """Write user settings: settings(**{"@jupyterlab/apputils-extension:themes": {...}})."""
        for name, values in plugins.items():
            package, plugin = name.split(":")
            place = self.folder / ".state" / "settings" / package / f"{plugin}.jupyterlab-settings"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps(values))

    def stop(self):
        import psutil

        try:
            family = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            family = []
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        _, alive = psutil.wait_procs(family, timeout=5)
        for left in alive:
            left.kill()


@pytest.fixture(scope="module")
def chromium():
    """One for all tests of a file: playwright cannot be started twice at a time."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def serving(folder, browser, app="make lab", **variables):
    """A server for the browser: gives both."""
    server = Server(folder, app, **variables)
    try:
        yield server, browser
    finally:
        server.stop()


def open_book(server, browser, name, width=1280, height=900, **settings):
    """A notebook of the folder, in a window of its own."""
    context = browser.new_context(viewport={"width": width, "height": height}, **settings)
    page = context.new_page()
    where = "notebooks" if server.app == "notebook" else f"lab/workspaces/{uuid4().hex}/tree"
    page.goto(f"{server.address}/{where}/{name}?token={server.token}", timeout=KERNEL)
    return Book(page, server.folder / name)


class Book:
    """A notebook that is open in the browser."""

    def __init__(self, page, path):
        self.page, self.path = page, path
        page.set_default_timeout(WAIT)
        page.wait_for_selector(".jp-Notebook h1", timeout=KERNEL)
        self.kernel_ready()

    def kernel_ready(self):
        self.page.wait_for_function(
            """() => [...document.querySelectorAll('.jp-Notebook-ExecutionIndicator')]
            .some(e => e.dataset.status === 'idle')""",
            timeout=KERNEL,
        )

    def run_all(self):
        """Run every cell from a fresh kernel, and wait for the end."""
        self.menu("Run", "Run All Cells")
        self.page.wait_for_function(
            """() => [...document.querySelectorAll('.jp-Notebook .jp-InputPrompt')]
            .some(e => /[*1-9]/.test(e.innerText))"""
        )
        self.at_rest()

    def menu(self, menu, entry):
        self.page.locator(".lm-MenuBar-itemLabel", has_text=re.compile(f"^{menu}$")).click()
        self.page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{entry}$")).click()

    def at_rest(self):
        """Wait until no cell runs or waits. The kernel works through them in order, so that the
        last one's number is the sign."""
        self.page.wait_for_function(
            """() => ![...document.querySelectorAll('.jp-Notebook .jp-InputPrompt')]
            .some(e => e.innerText.includes('*'))
            && [...document.querySelectorAll('.jp-Notebook-ExecutionIndicator')]
            .some(e => e.dataset.status === 'idle')""",
            timeout=KERNEL,
        )

    def run(self, cell, code=None):
        """Run one cell, as a learner does; with ``code`` typed in its place. Gives its output."""
        cell.locator(".cm-content").click()
        here = cell.element_handle()  # with other words in it the cell would not be found again
        number = "e => e.querySelector('.jp-InputPrompt').innerText"
        before = here.evaluate(number)
        if code is not None:
            self.page.keyboard.press("Control+a")
            self.page.keyboard.insert_text(code)
        self.page.keyboard.press("Control+Enter")
        self.page.wait_for_function(
            f"([e, before]) => /[0-9]/.test(({number})(e)) && ({number})(e) !== before",
            arg=[here, before],
            timeout=KERNEL,
        )
        self.at_rest()
        return here.query_selector(".jp-Cell-outputArea").inner_text()

    def theme(self, name):
        """Change to "JupyterLab Light" or "JupyterLab Dark" in the settings menu."""
        self.page.locator(".lm-MenuBar-itemLabel", has_text=re.compile("^Settings$")).click()
        self.page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Theme$")).hover()
        self.page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{name}$")).click()
        self.page.wait_for_selector(f"body[data-jp-theme-name='{name}']", state="attached")

    def sidebar(self, wanted):
        """Show or hide the list of files, which a narrow window has no room for."""
        files = self.page.locator(".jp-FileBrowser").first
        if files.is_visible() != wanted:
            self.page.locator(".lm-TabBar-tab[data-id='filebrowser']").click()
            files.wait_for(state="visible" if wanted else "hidden")

    def photograph(self, name, looks=(("JupyterLab Light", 1280),), height=1800):
        """The whole notebook in screenshots: NAME_light_1280_01.png and so on."""
        was = self.page.viewport_size
        for theme, width in looks:
            self.theme(theme)
            self.page.set_viewport_size({"width": width, "height": height})
            self.sidebar(width > 1000)
            panel = self.page.locator(".jp-WindowedPanel-outer").first
            top, part, end = 0, 0, 1
            while top < end and part < 20:
                # The panel scrolls on past its end, by nearly a window.
                end = panel.evaluate(
                    "(e, top) => (e.scrollTop = top, e.scrollHeight - e.clientHeight + 100)", top
                )
                self.page.wait_for_timeout(200)  # to draw; nothing is asserted of it
                part += 1
                look = theme.split()[-1].lower()
                shot(self.page, f"{name}_{look}_{width}_{part:02}")
                top += panel.evaluate("e => e.clientHeight") - 60
        self.page.set_viewport_size(was)

    def close(self):
        """End the kernel, and close the window."""
        self.menu("Kernel", "Shut Down Kernel")
        self.page.wait_for_function(
            """() => [...document.querySelectorAll('.jp-StatusBar-TextItem, .jp-StatusBar-Item')]
            .some(e => /No Kernel|Unknown/.test(e.innerText))"""
        )
        self.page.context.close()

    def cell(self, words):
        """The code cell with these words in its source."""
        editor = self.page.locator(".cm-content", has_text=words)
        return self.page.locator(".jp-Notebook .jp-CodeCell").filter(has=editor).first

    def save(self):
        """Save, and read what is on the disk."""
        before = self.path.stat().st_mtime_ns
        self.page.keyboard.press("Control+s")
        until(lambda: self.path.stat().st_mtime_ns != before, 60, "it was not saved")
        return until(self._read, 20, "no whole notebook on the disk")

    def _read(self):
        try:
            return json.loads(self.path.read_text(encoding="utf-8"))
        except ValueError:
            return None

    def faults(self):
        """After a Run All: what went wrong, in the saved file and on the page."""
        found = faults_of(self.save())
        shown = self.page.locator(".jp-Notebook .jp-OutputArea-output").all_inner_texts()
        bad = ("Error displaying widget", "Javascript Error", "Error creating widget",
               "Loading widget...")  # fmt: skip
        return found + [text[:200] for text in shown if text.startswith(bad)]


def faults_of(notebook):
    found = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code" or not source.strip():
            continue
        if not cell["execution_count"]:
            found.append(f"not run: {source[:80]}")
        for output in cell["outputs"]:
            if output["output_type"] == "error" and "raises-exception" not in cell["metadata"].get(
                "tags", []
            ):
                found.append(f"{output['ename']}: {output['evalue']} in {source[:80]}")
    return found


def shot(what, name):
    """A screenshot of a window or of a part of it, kept as .artifacts/browser/NAME.png."""
    what.screenshot(path=str(SHOTS / f"{name}.png"), animations="disabled")


# To axe all text in JupyterLab is out of sight, and so of no contrast: its body has no height, and
# what lies outside the scrolled panel is covered. So the window gets as high as the notebook.
IN_SIGHT = """body, .jp-LabShell, .jp-ThemedContainer, .jp-OutputArea-child
{ overflow: visible !important }"""


def violations(book):
    """What axe-core says against WCAG 2.1 AA of what the course puts on the page."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page, size = book.page, book.page.viewport_size
    page.add_style_tag(content=IN_SIGHT)
    panel = page.locator(".jp-WindowedPanel-outer").first
    height = panel.evaluate("e => (e.scrollTop = 0, e.scrollHeight)")
    page.set_viewport_size({"width": size["width"], "height": height + 400})
    # How a link in a sentence looks, without a line under it, is JupyterLab's own choice.
    rules = {"link-in-text-block": {"enabled": False}}
    options = {"runOnly": {"type": "tag", "values": WCAG}, "rules": rules, "preload": False}
    context = {"include": [[place] for place in OURS]}
    response = axe.run(page, context=context, options=options).response
    page.set_viewport_size(size)
    passed = {rule["id"]: len(rule["nodes"]) for rule in response["passes"]}
    book.contrasts = passed.get("color-contrast", 0)
    return [
        f"{rule['id']} ({rule['impact']}): {node['html'][:300]}"
        for rule in response["violations"]
        for node in rule["nodes"]
    ]
