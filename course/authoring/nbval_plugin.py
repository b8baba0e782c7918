"""Settings for nbval, as a pytest plugin: ``pytest -p course.authoring.nbval_plugin --nbval ...``.

Static twins only, as in the build, and the patterns of what may differ between machines.
"""

import os
from pathlib import Path

SANITIZE = Path(__file__).resolve().parents[2] / "tests" / "nbval_sanitize.cfg"


def pytest_configure(config) -> None:
    os.environ["COURSE_STATIC"] = "1"
    if config.option.nbval_sanitize_with is None:
        config.option.nbval_sanitize_with = str(SANITIZE)
