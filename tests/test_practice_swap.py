"""The engine with a learner's pieces in it: theirs do the work, and wrong ones are survived."""

import sys
import time

import pytest

from course.engine import LLM, BlockPool, SamplingParams
from course.engine.scheduler import RequestRefused
from course.practice import registry
from course.practice.my_engine import MyEngine
from course.practice.source import load, reference, reference_text, variant_text
from course.practice.swap import ENGINE, HOMES, learner_engine

PIECES = [e for e in registry.pieces() if e.symbol.startswith(ENGINE)]
PROMPTS = ["hello world", "abc", "the rain falls on the hills", "abc"]
LIMITS = [
    SamplingParams(max_tokens=9, ignore_eos=True),
    SamplingParams(max_tokens=5, temperature=1.0, seed=1, n=2),
    SamplingParams(max_tokens=7),
    SamplingParams(max_tokens=1),
]
_loaded = LLM("tiny", num_blocks=1)


def serve(**more):
    """Tokens of a run in which somebody is preempted, forks and hits the prefix cache."""
    llm = LLM((_loaded.model, _loaded.tokenizer), num_blocks=14, block_size=4, **more)
    answers = llm.generate(PROMPTS, LIMITS)
    return [sample.token_ids for answer in answers for sample in answer.samples]


REFERENCE = serve()


