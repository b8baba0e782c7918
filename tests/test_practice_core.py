"""The machinery under a check: plain data, comparison, guards, verdicts, words."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from random import Random

import numpy as np
import pytest
import torch

from course.practice import feedback, guard, nursery, registry
from course.practice.apart import match_apart, outcomes_apart, run_apart
from course.practice.checks import check, check_only, examine, see_mistake
from course.practice.compare import Tolerance, compare
from course.practice.exercise import Exercise, Mistake, Probe
from course.practice.plain import array_of, is_plain, plain, words
from course.practice.run import Case, expected, make_cases, outcomes, unplain
from course.practice.source import definitions, free_names, load, same_code, variant_text
from course.practice.source import reference_text as source_of_reference
from course.practice.verdict import HOLDS, NOT_RUN, judge

# ---- plain data ---------------------------------------------------------------------------------


class Anything(int):
    """Claims to equal everything."""

    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (Anything(3), "Anything"),
        (np.int64(3), "numpy.int64"),
        (np.float32(3), "numpy.float32"),
        ({1, 2}, "set"),
        (type("L", (list,), {})(), "L"),
        (object(), "object"),
        (np.array([object()], dtype=object), "numpy.ndarray"),
        (torch.nn.Parameter(torch.ones(2)), "torch.nn.parameter.Parameter"),
    ],
)
def test_what_is_not_plain_is_named_and_equals_nothing(value, kind):
    node = plain(value)
    assert node["$other"].endswith(kind)
    assert not is_plain([node])
    assert compare(node, node).parting is not None
    assert compare(3, node).parting.why == "type"
    json.dumps(node)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        2.5,
        float("nan"),
        float("-inf"),
        "x",
        [1, [2]],
        (1, (2.5,)),
        {"a": [1]},
        {16: 7.5, "b": None},
        {"$array": "a key that looks like ours"},
        np.arange(6, dtype=np.int32).reshape(2, 3),
        torch.tensor([[0.5, float("nan")]], dtype=torch.bfloat16),
        torch.zeros(0, 4),
    ],
)
def test_plain_values_survive_json_and_equal_themselves(value):
    node = plain(value)
    again = json.loads(json.dumps(node))
    assert again == node
    assert is_plain(node)
    assert compare(node, again).parting is None
    words(node)


def test_plain_comes_back():
    value = {"a": (1, [2.5, None]), 3: float("inf")}
    assert unplain(plain(value)) == value


def test_bfloat16_comes_back_exactly():
    tensor = torch.tensor([1.0, -0.5, 3.140625], dtype=torch.bfloat16)
    values, name = array_of(plain(tensor))
    assert name == "bfloat16"
    assert values.tolist() == tensor.tolist()


def test_a_lying_repr_and_a_deep_nest_do_no_harm():
    class Liar:
        def __repr__(self):
            raise RuntimeError

    assert "its repr raises RuntimeError" in plain(Liar())["text"]
    nest: list = []
    for _ in range(100):
        nest = [nest]
    assert not is_plain(plain(nest))


# ---- comparison ---------------------------------------------------------------------------------


def parting(expected_value, got, tolerance=None):
    return compare(plain(expected_value), plain(got), tolerance).parting


@pytest.mark.parametrize(
    ("wanted", "got", "why", "path"),
    [
        (1, True, "type", ()),
        (1, 1.0, "type", ()),
        ([1], (1,), "type", ()),
        (None, 0, "type", ()),
        ([1, 2], [1, 3], "value", (1,)),
        ([1, 2], [1], "length", ()),
        ([], [1], "length", ()),
        ({"a": 1}, {"b": 1}, "keys", ()),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, "value", ("a", 1, "b")),
        ({16: 1}, {16: 2}, "value", (16,)),
        (1.0, float("nan"), "not finite", ()),
        (np.zeros((2, 3)), np.zeros((3, 2)), "shape", ()),
        (np.zeros(3), np.zeros(3, np.float32), "dtype", ()),
        (np.zeros(3), np.zeros((0, 3)), "shape", ()),
        (np.zeros(3), [0.0, 0.0, 0.0], "type", ()),
        (torch.ones(2, 2), torch.tensor([[1, 1], [1, float("inf")]]), "not finite", (1, 1)),
        (torch.tensor([float("-inf")]), torch.tensor([-1e30]), "not finite", (0,)),
        (np.array([1, 2, 3]), np.array([1, 9, 3]), "value", (1,)),
    ],
)
def test_where_two_values_part(wanted, got, why, path):
    found = parting(wanted, got)
    assert (found.why, found.path) == (why, path)
    assert found.words()


def test_tolerance_is_scaled_by_the_expected_values():
    small = torch.full((4,), 1e-6)
    assert parting(small, torch.zeros(4), Tolerance(1e-3))
    assert not parting(small, small * 1.0005, Tolerance(1e-3))
    big = torch.tensor([1e6, 1.0])
    assert not parting(big, big + 5, Tolerance(1e-5))
    assert parting(2.0, 2.1, Tolerance(0, 0.05)).error == pytest.approx(0.1)
    assert parting(2.0, 2.0 + 1e-12)  # without a tolerance to the last bit


def test_the_error_nearest_its_limit_is_told():
    found = compare(plain([1.0, 10.0]), plain([1.0, 10.4]), Tolerance(0.1))
    assert found.parting is None
    assert (found.error, found.limit) == (pytest.approx(0.4), 1.0)


def test_infinities_and_nans_in_the_same_places_agree():
    value = torch.tensor([1.0, float("-inf"), float("nan")])
    assert parting(value, value.clone(), Tolerance(1e-6)) is None


# ---- guards -------------------------------------------------------------------------------------


def catches_everything():
    while True:
        try:  # noqa: SIM105
            time.sleep(0.001)
        except BaseException:
            pass


def catches_and_computes():
    total = 0
    while True:
        try:  # noqa: SIM105
            total += 1
        except:  # noqa: E722
            pass


@pytest.mark.parametrize("loop", [catches_everything, catches_and_computes])
def test_a_loop_that_catches_everything_is_stopped(loop):
    worked = time.process_time()
    outcome, _ = guard.call(loop, 0.2)
    assert outcome["timeout"] == 0.2
    assert "line" in outcome
    assert time.process_time() - worked < 5


def test_a_loop_in_a_thread_is_stopped_too():
    found = []

    def spin():
        while True:
            pass

    thread = threading.Thread(target=lambda: found.append(guard.call(spin, 0.2)[0]))
    thread.start()
    thread.join(10)
    assert found
    assert found[0]["timeout"] == 0.2


def test_a_timer_of_somebody_else_goes_on():
    rang = []
    before = signal.signal(signal.SIGALRM, lambda *_: rang.append(1))
    old = signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        assert guard.call(lambda: 1, 5.0)[0] == {"value": 1}
        assert signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL
        time.sleep(0.5)
        assert rang
    finally:
        signal.setitimer(signal.ITIMER_REAL, *old)
        signal.signal(signal.SIGALRM, before)


def test_no_late_alarm_hits_what_comes_after():
    for _ in range(300):
        guard.call(lambda: time.sleep(0.0011), 0.001)
    time.sleep(0.05)


def test_an_error_names_the_learners_line_and_not_ours():
    def learners():
        values = [1]
        return values[3]  # the line

    outcome, _ = guard.call(learners, 1)
    assert outcome["error"]["type"] == "IndexError"
    assert outcome["error"]["code"].startswith("return values[3]")


def test_an_error_under_the_learners_code_names_their_line():
    outcome, _ = guard.call(lambda: json.loads("{"), 1)
    assert outcome["error"]["type"] == "JSONDecodeError"
    assert "json.loads" in outcome["error"]["code"]


@pytest.mark.parametrize(
    "what", [SystemExit(3), GeneratorExit(), RecursionError("x"), MemoryError(), Exception()]
)
def test_nothing_gets_out(what):
    def raises():
        raise what

    outcome, _ = guard.call(raises, 1)
    assert outcome["error"]["type"] == type(what).__name__


def test_an_interrupt_by_the_user_gets_out():
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guard.call(interrupt, 1)


def test_what_is_not_written_is_seen_through_wrappers():
    def kernel():
        try:
            raise NotImplementedError("5.4: write kernel")
        except NotImplementedError as inner:
            raise RuntimeError("in the interpreter") from inner

    assert guard.call(kernel, 1)[0] == {"unwritten": "5.4: write kernel"}


def test_prints_are_held_back():
    outcome, printed = guard.call(lambda: print("x" * 300_000), 5)
    assert outcome == {"value": None}
    assert 0 < len(printed) <= 300_001


# ---- a check as a whole -------------------------------------------------------------------------


UNGUARDED = "return [block_ids[p // block_size] * block_size + p % block_size for p in positions]"


def slots(body):
    text = f"def slot_mapping(block_ids, positions, block_size):\n    {body}\n"
    exercise = registry.find("slot_mapping")
    return exercise, load(exercise, text), text


def told(body):
    exercise, answer, text = slots(body)
    return "\n".join(feedback.lines(examine(exercise, answer, text, seed=3), again="again"))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return [1 // 0]", "in line 2 of your cell: return [1 // 0]"),
        ("raise NotImplementedError('later')", "4.3 slot_mapping: not yet."),
        ("if len(block_ids) == 3: raise NotImplementedError('x')", "not written yet (x)"),
        ("return None", "expected a list ([4, 5, 6, 7, 12])   got None"),
        ("import numpy\n    return numpy.zeros(3)", "got an array of float64"),
        ("return [float(p) for p in positions]", "got a float (4.0)"),
        ("import os\n    os.kill(os.getpid(), 0); return 7", "got an int (7)"),
        ("import sys\n    sys.exit(1)", "SystemExit"),
        ("print('here'); return []", "Your code printed"),
        ("return slot_mapping(block_ids, positions, block_size)", "calls itself without end"),
    ],
)
def test_what_a_learner_is_told(body, says):
    text = told(body)
    assert says in text
    assert text.startswith("4.3 slot_mapping: ")
    assert len(text.splitlines()) <= 12
    assert "course/practice" not in text


def test_a_line_of_a_helper_is_said_to_be_the_helpers():
    body = "return helper(block_ids)\n\n\ndef helper(ids):\n    return ids[99]"
    assert "in your helper, line 6 of its cell: return ids[99]" in told(body)


def test_an_endless_loop_is_named_and_does_not_cost_a_minute():
    began = time.process_time()
    text = told("while True: pass")
    assert "did not come back within 3 s: is there an endless loop?" in text
    assert "stopped in line 2 of your cell: while True: pass" in text
    assert time.process_time() - began < 15


def test_an_answer_changes_nothing_for_the_next_case():
    """Inputs changed in place are the learner's copy."""
    exercise, answer, text = slots("block_ids.clear(); positions.clear(); return []")
    verdict = examine(exercise, answer, text, seed=3)
    assert not verdict.passed
    good = registry.find("slot_mapping")
    assert examine(good, _reference(good), "", seed=3).passed


