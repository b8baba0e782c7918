"""On the grader's side: the reference is away, and trials and killed graders leave nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from course.engine import scheduler as engine
from course.engine.block_pool import BlockPool
from course.engine.kv_manager import KVManager
from course.engine.request import Request
from course.engine.sampling_params import SamplingParams
from course.engine.stats import Timing
from course.grading import desk, exam, isolation, leftovers, near, trial
from course.grading.session import Limits
from course.grading.trial import Bench, Trial
from course.practice import registry
from course.practice.run import make_cases
from course.practice.source import reference
from course.practice.verdict import judge

CLASS = """
import sys
from dataclasses import dataclass
@dataclass
class Timing:
    arrival: float = 0.0
class Mine:
    kind = sys.modules["wall.codec"].Codec
    real = kind.encode
    def encode(self, value, depth=0, real=real):
        if type(value) is Timing:
            told = {"arrival": value.arrival, "num_tokens": 0}
            return {"record": told, "of": "course.engine.stats:Timing"}
        return real(self, value, depth)
    kind.encode = encode
"""
# (exercise, text, words of which one must be in the notes)
TRICKS = {
    "the engine's round, asked for through the scheduler": ("6.4", """
def update_requests(scheduler, step, tokens):
    return scheduler.update(scheduler.schedule(), tokens)
""", near.NOTE),
    "the newest, thrown out by a step that is abandoned": ("6.1", """
def preempt_newest(scheduler):
    newest = scheduler.running[-1]
    scheduler.schedule()
    scheduler.abandon()
    return newest
""", near.NOTE),
    "the engine's own function of that kind": ("7.6", """
def publish_blocks(kv, request):
    kv.publish(request)
""", near.NOTE),
    "an instance of the grader's own class": ("8.4", CLASS, near.NOTE),
    "an error that is called like its input": ("4.2", """
def blocks_needed(num_tokens, block_size):
    raise type(f"N{num_tokens}B{block_size}", (Exception,), {})()
