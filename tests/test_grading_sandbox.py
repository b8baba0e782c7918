"""What a worker sees of the course, what keeps it in, and answers that would talk PyTorch round."""

import random
import sys
from dataclasses import replace

import pytest

from course.grading import isolation, outcomes, room, trial
from course.grading.session import Limits, Session
from course.practice import registry
from course.practice.compare import Tolerance
from course.practice.exercise import Exercise, Probe
from course.practice.run import make_cases, one
from course.practice.source import reference
from course.practice.verdict import judge

LEVELS = ("bubblewrap", "landlock")


@pytest.fixture(scope="module")
def rooms(tmp_path_factory):
    return tmp_path_factory.mktemp("rooms")


@pytest.fixture(scope="module", params=LEVELS)
def level(request, rooms):
    """A level that holds here; where it does not, its tests say why they did not run."""
    report = isolation.find(rooms, request.param)
    if not report.sufficient:
        pytest.skip(f"{request.param} does not hold here: {report.why_not or report.measured}")
    return request.param


def test_a_room_has_no_answers(rooms):
    for exercise in registry.every():
        made = room.build(exercise, rooms)
        texts = {p.relative_to(made.path).as_posix(): p for p in made.path.rglob("*.py")}
        assert not [t for t in texts if t.startswith(("course/labs", "course/lessons", "tests"))]
        assert not [t for t in texts if "grading" in t or "authoring" in t or "/bank/lab" in t]
        given = [t for t in texts if t.startswith("course/practice/answers/lab_")]
        assert len(given) <= 1
        for path in given:
            assert f"def {exercise.name}(" not in texts[path].read_text(encoding="utf-8")
            assert "ANSWERS" not in texts[path].read_text(encoding="utf-8")
        module = exercise.symbol.partition(":")[0]
        if exercise.kind == "write" and not module.startswith("course.practice"):
            text = texts[module.replace(".", "/") + ".py"].read_text(encoding="utf-8")
            assert f'NotImplementedError("{exercise.id}: write ' in text
            stale = [p for p in made.path.rglob("*.pyc") if p.stat().st_mtime == 0]
            assert not stale


def test_rooms_with_probes_have_those_of_their_lab_only(rooms):
    made = room.build(registry.find("4.1"), rooms, with_probes=True)
    banks = [p.name for p in (made.path / "course/practice/bank").glob("lab_*.py")]
    assert banks == ["lab_04.py"]


def test_every_attempt_to_get_out_is_refused(rooms, level):
    layers, measured = isolation.measure(level, rooms)
    assert all(measured.values()), measured
    assert "seccomp" in layers
    assert "no new privileges" in layers


def test_without_a_level_it_is_said_so(rooms):
    report = isolation.find(rooms, "none")
    assert not report.sufficient
    assert "no isolation" in isolation.words(report)
    assert "--allow-unsandboxed" in isolation.remedy(report)


def test_a_level_that_is_not_there_is_named(rooms, monkeypatch):
    monkeypatch.setattr("course.grading.sandbox.is_there", lambda level: f"no {level} today")
    report = isolation.find(rooms)
    assert (report.level, report.sufficient) == ("none", False)
    assert report.why_not["bubblewrap"] == "no bubblewrap today"


def test_probes_inside_give_the_same_verdicts(rooms, level):
    """The way for arguments that cannot cross, tried on an exercise where both ways go."""
    exercise = registry.find("4.3")
    made = room.build(exercise, rooms, with_probes=True)
    cases = make_cases(exercise, "inside")
    wanted = [one(case, reference(exercise))[0] for case in cases]
    bench = trial.Bench(level, Limits(30))
    for text, points in (
        ("from course.practice.source import x\n", 0),
        ("def slot_mapping(blocks, positions, block_size):\n    return [0]\n", 0),
        ("def slot_mapping(b, p, s):\n    raise ValueError\n", 9 / 7),
    ):
        found = trial.try_answer(bench, made, exercise, cases, text, trial.INSIDE, "s")
        assert judge(exercise, cases, wanted, found.outcomes).points == pytest.approx(
            points, abs=0.01
        )


# ---- PyTorch ------------------------------------------------------------------------------------


def _merge(merge, inputs):
    import torch

    make = torch.Generator().manual_seed(inputs["seed"])
    out_a, out_b = (torch.randn(inputs["tokens"], 2, 4, generator=make) for _ in "ab")
    lse_a, lse_b = (torch.randn(inputs["tokens"], 2, generator=make) for _ in "ab")
    out, lse = merge(out_a, lse_a, out_b, lse_b)
    return {"out": out, "lse": lse}