def _reference(exercise):
    from course.practice.source import reference

    return reference(exercise)


def test_points_are_in_proportion():
    exercise, answer, text = slots(UNGUARDED)
    verdict = examine(exercise, answer, text, seed=3)
    assert 0 < verdict.points < exercise.points
    assert verdict.points == round(exercise.points * verdict.share, 2)


def test_a_wrong_thing_handed_over(capsys):
    for thing, says in [
        (3, "check does not know 3."),
        ([1, 2], "Hand over the function itself"),
        (print, "check does not know 'print'."),
    ]:
        assert not check(thing).passed
        assert says in capsys.readouterr().out
    from course.engine import BlockPool

    check(BlockPool)
    assert "This BlockPool is the course's own." in capsys.readouterr().out
    check(BlockPool(4))
    assert "check takes the class itself" in capsys.readouterr().out


def test_an_unknown_exercise_is_an_error_with_a_list():
    with pytest.raises(ValueError, match=r"4\.3 slot_mapping"):
        check(3, "4.99")


def test_the_same_seed_asks_the_same(capsys):
    _, answer, _ = slots(UNGUARDED)
    texts = [check_only(answer, seed=5).text for _ in range(2)]
    assert texts[0] == texts[1]
    assert "The same inputs again" not in texts[0]
    assert "seed=" in check_only(answer).text
    capsys.readouterr()


