"""Which tests run just now, as a pytest plugin: ``pytest -p course.authoring.running``.

With COURSE_RUNNING=FILE they are kept in that file, so that whoever ends a run that takes too long
can say which test it waited for. A test in a worker of pytest-xdist is reported to the main
process, which writes the file.
"""

import json
import os
import time
from pathlib import Path

FILE = "COURSE_RUNNING"


def pytest_configure(config) -> None:
    if os.environ.get(FILE) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Running(Path(os.environ[FILE])), "course-running")


class Running:
    def __init__(self, file: Path):
        self.file = file
        self.since: dict[str, float] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.since[nodeid] = time.time()
        self._write()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.since.pop(nodeid, None)
        self._write()

    def _write(self) -> None:
        # Whole or not at all: the reader may come while this is being written.
        made = self.file.with_suffix(".new")
        made.write_text(json.dumps(self.since))
        made.replace(self.file)


def unfinished(file: Path) -> list[str]:
    """The tests that were running, the longest first, with their seconds; none without a file."""
    try:
        since = json.loads(file.read_text())
    except (OSError, ValueError):
        return []
    now = time.time()
    tests = sorted(since.items(), key=lambda item: item[1])
    return [f"{name} ({now - begin:.0f} s)" for name, begin in tests]