@pytest.fixture
def engine(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_MY_ENGINE", str(tmp_path / "mine"))
    return MyEngine()


@pytest.fixture(autouse=True)
def _everything_is_ours_again():
    before = _engine_names()
    yield
    after = _engine_names()
    assert {key for key in before if after[key] is not before[key]} == set()
    assert serve() == REFERENCE


def _engine_names():
    return {
        (module_name, name): value
        for module_name, module in list(sys.modules.items())
        if module_name.startswith(HOMES)
        for name, value in vars(module).items()
        if callable(value)
    }


def test_an_engine_of_the_learners_own_pieces_gives_the_same_tokens(engine):
    for exercise in PIECES:
        engine.save(exercise, reference_text(exercise) + f"\n\nMARK = {exercise.id!r}\n", {})
    with learner_engine() as pieces:
        from course.engine import kv_blocks, scheduler

        whose = {name: value for name, value in pieces.origin.items() if value != "yours"}
        assert whose == {}
        assert kv_blocks.blocks_needed.__globals__["MARK"] == "4.2"
        assert scheduler.stop_reason.__globals__["MARK"] == "8.1"
        # A piece of theirs uses the others of theirs.
        manager = sys.modules[pieces["KVManager"].grow.__module__]
        assert manager.blocks_needed is pieces["blocks_needed"]
        got = serve()
    assert pieces.compare(REFERENCE, got) == "The same, all of them."
    assert not pieces.failed
    assert repr(pieces).startswith("Yours: BlockPool, blocks_needed, ")


def test_without_any_piece_it_is_ours(engine, capsys):
    with learner_engine() as pieces:
        got = serve()
    assert got == REFERENCE
    assert repr(pieces).startswith("Ours, until you pass them: ")
    assert "yours" not in pieces.origin.values()
    assert capsys.readouterr().out == ""


# ---- Wrong ones, put in by force ----------------------------------------------------------------


def full_blocks_only(num_tokens, block_size):
    return num_tokens // block_size


def test_a_crash_far_from_its_cause_names_the_cause(engine, capsys):
    with learner_engine(force={"blocks_needed": full_blocks_only}) as pieces:
        serve()
    said = capsys.readouterr().out
    assert said == pieces.failed + "\n"
    assert "The engine stopped. " in said
    assert "Your blocks_needed (put in by force) does not pass its check: 2 of 5" in said
    assert "run the check of exercise 4.2" in said
    assert 'learner_engine(without="blocks_needed")' in " ".join(said.split())
    assert len(said.splitlines()) <= 12
    assert max(map(len, said.splitlines())) <= 100


def loops(request):
    while True:
        pass


def loops_and_catches_everything(request):
    count = 0
    while True:
        try:
            count += 1
        except BaseException:
            count = 0


@pytest.mark.parametrize("wrong", [loops, loops_and_catches_everything])
def test_an_endless_loop_is_stopped_and_named(engine, capsys, wrong):
    worked = time.process_time()
    with learner_engine(force={"stop_reason": wrong}, seconds=0.5) as pieces:
        serve()
    assert time.process_time() - worked < 30
    assert "it did not come back" in pieces.failed
    assert "of your stop_reason (exercise 8.1)" in pieces.failed


def test_a_loop_outside_of_a_step_is_stopped_too(engine, capsys):
    force = {"blocks_needed": lambda n, b: loops(n)}
    with learner_engine(force=force, seconds=0.5, seconds_in_all=1):
        serve()
    assert "it did not come back" in capsys.readouterr().out


def test_an_engine_that_never_ends_is_stopped(engine, capsys):
    with learner_engine(force={"stop_reason": lambda request: None}) as pieces:
        serve()
    assert "EngineStuck" in pieces.failed
    assert "nobody ends it" in pieces.failed
    assert "run the check of exercise 8.1" in pieces.failed


def test_wrong_tokens_are_found_by_comparing(engine, capsys):
    def always_at_once(request):
        return "length"

    with learner_engine(force={"stop_reason": always_at_once}) as pieces:
        got = serve()
    told = pieces.compare(REFERENCE, got)
    assert "answers differ. Request 0, 9 tokens were wanted, 1 came." in told
    assert "Your stop_reason (put in by force) does not pass its check" in told
    assert pieces.compare(["a", "bc"], ["a", "bd"]).startswith(
        "1 of 2 answers differ. Request 1, character 1: expected 'c', got 'd'."
    )
    assert pieces.compare([[1]], None).startswith("There is nothing to compare")


def test_a_saved_piece_that_was_made_wrong_by_hand(engine, capsys):
    exercise = registry.find("blocks_needed")
    engine.save(exercise, reference_text(exercise), {})
    path = engine.path(exercise.key)
    path.write_text(path.read_text().replace("num_tokens + block_size - 1", "num_tokens"))
    with learner_engine() as pieces:
        got = serve()
    assert got == REFERENCE
    assert "was changed by hand: now 3 of 5 behaviours hold." in repr(pieces)
    with learner_engine(force="blocks_needed") as pieces:
        serve()
    assert "Put in by force: blocks_needed." in repr(pieces)
    assert "Your blocks_needed (put in by force) does not pass its check" in pieces.failed
    with learner_engine(without="blocks_needed") as pieces:
        assert serve() == REFERENCE
    assert "4.2 blocks_needed: left out." in repr(pieces)


MISTAKES = [
    pytest.param(e, mistake, id=f"{e.id} {mistake.name[:40]}")
    for e in PIECES
    if not any(probe.risky for probe in e.probes)
    for mistake in e.answers.mistakes
]


@pytest.mark.slow
@pytest.mark.parametrize(("exercise", "mistake"), MISTAKES)
def test_no_known_mistake_takes_the_notebook_along(exercise, mistake, engine, capsys):
    answer = load(exercise, variant_text(exercise, mistake))
    worked = time.process_time()
    got = None
    with learner_engine(force={exercise.name: answer}, seconds=1, seconds_in_all=5) as pieces:
        got = serve()
    told = pieces.failed or pieces.compare(REFERENCE, got)
    assert told == "The same, all of them." or f"exercise {exercise.id}" in told, told
    # Its own work, as the wall clock also counts whatever else this machine does.
    assert time.process_time() - worked < 60


# ---- What is not a piece's fault -----------------------------------------------------------------


def test_errors_of_the_block_itself_come_through(engine):
    for exercise in PIECES:
        engine.save(exercise, reference_text(exercise), {})
    with pytest.raises(ZeroDivisionError), learner_engine():
        1 / 0  # noqa: B018
    llm = LLM((_loaded.model, _loaded.tokenizer), num_blocks=2, block_size=4)
    with pytest.raises(RequestRefused), learner_engine():
        llm.generate("much too long for a pool of two blocks")
    with pytest.raises(KeyboardInterrupt), learner_engine():
        raise KeyboardInterrupt


def test_names_that_are_no_pieces_are_refused():
    with pytest.raises(ValueError, match="no exercise 'nothing'"), learner_engine("nothing"):
        pass
    with pytest.raises(ValueError, match="no piece"), learner_engine(force="find_fault"):
        pass
    with pytest.raises(ValueError, match="no exercise"), learner_engine(without="nothing"):
        pass


def test_a_piece_given_as_an_object_gets_the_members_that_its_lab_leaves_out(engine):
    exercise = registry.find("BlockPool")
    answer = load(exercise, reference_text(exercise))
    assert not hasattr(answer, "claim")
    with learner_engine(force={"BlockPool": answer}) as pieces:
        assert serve() == REFERENCE
        assert hasattr(pieces["BlockPool"], "claim")
    assert reference(exercise) is BlockPool