def test_see_mistake_says_what_the_check_says(capsys):
    name = "the second block is taken to lie right after the first"
    found = see_mistake("4.3", name)
    assert "7 * 4 + 4 = 32" in " ".join(capsys.readouterr().out.split())
    assert not found.passed


def test_html_says_it_without_colour():
    found = see_mistake("4.3", "the block is returned, without the row in it")
    html = found._repr_html_()
    assert "<strong>Not yet.</strong>" in html
    assert "color:" not in html
    assert 'role="status"' in html
    assert "&lt;" in feedback.html(["x: a < b", "<script>"], "not yet")
    assert "<script>" not in feedback.html(["x", "<script>"], "not yet")


def test_nbgrader_gets_a_number(monkeypatch, capsys):
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    _, answer, _ = slots(UNGUARDED)
    points = check_only(answer)
    assert type(points) is float
    assert 0 < points < 3
    assert check_only(lambda: 0) == 0.0
    capsys.readouterr()


# ---- not run here, largest errors, risky probes -------------------------------------------------


def _exercise(*probes, symbol="course.engine.block_table:blocks_needed"):
    return Exercise("4.2", "t", symbol, 2, 1, 1, ("a", "b", "c"), probes)


def _drive(answer, inputs):
    return answer(inputs["num_tokens"], inputs["block_size"])


