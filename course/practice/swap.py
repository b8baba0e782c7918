"""The engine with the learner's pieces in it, and what is said when one of them fails."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from textwrap import wrap
from types import CodeType, TracebackType
from typing import Any

from course.practice import registry
from course.practice.bring import OURS, YOURS, Pieces, theirs, whole
from course.practice.exercise import Exercise
from course.practice.guard import COURSE, TooLong, is_learners, time_limit
from course.practice.my_engine import MyEngine
from course.practice.run import loaded
from course.practice.source import NoSource, reference, written

FORCED = "put in by force"
ENGINE = "course.engine."
HOMES = (ENGINE, "course.memory", "course.sizing")


class EngineStuck(RuntimeError):
    """The engine takes steps and does not come to an end."""


class LearnerEngine(Pieces):
    """Pieces at work in the engine: name -> object; ``origin`` says whose each is.

    failed: what went wrong in the ``with`` block, in words; empty when nothing did.
    """

    def __init__(self) -> None:
        super().__init__()
        self.exercises: dict[str, Exercise] = {}
        self.texts: dict[str, str] = {}
        self.failed = ""
        self.seconds = 30.0
        self._restore: list[tuple[Any, str, Any]] = []
        self._watched: Any = None

    def __repr__(self) -> str:
        told = super().__repr__()
        if forced := self._of(FORCED):
            told = f"Put in by force: {', '.join(forced)}.\n{told}"
        return told

    def compare(self, wanted: Any, got: Any) -> str:
        """Whether two lists of answers (token ids or texts) are the same; if not, where they part
        and which piece does not pass its check."""
        if got is None:
            return "There is nothing to compare: the engine was stopped."
        if len(wanted) != len(got):
            told = f"{len(wanted)} answers were wanted, {len(got)} came."
        elif differing := [n for n, (a, b) in enumerate(zip(wanted, got, strict=True)) if a != b]:
            number = differing[0]
            one, other = wanted[number], got[number]
            place = next(
                (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None
            )
            unit = "character" if isinstance(one, str) else "token"
            if place is None:
                where = f"{len(one)} {unit}s were wanted, {len(other)} came"
            else:
                where = f"{unit} {place}: expected {one[place]!r}, got {other[place]!r}"
            told = f"{len(differing)} of {len(wanted)} answers differ. Request {number}, {where}."
        else:
            return "The same, all of them."
        return "\n".join([told, *self._told_of(self.doubts(list(self.exercises)))])

    def doubts(self, names: Iterable[str] = ()) -> list[tuple[Exercise, Any]]:
        """(exercise, verdict) of those pieces, the learner's, that do not pass their check now."""
        from course.practice.checks import examine

        at_work = bool(self._restore)
        self._take_back()  # a check compares with our pieces
        try:
            found = []
            for name in names or self._theirs():
                exercise = self.exercises[name]
                if self.origin.get(name) not in (YOURS, FORCED):
                    continue
                if any(probe.risky for probe in exercise.probes):
                    continue  # kernels: their checks start processes, and a CPU does not run them
                verdict = examine(exercise, self[name], self.texts.get(name, ""), seed=0)
                if not verdict.passed:
                    found.append((exercise, verdict))
            return found
        finally:
            if at_work:
                self._put_in()

    def _of(self, whose: str) -> list[str]:
        return [name for name, origin in self.origin.items() if origin == whose]

    def _theirs(self) -> list[str]:
        return self._of(FORCED) + self._of(YOURS)

    def _told_of(self, doubts: list) -> list[str]:
        """What to do about pieces that do not pass their check."""
        found = []
        for exercise, verdict in doubts[:2]:
            held = len(verdict.in_state("holds"))
            hold = "holds" if held == 1 else "hold"
            forced = " (put in by force)" if self.origin[exercise.name] == FORCED else ""
            cause = (
                f" This is what comes out when {verdict.mistake.name}." if verdict.mistake else ""
            )
            found += _wrapped(
                f"Your {exercise.name}{forced} does not pass its check: {held} of "
                f"{len(verdict.behaviours)} behaviours {hold}.{cause}"
            )
        for exercise, _ in doubts[:1]:
            found += _wrapped(
                f"What to do: in lab {exercise.lab:02d}, run the check of exercise {exercise.id} "
                "and mend what it names. Until then, leave the piece out: "
                f'learner_engine(without="{exercise.name}").'
            )
        if not doubts and self._theirs():
            found += _wrapped(
                "Every piece of yours passes its check. What to do: leave one out after the other, "
                'learner_engine(without="..."), to see which it is.'
            )
        return found

    def _put_in(self) -> None:
        """Their pieces in the place of ours, in the engine's modules and in each other's."""
        swaps = [(reference(self.exercises[name]), self[name]) for name in self._theirs()]
        homes = self._modules()
        for module_name, module in list(sys.modules.items()):
            if not module_name.startswith(HOMES) and module_name not in homes:
                continue
            for name, value in list(vars(module).items()):
                for old, new in swaps:
                    if value is old:
                        self._restore.append((module, name, old))
                        setattr(module, name, new)
        self._watch()

    def _take_back(self) -> None:
        while self._restore:
            module, name, old = self._restore.pop()
            setattr(module, name, old)
        mine = [(self[name], reference(self.exercises[name])) for name in self._theirs()]
        if self._watched is not None:
            mine.append((self._watched, sys.modules[f"{ENGINE}core"].EngineCore))
        for module_name, module in list(sys.modules.items()):
            if module_name.startswith(HOMES):  # imported meanwhile: it took what was there
                for name, value in list(vars(module).items()):
                    for new, old in mine:
                        if value is new:
                            setattr(module, name, old)

    def _modules(self) -> set[str]:
        """Where their pieces were loaded: those use each other too."""
        made = {
            str(getattr(base, "__module__", ""))
            for n in self._of(YOURS)
            for base in _bases(self[n])
        }
        return {name for name in made if name.startswith("answer_")}

    def _watch(self) -> None:
        """Each step of the engine is given so many seconds, and a request its length."""
        try:
            from course.engine import core, llm
        except ImportError:  # without PyTorch there is no model to run
            return
        self._watched = _watched(llm.EngineCore, self.seconds)
        modules: tuple[Any, ...] = (core, llm)
        for module in modules:
            self._restore.append((module, "EngineCore", module.EngineCore))
            module.EngineCore = self._watched