""", ""),
}  # fmt: skip


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    rooms = tmp_path_factory.mktemp("rooms")
    report = isolation.find(rooms)
    return Bench(report.level, Limits(30)), rooms


def examined(bench, which, text):
    exercise = registry.find(which)
    return exam.examine(
        bench[0], exercise, text, "ann", exam.Secret("s"), trial.OUTSIDE, bench[1]
    )  # fmt: skip


@pytest.mark.parametrize("name", TRICKS)
def test_what_is_asked_for_is_not_to_be_had_from_the_grader(bench, name):
    which, text, words = TRICKS[name]
    found = examined(bench, which, text)
    assert found.points == 0
    assert words in " ".join(found.notes)


def test_the_name_and_line_of_an_error_tell_a_student_nothing_of_hidden_inputs(bench):
    found = examined(bench, "4.2", TRICKS["an error that is called like its input"][1])
    # With examples first, all that is seen is public: look at hidden cases alone.
    exercise = registry.find("4.2")
    text = "def blocks_needed(n, b):\n    raise type(f'N{n}', (Exception,), {})()\n"
    assert "of your answer" in " ".join(found.feedback)  # on examples everything is said
    behaviours = [
        exam.wording._reason(b, hidden=True)
        for b in exam._verdict(bench[0], exercise, text, "outside", bench[1], "s")[0].behaviours
    ]
    assert set(behaviours) == {"an error", "Exception"}


def test_how_a_process_ended_spells_nothing_out():
    told = exam.wording._without_status
    assert told("its process was ended by SIGSEGV", True) == "its process was ended"
    ended = "its process ended before it answered (exit status 7)"
    assert told(ended, True) == "its process ended before it answered"
    assert told(ended, False) == ended


def test_while_it_works_for_a_worker_the_reference_is_away_by_whatever_name():
    scheduler = engine.Scheduler(engine.SchedulerConfig(4, 8), KVManager(8, 4))
    scheduler.add(Request("A", [1, 2, 3], SamplingParams()))
    known = engine.serve_running
    with near.taken_out(near.bodies(known, ())):
        with pytest.raises(NotImplementedError, match="asked to write"):
            scheduler.schedule()
        with pytest.raises(NotImplementedError), near.taken_out(near.bodies(known, ())):
            known(scheduler, engine.Step(), 8)
        with pytest.raises(NotImplementedError):
            known(scheduler, engine.Step(), 8)
    scheduler._step = None
    assert len(scheduler.schedule().scheduled) == 1


def test_the_bodies_of_every_exercise_are_found():
    for exercise in registry.every():
        if exercise.kind == "data" or any(p.risky for p in exercise.probes):
            continue
        found = near.bodies(reference(exercise), exercise.blank)
        assert len(found) == len(exercise.blank or [1]), exercise.label
    pool = BlockPool(4)
    with near.taken_out(near.bodies(BlockPool, ("allocate",))):
        with pytest.raises(NotImplementedError):
            pool.allocate(1)
        assert pool.num_free == 4
    timing = Timing(1.0)
    away = near.taken_out(near.bodies(Timing, ("time_to_first_token",)))
    with away, pytest.raises(NotImplementedError):
        _ = timing.time_to_first_token
    assert pool.allocate(1)


def test_a_word_that_could_be_guessed_is_not_believed_alone():
    exercise = registry.find("7.7")  # its probes run beside the answer, and one says "40000 blocks"
    cases, wanted, _ = exam.prepared(exercise.key, "s")
    (word,) = {o["value"] for o in wanted if type(o["value"]) is str}
    for only, points in (("", 0), (cases[0].probe.behaviour, 1.0)):
        came = [
            right if case.probe.behaviour == only else {"value": word}
            for case, right in zip(cases, wanted, strict=True)
        ]
        verdict = judge(exercise, cases, wanted, came)
        assert verdict.points > points - 0.01
        exam.doubt(verdict, cases, wanted)
        assert verdict.points == pytest.approx(points, abs=0.01)


# ---- A trial in a process of its own ------------------------------------------------------------


def tried(monkeypatch, work, limits=None):
    monkeypatch.setattr(trial, "try_answer", work)
    exercise = registry.find("4.2")
    cases = make_cases(exercise, "desk")
    return cases, desk.try_answer(
        Bench("none", limits or Limits(2)), None, exercise, cases, "", "outside", "s"
    )


def test_a_trial_leaves_nothing_behind_in_the_grader(monkeypatch):
    shared = [1, 2]

    def work(*arguments):
        shared.clear()
        return Trial([{"value": os.getpid()}], ["a note"], {"seen"}, 5)

    _, found = tried(monkeypatch, work)
    assert shared == [1, 2]
    assert found.outcomes[0]["value"] != os.getpid()
    assert (found.notes, found.seen, found.peak) == (["a note"], {"seen"}, 5)


def test_looking_that_never_ends_or_ends_the_process_is_an_outcome(monkeypatch):
    monkeypatch.setattr(desk, "CPU", 0.3)
    cases, found = tried(monkeypatch, lambda *a: sum(range(10**12)), Limits(0.2))
    assert found.outcomes == [{"died": desk.TOO_LONG}] * len(cases)
    assert found.notes == [desk.TOO_LONG]
    cases, found = tried(monkeypatch, lambda *a: os.kill(os.getpid(), 9))
    assert "ended the grader's process" in found.outcomes[0]["died"]


def test_a_worker_that_does_not_start_is_still_the_graders_fault(monkeypatch):
    def work(*arguments):
        raise RuntimeError("no worker")

    with pytest.raises(RuntimeError, match="no worker"):
        tried(monkeypatch, work)


def test_an_outcome_that_cannot_be_written_down_is_of_no_use(monkeypatch):
    _, found = tried(monkeypatch, lambda *a: Trial([{"value": 10**5000}, {"value": 1}]))
    assert "unusable" in found.outcomes[0]
    assert found.outcomes[1] == {"value": 1}


# ---- Temporary folders --------------------------------------------------------------------------


MAKE = "from course.grading import leftovers; print(leftovers.make('worker'))"


def test_folders_of_dead_graders_are_swept_and_others_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(leftovers.tempfile, "tempdir", str(tmp_path))
    mine = leftovers.make("rooms")
    done = subprocess.run(
        [sys.executable, "-c", MAKE],
        env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[1],
    )  # fmt: skip
    dead = Path(done.stdout.strip())
    (dead / "left").write_text("x")
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    (dead / "link").symlink_to(kept)
    others = [kept, mine]
    for name in ("course-rooms-x", "course-worker-abc", dead.name[:-1] + "-"):
        (tmp_path / name).mkdir()
        others.append(tmp_path / name)
    link = tmp_path / dead.name.replace("worker", "rooms")
    link.symlink_to(kept)
    elsewhere = tmp_path / dead.name.replace(dead.name.split("-")[2], "0" * 8)
    elsewhere.mkdir()
    assert leftovers.sweep() == [dead]
    assert not dead.exists()
    assert all(path.exists() for path in [*others, link, elsewhere, kept / "file"])