ONE = ({"num_tokens": 7, "block_size": 4},)


def test_what_was_not_run_never_counts_as_passed(monkeypatch):
    monkeypatch.setattr("course.practice.run.missing", lambda need: f"no {need}")
    runs = Probe("runs", _drive, ONE)
    needs = Probe("needs", _drive, ONE, needs=("cuda",))
    spare = Probe("spare", _drive, ONE, needs=("cuda",), optional=True)
    for probes, passed in [((runs, needs), False), ((runs, spare), True), ((spare,), False)]:
        exercise = _exercise(*probes)
        cases = make_cases(exercise, 0)
        wanted = expected(exercise, cases)
        verdict = judge(exercise, cases, wanted, wanted)
        assert verdict.passed is passed
        assert [b.state for b in verdict.behaviours][-1] == NOT_RUN
        text = feedback.text(verdict)
        assert "no cuda" in text
        assert "ot run here" in text
        if probes == (runs, needs):
            assert feedback.word(verdict) == "not run here"
            assert verdict.points == 1.0
            assert "does not count as passed" in text


def test_a_passing_check_tells_its_largest_error():
    probe = Probe("near", _drive, ONE, tolerance=Tolerance(0.5))
    exercise = _exercise(probe)
    cases = make_cases(exercise, 0)
    verdict = judge(exercise, cases, [{"value": 2.0}], [{"value": 2.5}])
    assert verdict.passed
    assert "Largest error 5.0e-01; up to 1.0e+00 is allowed." in feedback.text(verdict)


RISKY = "tests.risky"
CRASH = "import ctypes\n\n\ndef blocks_needed(n, b):\n    return ctypes.string_at(8)\n"
LEAVES = "import os\n\n\ndef blocks_needed(n, b):\n    os._exit(0)\n"
LOOPS = "def blocks_needed(n, b):\n    while True:\n        pass\n"
RIGHT = "def blocks_needed(n, b):\n    print('noise')\n    return -(-n // b)\n"
WRONG = "def blocks_needed(n, b):\n    return n // b\n"
BROKEN = "def blocks_needed(n, b:\n"


@pytest.fixture
def needed():
    exercise = registry.find("blocks_needed")
    probe = exercise.probes[0]
    cases = [Case(probe, n, inputs, False) for n, inputs in enumerate(probe.examples[:2])]
    return exercise, cases


