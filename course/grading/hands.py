"""Who feeds the graders' processes, and starts them again when they die."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from typing import Any

from course.grading import results
from course.grading.plan import Options, Progress, Unit
from course.grading.results import Submission
from course.pins import ROOT
from course.practice import registry

RETRIES = 2  # a job that dies over a student is started so often
OVERHEAD = 120.0  # s for one student beside the time of their exercises


class Hand(threading.Thread):
    """Feeds one job, and starts it again when it dies."""

    def __init__(self, settings: dict, waiting: Any, progress: Progress, options: Options, stop):
        super().__init__(daemon=True)
        self.settings, self.waiting, self.progress = settings, waiting, progress
        self.options, self.stop = options, stop
        self.process: subprocess.Popen[str] | None = None
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                try:
                    unit = self.waiting.get_nowait()
                except queue.Empty:
                    return
                self._one(unit)
        except Exception as error:
            self.failure = error
        finally:
            self.end()

    def _one(self, unit: Unit) -> None:
        for _ in range(RETRIES):
            if self.stop.is_set():
                return
            if self._asked(unit):
                self.progress.one_more()
                return
            self.end()
        if not self.stop.is_set():
            submission = _given_up(unit, self.options)
            path = self.options.out / "partial" / f"{submission.name}.json"
            results.write(path, submission)
            self.progress.one_more()

    def _asked(self, unit: Unit) -> bool:
        """Whether the job did this student."""
        process = self._job()
        assert process.stdin is not None
        assert process.stdout is not None
        most = max((sum(1 for _ in registry.lab(n)) for n in registry.labs()), default=1)
        limit = self.options.limits.seconds * 2 * most * (3 if self.options.lab is None else 1)
        timer = threading.Timer(limit + OVERHEAD, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(unit.told()) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            return line.endswith("\n") and json.loads(line).get("done") == unit.name
        except (OSError, ValueError):
            return False
        finally:
            timer.cancel()

    def _job(self) -> subprocess.Popen[str]:
        if self.process is None:
            with open(self.options.out / f"job-{self.settings['slot']}.log", "ab") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "course.grading.job"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    encoding="utf-8",
                    errors="surrogatepass",
                    env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
                )
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(self.settings) + "\n")
        return self.process

    def end(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    stream.close() if stream else None


def _given_up(unit: Unit, options: Options) -> Submission:
    lab = options.lab or 0
    told = unit.told()
    return Submission(
        f"{unit.name}-{lab:02d}",
        told["student"],
        told["display"],
        lab,
        results.NOT_GRADED,
        0.0,
        sum(e.points for e in registry.lab(lab)) if lab else 0,
        source=unit.handed.notebooks[0].source if unit.handed.notebooks else "",
        system=told["system"],
        number=told["number"],
        repairs=[f"the grader's own process ended twice over this; see {options.out}/job-*.log"],
        unit=unit.name,
        fingerprint=unit.fingerprint,
    )
