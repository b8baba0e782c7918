"""From outcomes to a verdict: which behaviours hold, where the first one parts, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from course.practice.compare import Parting, compare
from course.practice.exercise import Alternative, Exercise, Mistake, Probe
from course.practice.run import Case, Outcome, loaded, one
from course.practice.source import variant_text

HOLDS, PARTS, UNWRITTEN, NOT_RUN = "holds", "parts", "not written", "not run"


@dataclass
class Behaviour:
    """What became of one probe. ``case`` and ``outcome``: the first that did not hold."""

    probe: Probe
    state: str = HOLDS
    case: Case | None = None
    expected: Outcome = field(default_factory=dict)
    outcome: Outcome = field(default_factory=dict)
    parting: Parting | None = None


@dataclass
class Verdict:
    """The judgement of one answer. ``mistake``: the known wrong answer that it behaves like."""

    exercise: Exercise
    behaviours: list[Behaviour]
    seed: int | str
    num_drawn: int
    error: float = 0.0
    limit: float = 0.0
    mistake: Mistake | None = None
    mistake_is_whole: bool = False  # it behaves like the mistake everywhere
    printed: str = ""

    def in_state(self, state: str) -> list[Behaviour]:
        return [b for b in self.behaviours if b.state == state]

    @property
    def first_failure(self) -> Behaviour | None:
        return next((b for b in self.behaviours if b.state in (PARTS, UNWRITTEN)), None)

    @property
    def untouched(self) -> bool:
        """Nothing is written yet."""
        return (
            not self.in_state(HOLDS) and not self.in_state(PARTS) and self.first_failure is not None
        )

    @property
    def not_run(self) -> list[Behaviour]:
        """What could not run here and would have had to."""
        return [b for b in self.in_state(NOT_RUN) if not b.probe.optional]

    @property
    def passed(self) -> bool:
        """Every behaviour was seen to hold; one that could not run here was not seen."""
        return self.first_failure is None and not self.not_run and bool(self.in_state(HOLDS))

    @property
    def num_needed(self) -> int:
        """Behaviours that count: all but the optional ones that could not run here."""
        return sum(b.state != NOT_RUN or not b.probe.optional for b in self.behaviours)

    @property
    def share(self) -> float:
        """Share of the behaviours that hold, of those that count."""
        return len(self.in_state(HOLDS)) / self.num_needed if self.num_needed else 0.0

    @property
    def points(self) -> float:
        """Points earned: in proportion to the behaviours that hold, to two decimals."""
        return round(self.exercise.points * self.share, 2)


def judge(
    exercise: Exercise,
    cases: list[Case],
    wanted: list[Outcome],
    came: list[Outcome],
    seed: int | str = "",
) -> Verdict:
    """Compare outcomes with those expected; the first that parts speaks for its behaviour."""
    behaviours = {probe.behaviour: Behaviour(probe) for probe in exercise.probes}
    drawn = sum(case.drawn for case in cases)
    verdict = Verdict(exercise, list(behaviours.values()), seed, drawn)
    for case, expected, outcome in zip(cases, wanted, came, strict=True):
        behaviour = behaviours[case.probe.behaviour]
        if behaviour.state != HOLDS:
            continue
        state, parting = PARTS, None
        if "value" in outcome and "value" in expected:
            found = compare(expected["value"], outcome["value"], case.probe.tolerance)
            parting = found.parting
            state = PARTS if parting else HOLDS
            if found.limit and (
                not verdict.limit or found.error / found.limit > verdict.error / verdict.limit
            ):
                verdict.error, verdict.limit = found.error, found.limit
        elif "unwritten" in outcome:
            state = UNWRITTEN
        elif "not_run" in outcome:
            state = NOT_RUN
        if state != HOLDS:
            behaviour.state, behaviour.case, behaviour.parting = state, case, parting
            behaviour.expected, behaviour.outcome = expected, outcome
    return verdict


def alike(one_: Outcome, other: Outcome, probe: Probe) -> bool:
    """Whether two outcomes are the same behaviour: the same value, error or endless loop."""
    if "value" in one_ and "value" in other:
        there = compare(one_["value"], other["value"], probe.tolerance).parting is None
        return there and compare(other["value"], one_["value"], probe.tolerance).parting is None
    if "error" in one_ and "error" in other:
        return one_["error"]["type"] == other["error"]["type"]
    for kind in ("unusable", "timeout", "unwritten", "not_run", "died"):
        if kind in one_ and kind in other:
            return kind not in ("unusable", "died") or one_[kind] == other[kind]
    return False


def recognise(exercise: Exercise, cases: list[Case], came: list[Outcome], verdict: Verdict) -> None:
    """Name the known mistake that the answer behaves like, if there is one, in the verdict.

    First one that agrees in every case; else one that agrees in all cases of the first behaviour
    that does not hold and of those that hold: an answer that does right what the mistake does wrong
    has not made it.
    """
    failure = verdict.first_failure
    if failure is None or failure.state != PARTS or "skipped" in failure.outcome:
        return
    known = [
        (case, outcome)
        for case, outcome in zip(cases, came, strict=True)
        if "skipped" not in outcome and "not_run" not in outcome
    ]
    # First the case that parted, where most mistakes drop out, then its behaviour, then what holds.
    # (Of a value made of several answers each is a matter of its own.)
    whole = exercise.kind != "data"
    holding = [behaviour.probe for behaviour in verdict.in_state(HOLDS)] if whole else []

    def place(pair: tuple[Case, Outcome]) -> int:
        case, _ = pair
        if case is failure.case:
            return 0
        if case.probe is failure.probe:
            return 1
        return 2 if case.probe in holding else 3

    known.sort(key=place)
    enough = sum(place(pair) < 3 for pair in known)
    # That both gave NaN says little. Then what holds must speak for it, too.
    parting = failure.parting
    vague = parting is not None and parting.why == "not finite" and len(holding) < 2
    partly = None
    for mistake, agreed in agreements(exercise, known):
        if agreed == len(known):
            verdict.mistake, verdict.mistake_is_whole = mistake, True
            return
        if agreed >= enough and not vague:
            partly = partly or mistake
    verdict.mistake = partly


def agreements(
    exercise: Exercise, pairs: list[tuple[Case, Outcome]]
) -> Iterator[tuple[Mistake, int]]:
    """Each known mistake, and in how many of these cases, from the first on, it agrees; until one
    does in all (of those after it, kernels say 0)."""
    mistakes = exercise.answers.mistakes
    if any(case.probe.risky for case, _ in pairs):
        from course.practice.apart import match_apart

        texts = [variant_text(exercise, mistake) for mistake in mistakes]
        yield from zip(mistakes, match_apart(exercise, texts, pairs, first=True), strict=True)
        return
    for mistake in mistakes:
        answer, problem = variant(exercise, mistake)
        yield mistake, 0 if problem else num_agreeing(answer, pairs)


def num_agreeing(answer: object, pairs: Iterable[tuple[Case, Outcome]]) -> int:
    """In how many cases, up to the first that does not, an answer gives these outcomes."""
    count = 0
    for case, outcome in pairs:
        limit = 3.0 if case.probe.risky else 0.5  # a kernel that comes back needs more than that
        its_own, _ = one(case, answer, limit if "timeout" in outcome else None)
        if not alike(its_own, outcome, case.probe):
            break
        count += 1
    return count


_loaded: dict[tuple[str, str, str], tuple] = {}


def variant(exercise: Exercise, which: Mistake | Alternative) -> tuple:
    """(answer, {}) of a mistake or an alternative, loaded once."""
    key = (exercise.key, type(which).__name__, which.name)
    if key not in _loaded:
        _loaded[key] = loaded(exercise, variant_text(exercise, which))
    return _loaded[key]