@pytest.fixture(params=["a nursery", "no nursery"])
def both_ways(request, monkeypatch):
    if request.param == "no nursery":
        monkeypatch.setattr("course.practice.apart.open_job", lambda kind, job: None)


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        (CRASH, "died", "SIGSEGV"),
        (LEAVES, "died", "exit status 0"),
        (WRONG, "value", "1"),
        (RIGHT, "value", "2"),
        (BROKEN, "error", "SyntaxError"),
        ("", "unusable", "text"),
    ],
)
def test_a_process_apart(needed, both_ways, text, kind, says):
    exercise, cases = needed
    found = run_apart(exercise, cases, text)
    assert len(found) == 2
    assert kind in found[0]
    assert says in str(found[0][kind])


@pytest.mark.slow
def test_an_endless_loop_apart(needed):
    exercise, cases = needed
    found = run_apart(exercise, cases, LOOPS)
    assert found[0]["timeout"] == 3.0


needs_nurseries = pytest.mark.skipif(
    not nursery.is_possible(), reason="nurseries are for Linux without a GPU"
)


@needs_nurseries
def test_a_kernels_check_imports_once(monkeypatch):
    """What takes seconds is the import of PyTorch and Triton: a second check starts no process,
    nor does looking for the mistake after a wrong answer."""
    pytest.importorskip("triton")
    exercise = registry.find("5.4")
    wrong = variant_text(exercise, exercise.answers.mistakes[0])
    answer = load(exercise, wrong)
    verdict = examine(exercise, answer, wrong, seed=1)
    assert verdict.mistake is exercise.answers.mistakes[0]

    def start(*args, **kwargs):
        raise AssertionError(f"a process was started: {args}")

    monkeypatch.setattr(subprocess, "Popen", start)
    for text in (wrong, source_of_reference(exercise)):
        assert examine(exercise, load(exercise, text), text, seed=2).passed is (text != wrong)


@needs_nurseries
def test_a_nursery_that_ended_is_started_again(needed):
    exercise, cases = needed
    run_apart(exercise, cases, RIGHT)
    nursery._nurseries[nursery.WORKERS][1].shutdown(2)
    assert "value" in run_apart(exercise, cases, RIGHT)[0]


@needs_nurseries
def test_a_nursery_that_does_not_answer_is_not_waited_for(needed, monkeypatch):
    exercise, cases = needed
    ours, theirs = socket.socketpair()  # nobody listens
    monkeypatch.setattr(nursery, "_nurseries", {nursery.WORKERS: (os.getpid(), ours)})
    monkeypatch.setattr(nursery, "PATIENCE", 0.1)
    assert nursery.open_job(nursery.WORKERS, {"texts": []}) is None
    assert "value" in run_apart(exercise, cases, RIGHT)[0]
    theirs.close()