MERGE = Exercise(
    id="5.9", title="Merge", symbol="course.engine.paged_attention:merge_attention_states",
    points=4, minutes=1, difficulty=1, hints=("", "", ""),
    probes=(
        Probe("merges", _merge, examples=({"seed": 1, "tokens": 3},), seconds=10,
              make=lambda r: {"seed": r.randrange(99), "tokens": r.randint(1, 5)}, cases=3,
              tolerance=Tolerance(1e-5)),
    ),
)  # fmt: skip
SIGNATURE = "def merge_attention_states(out_a, lse_a, out_b, lse_b):\n"
RIGHT = f"""
import torch
{SIGNATURE}    lse = torch.logaddexp(lse_a, lse_b)
    weight = torch.exp(lse_a - lse).unsqueeze(-1)
    return out_a * weight + out_b * (1 - weight), lse
"""
TRICKS = {
    "a subclass that agrees with everything": (f"""
import torch
class Yes(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return True
{SIGNATURE}    return out_a.as_subclass(Yes), lse_a.as_subclass(Yes)
""", "Yes"),
    "patched comparisons": (f"""
import torch
torch.allclose = torch.equal = torch.Tensor.equal = lambda *a, **k: True
torch.Tensor.__eq__ = lambda a, b: True
torch.testing.assert_close = lambda *a, **k: None
{SIGNATURE}    return out_a, lse_a
""", ""),
    "a lazy tensor": (f"""
import torch
class Lazy:
    def __init__(self, make): self.make = make
    def __getattr__(self, name): return getattr(self.make(), name)
    def __eq__(self, other): return True
{SIGNATURE}    return Lazy(lambda: out_a), Lazy(lambda: lse_a)
""", "Lazy"),
    "another dtype": (f"""
{SIGNATURE}    return out_a.double(), lse_a.double()
""", "float64"),
    "half precision": (f"""
{SIGNATURE}    return out_a.half(), lse_a.half()
""", "float16"),
    "a dtype of its own": (f"""
import numpy as np
{SIGNATURE}    odd = np.zeros(out_a.shape, dtype=[("x", "f4")])
    return odd, odd
""", ""),
    "nothing in the right shape": (f"""
import torch
{SIGNATURE}    return torch.empty(0, 2, 4), torch.empty(0, 2)
""", "shape"),
    "zeros": (f"""
{SIGNATURE}    return out_a * 0, lse_a * 0
""", ""),
    "not a number": (f"""
{SIGNATURE}    return out_a * float("nan"), lse_a
""", ""),
    "its inputs, emptied": (f"""
{SIGNATURE}    for t in (out_a, lse_a, out_b, lse_b):
        t.zero_()
    return out_a, lse_a
""", ""),
    "a sparse tensor": (f"""
{SIGNATURE}    return out_a.to_sparse(), lse_a
""", ""),
    "a tensor on no device": (f"""
{SIGNATURE}    return out_a.to("meta"), lse_a.to("meta")
""", ""),
    "a parameter": (f"""
import torch
{SIGNATURE}    return torch.nn.Parameter(out_a), lse_a
""", "Parameter"),
}  # fmt: skip


def test_torch_answers_cannot_talk_the_comparison_round(rooms):
    pytest.importorskip("torch")
    report = isolation.find(rooms)
    made = room.Room(room.base(rooms), "05-merge", "5.9", "import torch")
    cases = make_cases(MERGE, "merge")
    wanted = [one(case, reference(MERGE))[0] for case in cases]
    bench = trial.Bench(report.level, Limits(60))
    with Session(made, report.level, Limits(60)) as session:  # one start of PyTorch for all
        for name, (text, words) in {"right": (RIGHT, ""), **TRICKS}.items():
            came = []
            failure = outcomes.outcome_of(lambda text=text: session.load(text, MERGE.name))
            assert "value" in failure, (name, failure)
            for case in cases:
                came.append(trial._outside(session, case, 20))
            verdict = judge(MERGE, cases, wanted, came)
            assert verdict.passed == (name == "right"), name
            told = str(verdict.behaviours[0].parting) + str(verdict.behaviours[0].outcome)
            assert words in told, (name, told)
    assert bench.level == report.level


def test_hidden_inputs_depend_on_the_seed_and_the_student():
    from course.grading.exam import Secret

    exercise = registry.find("4.3")
    seeds = {Secret(s).of(exercise, n) for s in ("a", "b") for n in ("ann", "bob")}
    assert len(seeds) == 4
    assert Secret("a").of(exercise, "ann") == Secret("a").of(exercise, "ann")
    risky = replace(exercise, probes=tuple(replace(p, risky=True) for p in exercise.probes))
    few = {Secret("a").of(risky, str(n)) for n in range(100)}
    assert 1 < len(few) <= 6
    assert random.Random(min(few)).random() != random.Random(max(few)).random()


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_a_worker_that_cannot_lock_itself_in_is_not_used(rooms, monkeypatch):
    from course.grading import sandbox

    made = room.Room(room.base(rooms), "x", "0", "")
    real = sandbox.missing_layers
    monkeypatch.setattr(sandbox, "missing_layers", lambda on, order: [*real(on, order), "seccomp"])
    with pytest.raises(RuntimeError, match="not whole: seccomp"), Session(made, "none", Limits(10)):
        pass