def _bases(answer: Any) -> tuple:
    return answer.__mro__[:-1] if isinstance(answer, type) else (answer,)


def _wrapped(told: str) -> list[str]:
    return wrap(told, 96, subsequent_indent="  ")


def _watched(core: type, seconds: float) -> type:
    """An engine core whose calls come back in time, or raise."""

    class EngineCore(core):
        late = False

        def _in_time(self, call: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                # What comes after a call that did not return is only to tidy up: no second wait.
                with time_limit(1.0 if self.late else seconds):
                    return call(*args, **kwargs)
            except TooLong:
                self.late = True
                raise

        def submit(self, *args: Any, **kwargs: Any) -> Any:
            return self._in_time(super().submit, *args, **kwargs)

        def drop(self, jobs: list) -> None:
            self._in_time(super().drop, jobs)

        def step(self) -> Any:
            finished = self._in_time(super().step)
            for request in self.scheduler.running:
                most = request.max_num_tokens
                if most is not None and request.num_tokens > most:
                    raise EngineStuck(
                        f"{request.request_id} was to end at {most} tokens and has "
                        f"{request.num_tokens}: nobody ends it"
                    )
            return finished

    return EngineCore


@contextlib.contextmanager
def learner_engine(
    *names: str,
    without: str | Iterable[str] = (),
    force: str | Iterable[str] | Mapping[str, Any] = (),
    engine: MyEngine | None = None,
    seconds: float = 30.0,
    seconds_in_all: float = 600.0,
) -> Iterator[LearnerEngine]:
    """Run the course's engine with the learner's pieces in it, for as long as the block lasts.

    Every module of the engine that holds one of the course's pieces gets the learner's instead, and
    the course's back at the end. Yields whose each piece is.

    names: which pieces; all of the engine when not given. without: pieces to leave out. force:
    pieces to put in whatever their checks say: names of saved ones, or {name: your object}.
    seconds: what one step may take; seconds_in_all: what the block may take.

    Where a piece fails, or does not come to an end, the block ends there, the reason is printed and
    kept in ``.failed``, and whatever comes after the block goes on. Errors that have nothing to do
    with a piece come through.
    """
    global _at_work
    if _at_work:
        raise RuntimeError(
            "learner_engine() is at work already, and the pieces are in their places: use what its "
            "`with` block has, or leave the block first"
        )
    limits = {"seconds": seconds, "seconds_in_all": seconds_in_all}
    for name, value in limits.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ValueError(f"{name}={value!r}: it is a number of seconds, more than 0")
    force = _forced(force)
    made = _collect(names, _names(without, "without"), force, engine or MyEngine())
    made.seconds = seconds
    _at_work = True
    try:
        made._put_in()
        with time_limit(seconds_in_all):
            yield made
    except TooLong as error:
        made._take_back()
        _give_up(made, error, "")
    except Exception as error:
        made._take_back()
        _give_up(made, error, f"{type(error).__name__}: {error}".rstrip(": "))
    finally:
        made._take_back()
        _at_work = False


_at_work = False


def _names(which: str | Iterable[str], what: str) -> list[str]:
    names = [which] if isinstance(which, str) else which
    if isinstance(names, Iterable) and not isinstance(names, type | Mapping):
        names = list(names)
        if all(isinstance(name, str) for name in names):
            return names
    shown = getattr(which, "__name__", None) or repr(which)
    raise ValueError(f"{what}={shown}: give the name of a piece, or a list of names")


def _forced(force: Any) -> list[str] | dict[str, Any]:
    """Names of saved pieces, or objects by name."""
    if not isinstance(force, Mapping):
        name = getattr(getattr(force, "fn", force), "__name__", None)
        if name is not None:  # a function or a class
            raise ValueError(f'force={name}: say by which name, force={{"{name}": {name}}}')
        return _names(force, "force")
    for name, piece in force.items():
        if not callable(piece):
            raise ValueError(
                f"force={{{name!r}: {piece!r}}}: a piece is a function or a class, and this is "
                f"{type(piece).__name__}"
            )
    return dict(force)


def _collect(names: tuple, without: list, force: Any, engine: MyEngine) -> LearnerEngine:
    by_object = force if isinstance(force, dict) else {}
    by_name = [] if isinstance(force, dict) else force
    chosen = [registry.find(name) for name in names]
    if not names:
        chosen = [e for e in registry.pieces() if e.symbol.startswith(ENGINE)]
    for name in (*by_object, *by_name):
        exercise = registry.find(name)
        if not exercise.piece:
            raise ValueError(f"{exercise.label} is no piece of the engine")
        chosen += [] if exercise in chosen else [exercise]
    left_out = {registry.find(name).name for name in without}
    made = LearnerEngine()
    for exercise in sorted(chosen, key=lambda e: [int(part) for part in e.id.split(".")]):
        name = exercise.name
        if name in left_out:
            made.notes.append(f"{exercise.label}: left out. The course's is used.")
            continue
        piece = engine.piece(exercise.key)
        if name in by_object:
            answer, note, whose = whole(exercise, by_object[name]), "", FORCED
            with contextlib.suppress(NoSource):
                made.texts[name] = written(by_object[name], name)
        elif name in by_name:
            answer, note, whose = *_unchecked(exercise, piece), FORCED
        else:
            answer, note = theirs(exercise, engine)
            whose = YOURS
        if note:
            made.notes.append(note)
        try:
            made[name] = reference(exercise) if answer is None else answer
        except ImportError as error:  # a kernel, where Triton is not installed
            made.notes.append(f"{exercise.label}: cannot be brought here ({error}).")
            continue
        made.origin[name] = OURS if answer is None else whose
        made.exercises[name] = exercise
        if piece is not None:
            made.texts.setdefault(name, piece.text)
    return made


def _unchecked(exercise: Exercise, piece: Any) -> tuple[Any, str]:
    if piece is None:
        return None, f"{exercise.label}: nothing of yours is saved. The course's is used."
    answer, problem = loaded(exercise, piece.text)
    if problem:
        error = problem.get("error", {})
        why = f"{error.get('type', 'it does not load')}: {error.get('message', '')}".rstrip(": ")
        return None, f"{exercise.label}: it cannot be loaded ({why}). The course's is used."
    return whole(exercise, answer), ""


# ---- What went wrong ----------------------------------------------------------------------------


def _give_up(made: LearnerEngine, error: BaseException, what: str) -> None:
    """Print and keep what went wrong, if a piece of theirs is behind it; else raise it again."""
    line, on_the_way = _blame(made, error.__traceback__)
    stopped = isinstance(error, TooLong)
    if not made._theirs() or not (line or stopped or _in_the_course(error.__traceback__)):
        if stopped:
            raise TimeoutError(
                f"no end within {made.seconds:g} s for a step, or within the time for all"
            ) from None
        raise error
    doubts = made.doubts(on_the_way) if on_the_way else []
    if not doubts:
        doubts = made.doubts()
    if not doubts and (type(error).__name__ == "RequestRefused" or not (line or stopped)):
        raise error  # nothing points to a piece
    told = (
        f"The engine stopped. {what}" if what else "The engine was stopped: it did not come back."
    )
    if stopped:
        told += f" A step may take {made.seconds:g} s. Is there an endless loop?"
    found = [*_wrapped(told), *([f"  {line}"] if line else []), *made._told_of(doubts)]
    found.append("Our pieces are in their places again, and this notebook goes on.")
    made.failed = "\n".join(found)
    print(made.failed)


def _blame(made: LearnerEngine, trace: TracebackType | None) -> tuple[str, list[str]]:
    """(the deepest line of a piece in words, names of all pieces on the way, the deepest first)."""
    codes: dict[CodeType, str] = {}
    files: dict[str, str] = {}
    for name in made._theirs():
        for code in _codes(made[name]):
            codes[code] = name
            if code.co_filename.startswith("<answer"):  # with the helpers beside it
                files[code.co_filename] = name
    line, names = "", []
    for frame, number in traceback.walk_tb(trace):
        code = frame.f_code
        name = codes.get(code) or files.get(code.co_filename)
        if name is None:
            continue
        names = [name, *(n for n in names if n != name)]
        exercise, function = made.exercises[name], code.co_name
        told = name
        if isinstance(made[name], type):
            told = f"{name}.{function}"
        elif code is not getattr(made[name], "__code__", None):
            told = f"{function}, beside your {name}"
        text = _line_of(code.co_filename, number)
        line = f"in line {number} of your {told} (exercise {exercise.id}){text}"[:96]
    return line, names


def _line_of(filename: str, number: int) -> str:
    import linecache

    text = linecache.getline(filename, number).strip()
    return f": {text}" if text else ""


def _codes(answer: Any) -> Iterator[CodeType]:
    """All code objects of a function or of the methods of a class, functions in them included."""
    todo: list[Any] = []
    for base in _bases(answer):
        members = list(vars(base).values()) if isinstance(base, type) else [base]
        for member in members:
            for part in (member, getattr(member, "fget", None), getattr(member, "__func__", None)):
                while part is not None:
                    todo.append(getattr(part, "__code__", None))
                    part = getattr(part, "__wrapped__", None)
    while todo:
        code = todo.pop()
        if isinstance(code, CodeType) and is_learners(code.co_filename):
            yield code
            todo += code.co_consts


def _in_the_course(trace: TracebackType | None) -> bool:
    """Whether it happened inside the engine, and not in a line of the block itself."""
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(trace)]
    engine = f"{COURSE}/engine"
    return any(name.replace("\\", "/").startswith(engine.replace("\\", "/")) for name in frames)