@needs_nurseries
def test_nobody_is_left_when_the_notebook_is_gone():
    """Neither the nursery nor a child in a loop that no limit reaches."""
    script = (
        "import os, sys\n"
        "from course.practice import nursery, registry\n"
        "text = 'import signal, time\\nsignal.pthread_sigmask(0, range(1, 32))\\ntime.sleep(999)'\n"
        "job = nursery.open_job('workers', {'exercise': '4.2', 'cases': [], 'texts': [text]})\n"
        "print(job.readline().strip(), flush=True)\n"
        "print(job._pid, os.getsid(job._pid), flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    ready, numbers = done.stdout.splitlines()
    assert "ready" in ready, done.stderr
    left = list(map(int, numbers.split()))
    end = time.monotonic() + 30
    while left and time.monotonic() < end:
        left = [pid for pid in left if _is_running(pid)]
        time.sleep(0.05)
    assert not left


def _is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_many_answers_in_one_process(needed, both_ways):
    exercise, cases = needed
    wanted = [{"value": 2}, {"value": 1}]
    pairs = list(zip(cases, wanted, strict=True))
    texts = [RIGHT, CRASH, WRONG, RIGHT]
    assert match_apart(exercise, texts, pairs) == [2, 0, 0, 2]
    found = outcomes_apart(exercise, cases, [RIGHT, LEAVES, WRONG])
    assert found[0] == wanted
    assert "died" in found[1][0]
    assert found[2] == [{"value": 1}, {"value": 0}]


def test_a_risky_probe_goes_through_the_same_verdict(needed, monkeypatch):
    exercise, _ = needed
    probe = Probe(exercise.probes[0].behaviour, exercise.probes[0].drive, ONE, risky=True)
    risky = Exercise("4.2", exercise.title, exercise.symbol, 1, 5, 1, exercise.hints, (probe,))
    cases = make_cases(risky, 0)
    wanted = expected(risky, cases)
    for text, state in [(RIGHT, HOLDS), (CRASH, "parts")]:
        came = outcomes(risky, cases, None, text)
        verdict = judge(risky, cases, wanted, came)
        assert verdict.behaviours[0].state == state
    assert "SIGSEGV" in feedback.text(verdict)
    assert "out of bounds" in feedback.text(verdict)


# ---- texts --------------------------------------------------------------------------------------


def test_definitions_leave_calls_out():
    text = (
        "import math\nx: int = 3\n@cache\ndef f():\n    pass\nprint(f())\ncheck(f)\nclass A: pass\n"
    )
    kept = definitions(text)
    assert "import math" in kept
    assert "@cache\ndef f" in kept
    assert "print" not in kept
    assert "check" not in kept
    assert "class A" in kept


def test_same_code_looks_past_words():
    a = 'def f(x):\n    """Doc."""\n    return x + 1  # why\n'
    assert same_code(a, "def f(x):\n    return (x+1)\n")
    assert not same_code(a, "def f(x):\n    return x + 2\n")
    assert not same_code(a, "def f(x:")


def test_free_names():
    assert free_names("def f(a):\n    b = len(a)\n    return b + helper(c)\n") == {"helper", "c"}
    assert not free_names("try:\n    x = 1\nexcept ValueError as error:\n    print(error)\n")
    matched = (
        "match [1]:\n    case [a, *b]:\n        print(a, b)\n    case {**c}:\n        print(c)\n"
    )
    assert not free_names(matched)


def test_a_probe_and_a_mistake_say_what_they_lack():
    with pytest.raises(ValueError, match="neither examples nor a make"):
        Probe("x", _drive)
    with pytest.raises(ValueError, match="either edit or code"):
        Mistake("x", "y")
    with pytest.raises(ValueError, match="called alike"):
        _exercise(Probe("x", _drive, ONE), Probe("x", _drive, ONE))


def test_a_reference_that_fails_its_own_probe_is_our_fault():
    exercise = _exercise(Probe("x", lambda answer, inputs: answer(-1, 4), ONE))
    with pytest.raises(RuntimeError, match="reference of"):
        expected(exercise, make_cases(exercise, 0))


def test_inputs_are_new_each_time():
    probe = Probe("x", _drive, ONE, make=lambda random: {"n": random.random()})
    first, second = list(probe.inputs(1)), list(probe.inputs(1))
    assert first == second
    first[0]["num_tokens"] = 99
    assert next(probe.inputs(1))["num_tokens"] == 7
    assert list(probe.inputs(2))[1] != second[1]
    assert Random("1/x/0").random() == second[1]["n"]


KERNEL = """
import json, sys, types
from course.practice import guard, source

source.prelude = lambda exercise: "import torch\\nimport triton\\nimport triton.language as tl"
exercise = types.SimpleNamespace(id="5.1", lab=5, name="add_one", key="05-add_one")
head = "@triton.jit\\ndef add_one(x, y, n, BLOCK: tl.constexpr):\\n    "
bodies = [
    "i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\\n"
    "    tl.store(y + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)",
    'raise NotImplementedError("5.1: write add_one")',
    "i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\\n    tl.store(y + k, 1)",
]
for body in bodies:
    kernel = source.load(exercise, head + body)
    assert source.code_of(kernel).co_name == "add_one"
    import torch

    def drive():
        x, y = torch.arange(10.0), torch.zeros(10)
        kernel[(3,)](x, y, 10, BLOCK=4)
        return y

    print(json.dumps(guard.call(drive, 20)[0]))
"""


def test_a_triton_kernel_is_run_blanked_and_blamed():
    """Under the interpreter, which must be chosen before Triton is imported."""
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-c", KERNEL],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    right, stub, wrong = map(json.loads, done.stdout.splitlines())
    assert array_of(right["value"])[0].tolist() == list(range(1, 11))
    assert stub == {"unwritten": "5.1: write add_one"}
    assert wrong["error"]["type"] == "NameError"
    assert wrong["error"]["code"] == "tl.store(y + k, 1)"


WITHOUT_TRITON = """
import json, sys
sys.modules["triton"] = None  # as where it is not installed
from types import SimpleNamespace
from course.practice import checks, feedback, registry, source
from course.practice.kernels import tl, triton
from course.authoring.blank import stub

@triton.jit
def kernel(x_ptr, BLOCK: tl.constexpr):
    pass

for exercise in registry.every():
    if all("triton" in probe.needs for probe in exercise.probes):
        space = {}
        exec("from course.practice.kernels import *\\n" + stub(exercise), space)
        said = checks.examine(exercise, space[exercise.name], "def changed(): pass", 1)
        assert said.not_run and not said.passed and not said.first_failure
        checks._other_answers(exercise, space[exercise.name])
        print(feedback.text(said))
from course.practice.bring import collect
found = collect("paged_decode_kernel")
assert not found and "cannot be brought here" in found.notes[0]
"""


def test_a_notebook_goes_on_where_triton_is_missing():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TRITON], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "not run here" in done.stdout
    assert "Triton is not installed" in done.stdout


