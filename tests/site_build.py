"""The site, built once for all tests that read it, and a Chromium to look at it with."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
from filelock import FileLock

from course.site.build import Report, build

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="not run: there is no Chromium here")
RUN_THE_MODEL = ("00", "08")  # lessons whose figures need the model; tested by themselves


@pytest.fixture(scope="session")
def report(tmp_path_factory, worker_id) -> Report:
    """The report of a build; with several workers the first one builds and the others read."""
    shared = tmp_path_factory.getbasetemp()
    if worker_id != "master":
        shared = shared.parent
    told = shared / "site.json"
    with FileLock(shared / "site.lock"):
        if not told.exists():
            made = build(shared / "site", moving=lambda stem: stem[:2] not in RUN_THE_MODEL)
            told.write_text(json.dumps({**asdict(made), "folder": str(made.folder)}))
    found = json.loads(told.read_text())
    return Report(**{**found, "folder": Path(found["folder"])})


@pytest.fixture(scope="session")
def site(report) -> Path:
    return report.folder


@pytest.fixture(scope="module")
def chromium():
    """A browser that goes nowhere but to files."""
    playwright = pytest.importorskip("playwright.sync_api")
    quiet = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
    quiet += ["--disable-background-networking", "--disable-component-update"]
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=quiet)
        yield browser
        browser.close()