WATCHED = """
import json, types
from course.practice import guard, source
from course.practice.watched import Array, watch

source.prelude = lambda exercise: "import torch\\nimport triton\\nimport triton.language as tl"
exercise = types.SimpleNamespace(id="5.1", lab=5, name="add_one", key="05-add_one")
text = '''
@triton.jit
def read(x, i, mask):
    return tl.load(x + i, mask=mask)

@triton.jit
def add_one(x, y, n, to, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    {}
'''
bodies = [
    "tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)",
    "tl.store(y + i, tl.load(x + i), mask=i < n)",
    "tl.store(y + i, read(x, i, i >= 0), mask=i < n)",
    "tl.store(y + i, tl.load(y + i, mask=i < n) + tl.load(x - 1), mask=i < n)",
    "tl.store(x + i, 1.0, mask=i < n)",
    "tl.store(y + i, 1.0)",
]
for body in bodies:
    kernel = source.load(exercise, text.format(body))
    import torch

    def drive():
        x, y = torch.zeros(6), torch.zeros(6)
        with watch([Array("x", x[:5], [(0, 5)]), Array("y", y, is_written=True)]):
            kernel[(1,)](x, y, 5, 0, BLOCK=8)
        return "right"

    print(json.dumps(guard.call(drive, 20)[0]))
"""


def test_reads_and_writes_outside_name_the_array_and_the_line():
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-c", WATCHED],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    right, *wrong = map(json.loads, done.stdout.splitlines())
    assert right == {"value": "right"}
    found = [outcome["error"] for outcome in wrong]
    kinds = ["OutsideX", "OutsideX", "OutsideX", "OutsideX", "OutsideY"]
    assert [error["type"] for error in found] == kinds
    assert "reads element 5 of the x, which has 5" in found[0]["message"]
    assert "reads element -1 of the x" in found[2]["message"]
    assert "writes to the x, which it may only read" in found[3]["message"]
    assert "writes to element 6 of the y, which has 6" in found[4]["message"]
    assert all(error["code"].startswith(("tl.store", "return tl.load")) for error in found)


def test_the_compiler_says_what_it_does_not_take(monkeypatch):
    pytest.importorskip("triton")
    from course.practice import compiles
    from course.practice.source import reference_text

    exercise = registry.find("paged_decode_kernel")
    right = reference_text(exercise)
    probe = next(p for p in exercise.probes if p.behaviour.startswith("the compiler"))
    (inputs,) = probe.examples

    def say(old="", new=""):
        text = right.replace(old, new) if old else right
        assert old == "" or text != right
        return probe.drive(load(exercise, text), dict(inputs))

    assert say() == "the compiler takes it"
    for old, new, complaint in (
        ("row = position % BLOCK_SIZE", "row = nobody % BLOCK_SIZE", "nobody is not defined"),
        ("weights.to(v.dtype), v", "weights, v", "same dtype"),
        ("running_max = new_max", "break", "Break"),
    ):
        with pytest.raises(guard.Unusable, match=complaint):
            say(old, new)

    def no_process():
        raise PermissionError

    monkeypatch.setattr(compiles, "open_job", lambda kind, job: None)
    assert say() == "the compiler takes it"
    compiles._process().kill()
    compiles._process.cache_clear()
    monkeypatch.setattr(compiles, "_process", no_process)  # as in a grader's sandbox
    assert say() == "the compiler takes it"
    with pytest.raises(guard.Unusable, match="Break"):
        say("running_max = new_max", "break")


def test_a_limit_off_the_main_thread_leaves_the_interpreter_as_it_was():
    """In a process of its own: where it does not, the traced call below never comes back."""
    script = (
        "import faulthandler, sys, threading, time\n"
        "faulthandler.dump_traceback_later(60, exit=True)\n"
        "from course.practice import guard\n"
        "def endless():\n"
        "    while True: pass\n"
        "def work():\n"
        "    for call, seconds in ((int, 5.0), (endless, 0.2), (int, 5.0)):\n"
        "        print(guard.call(call, seconds)[0])\n"
        "    sys.settrace(lambda *a: None)\n"
        "    int(); (lambda: 1)()\n"
        "    sys.settrace(None)\n"
        "    print('traced')\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "{'value'",
        "{'timeout'",
        "{'value'",
        "traced",
    ]


@pytest.mark.parametrize("in_main", [True] + [False] * 5)
def test_a_loop_of_short_limits_does_not_put_off_the_long_one(in_main):
    """Each step of an engine that never ends comes back at once; the limit for all must ring."""
    worked, before = [], threading.active_count()

    def steps():
        end, began = time.monotonic() + 20, time.process_time()
        try:
            with guard.time_limit(0.3):
                while time.monotonic() < end:
                    with guard.time_limit(5.0):
                        pass
        except guard.TooLong:
            worked.append(time.process_time() - began)

    if in_main:
        steps()
    else:
        thread = threading.Thread(target=steps)
        thread.start()
        thread.join()
    assert len(worked) == 1, "nobody stopped it"
    time.sleep(0.1)
    assert threading.active_count() <= before, "a watcher is left, who throws into other threads"
    if in_main:  # a thread for each limit is slow to make, and what is thrown into one gets lost
        assert worked[0] < 2


def endless():
    while True:
        pass


def test_a_limit_leaves_those_in_peace_who_tidy_up_after_it():
    tidied = []

    def work(tidy):
        with guard.time_limit(0.1):
            try:
                endless()
            finally:
                tidy()

    def tidy_up():
        with guard.time_limit(5.0):
            end = time.monotonic() + 0.3
            while time.monotonic() < end:
                pass
            tidied.append(True)

    def never_done():
        with guard.time_limit(0.2):
            endless()

    with pytest.raises(guard.TooLong):
        work(tidy_up)
    assert tidied == [True]
    with pytest.raises(guard.TooLong):  # they have not for ever, either
        work(never_done)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="signals are of Unix systems")
def test_somebody_else_s_timer_rings_among_short_limits():
    """As the one that ends a test which takes too long does; a hundred times, since it could get
    lost in the moment in which it rings."""
    script = (
        "import signal, time\n"
        "from course.practice import guard\n"
        "rung = []\n"
        "signal.signal(signal.SIGALRM, lambda *_: rung.append(time.process_time() - began))\n"
        "for n in range(100):\n"
        "    began, end = time.process_time(), time.monotonic() + 20\n"
        "    signal.setitimer(signal.ITIMER_REAL, 0.01 + n * 1e-6)\n"
        "    while len(rung) <= n and time.monotonic() < end:\n"
        "        with guard.time_limit(5.0):\n"
        "            with guard.time_limit(5.0):\n"
        "                pass\n"
        "    assert len(rung) == n + 1, 'it was lost'\n"
        "print(sorted(rung)[90] < 0.5)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr[-500:]
