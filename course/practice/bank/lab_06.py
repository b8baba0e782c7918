"""Lab 06, continuous batching: the parts of a scheduler's round, and a fault that waits for one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from random import Random
from typing import Any

from course.engine import scheduler as parts
from course.engine.kv_manager import KVManager
from course.engine.request import Request
from course.engine.sampling_params import SamplingParams
from course.engine.scheduler import Scheduler, SchedulerConfig, Step
from course.practice.compare import Parting
from course.practice.exercise import Exercise, Inputs, Probe
from course.practice.guard import Unusable
from course.practice.guess import how_far

# ---- A day at the server ------------------------------------------------------------------------
#
# All probes of the scheduler's parts play days: requests come, rounds go by, and after the part
# under test has done its work the log gets a line. The other parts are the engine's. Requests are
# [name, prompt, output] in tokens; more is said by name:
#   budgets    what `serve_running` is given in each round (the last one for all later rounds)
#   admission  what `admit_waiting` is given in a round, where not what is left
#   late       the round in which a request comes      samples  of one prompt
#   ends       output token that is an end of sequence aborted  between schedule and update
#   common     so many tokens begin every prompt; with the prefix cache on
EOS = 2


def _day(*requests: list, pool: int, budget: int = 8, block_size: int = 4, **more: Any) -> Inputs:
    day: Inputs = {"requests": list(requests), "pool": pool, "block_size": block_size}
    return {**day, "budget": budget, "seats": 8, "rounds": 12, **more}


class Server:
    """A scheduler and those who come to it."""

    def __init__(self, day: Inputs):
        self.day = day
        caching = day.get("common", 0) > 0
        manager = KVManager(day["pool"], day["block_size"], caching, day.get("watermark", 0.0))
        config = SchedulerConfig(day["seats"], day["budget"], day.get("chunked", True))
        self.scheduler = Scheduler(config, manager)
        self.requests: dict[str, Request] = {}
        self.number = 0  # of the round
        self.left = 0

    def begin(self) -> Step:
        self.number += 1
        for place, (name, prompt, output) in enumerate(self.day["requests"]):
            if self.day.get("late", {}).get(name, 1) != self.number:
                continue
            common = min(self.day.get("common", 0), prompt)
            ids = [*range(50, 50 + common), *range(1000 * (place + 1), 1000 * (place + 1) + prompt)]
            samples = self.day.get("samples", {}).get(name, 1)
            params = SamplingParams(max_tokens=output, n=samples)
            request = Request(name, ids[:prompt], params, eos_token_id=EOS)
            self.scheduler.add(request)
            self.requests |= {r.request_id: r for r in (request, *request.children)}
        return Step()

    @property
    def budget(self) -> int:
        budgets = self.day.get("budgets", [self.day["budget"]])
        return budgets[min(self.number, len(budgets)) - 1]

    @property
    def admission(self) -> int:
        return self.day.get("admission", {}).get(str(self.number), self.left)

    def serve(self, step: Step, part: Callable = parts.serve_running) -> Any:
        answer = part(self.scheduler, step, self.budget)
        self.left = self.budget - sum(row[2] for row in rows_of(step))
        return answer

    def admit(self, step: Step, part: Callable = parts.admit_waiting) -> Any:
        return part(self.scheduler, step, self.admission)

    def sample(self, step: Step) -> dict[str, int]:
        """Who gets a token, and which. A prompt that is not at its end is given one, too."""
        for request, start, num_tokens in step.scheduled:
            if start + num_tokens == request.num_tokens:
                step.samples += [request, *request.unforked_children]
        for number, name in self.day.get("aborted", []):
            if number == self.number:
                self.scheduler.abort(name)
        # The model does not know who was aborted while it ran: it has a token for them, too.
        asked = {r.request_id: r for r, _, _ in step.scheduled}
        asked |= {r.request_id: r for r in step.samples}
        ends = self.day.get("ends", {})
        names = list(self.requests)
        tokens = {}
        for name, request in asked.items():
            count = request.num_output_tokens + 1
            value = 10 + 100 * names.index(name) + count
            tokens[name] = EOS if ends.get(name) == count else value
        return tokens

    def update(self, step: Step, tokens: dict, part: Callable = parts.update_requests) -> Any:
        return part(self.scheduler, step, tokens)

    def finish_round(self, step: Step) -> None:
        """What is left of a round after the running ones were served."""
        self.admit(step)
        self.update(step, self.sample(step))

    # What there is to see; as text, so that a message shows the whole of it.

    def running(self) -> str:
        return names_of(self.scheduler.running)

    def waiting(self) -> str:
        return names_of(self.scheduler.waiting)

    def blocks(self) -> str:
        return _told({name: len(t) for name, t in self.scheduler.kv_manager.tables.items()})

    def each(self, what: Callable[[Request], Any]) -> str:
        return _told({name: what(request) for name, request in self.requests.items()})


def _told(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items()) or "nobody"


def names_of(requests: Iterable[Any]) -> str:
    for request in requests:
        if not isinstance(request, Request):
            raise Unusable(f"{request!r} stands where a Request should")
    return " ".join(request.request_id for request in requests) or "nobody"


def rows_of(step: Step) -> list[tuple[str, Any, Any]]:
    rows = []
    for row in step.scheduled:
        if not (isinstance(row, tuple | list) and len(row) == 3 and isinstance(row[0], Request)):
            raise Unusable(f"step.scheduled holds {row!r}, not (request, start, num_tokens)")
        if any(type(number) is not int for number in row[1:]):
            raise Unusable(f"a row of step.scheduled counts in {row[1:]!r}, not in ints")
        rows.append((row[0].request_id, row[1], row[2]))
    return rows


def _rows(step: Step, first: int = 0) -> str:
    return " ".join(f"({n}, {s}, {t})" for n, s, t in rows_of(step)[first:]) or "none"


def play(day: Inputs, one_round: Callable[[Server, Step, dict], Callable[[], None]]) -> list[dict]:
    """The log of a day. ``one_round`` does the part under test and notes what came of it; what it
    returns is the rest of the round, in which the engine may break on what it was given."""
    server, log = Server(day), []
    for _ in range(day["rounds"]):
        step, entry = server.begin(), {}
        log.append(entry)
        rest = one_round(server, step, entry)
        try:
            rest()
        except (LookupError, ValueError, TypeError, AssertionError, AttributeError) as error:
            log.append({"then the engine stops": type(error).__name__})
            break
    return log


def _describe_day(day: Inputs) -> str:
    told = ", ".join(f"{name} {prompt}+{output}" for name, prompt, output in day["requests"])
    size = f"{day['pool']} blocks of {day['block_size']}"
    budgets = day.get("budgets", [])
    told_budgets = f"budgets {', '.join(map(str, budgets))}, ..."
    more = [told_budgets if budgets else f"budget {day['budget']}"]
    door = {n: tokens for n, tokens in day.get("admission", {}).items() if tokens}
    more += [f"{tokens} for the door in round {n}" for n, tokens in door.items()]
    more += [f"{day['seats']} seats"] if day["seats"] < 8 else []
    more += ["no chunks"] if not day.get("chunked", True) else []
    more += [f"watermark {day['watermark']}"] if day.get("watermark") else []
    more += [f"{day['common']} tokens in common"] if day.get("common") else []
    more += [f"{name} comes in round {n}" for name, n in day.get("late", {}).items()]
    more += [f"{name} has {n} samples" for name, n in day.get("samples", {}).items()]
    more += [f"{name} aborted in round {n}" for n, name in day.get("aborted", [])]
    more += [f"{name} ends with token {n}" for name, n in day.get("ends", {}).items()]
    return f"{told}; {size}, {', '.join(more)}"


def _place_day(parting: Parting, day: Inputs) -> str:
    if not parting.path:
        return ""
    number, *rest = parting.path
    return f"in round {int(number) + 1}: {rest[0] if rest else 'what there is to see'}"


def _some(random: Random, count: int, prompts: int = 13, outputs: int = 9) -> list[list]:
    return [["ABCDE"[i], random.randint(1, prompts), random.randint(1, outputs)]
            for i in range(count)]  # fmt: skip


def _fitting(requests: list[list], block_size: int) -> int:
    """Blocks that the largest of them needs."""
    return max(-(-(prompt + output) // block_size) for _, prompt, output in requests)


def _roomy(random: Random) -> Inputs:
    requests = _some(random, random.randint(2, 5))
    budget = random.choice([5, 8, 13, 32])
    block_size = random.choice([1, 3, 4, 7])
    pool = sum(-(-(prompt + output) // block_size) for _, prompt, output in requests)
    late = {requests[-1][0]: random.randint(1, 6)}
    return _day(*requests, pool=pool, budget=budget, block_size=block_size, late=late)


def _crowded(random: Random) -> Inputs:
    requests = _some(random, random.randint(2, 5), outputs=14)
    block_size = random.choice([1, 2, 3, 4])
    pool = _fitting(requests, block_size) + random.randint(0, 2)
    budget = random.choice([6, 8, 32])
    return _day(*requests, pool=pool, budget=budget, block_size=block_size, rounds=24)


def _pressed(random: Random) -> Inputs:
    """A day on which somebody is surely preempted: two that do not fit together, and a third."""
    block_size = random.choice([2, 3, 4])
    outputs = [random.randint(block_size + 2, 3 * block_size) for _ in range(3)]
    requests = [[name, random.randint(1, block_size), o]
                for name, o in zip("ABC", outputs, strict=True)]  # fmt: skip
    pool = max(3, _fitting(requests, block_size))
    return _day(*requests, pool=pool, budget=random.choice([5, 16]), block_size=block_size,
                rounds=30)  # fmt: skip


A, B, C = ["A", 7, 21], ["B", 3, 24], ["C", 6, 2]  # the running example

# ---- 6.1 preempt_newest -------------------------------------------------------------------------


def _preempt(keys: tuple[str, ...]) -> Callable[[Any, Inputs], dict[str, Any]]:
    def drive(preempt_newest: Any, day: Inputs) -> dict[str, Any]:
        server = Server(day)
        for _ in range(day["rounds"]):
            step = server.begin()
            server.serve(step)
            server.finish_round(step)
        scheduler, seen = server.scheduler, {}
        for number in range(day.get("times", 1)):
            newest = scheduler.running[-1]
            newest.num_preemptions += day.get("before", 0)
            scheduler.num_preemptions += day.get("before", 0)
            victim = preempt_newest(scheduler)
            if victim is not None and not isinstance(victim, Request):
                raise Unusable(f"preempt_newest gave {victim!r}, not a Request")
            told = {
                "what it returns": None if victim is None else victim.request_id,
                "running": server.running(),
                "waiting": server.waiting(),
                "free blocks": scheduler.kv_manager.num_free,
                "blocks held": server.blocks(),
                "its tokens": f"{newest.num_prompt_tokens} prompt + {newest.output_token_ids}",
                "computed tokens": newest.num_computed_tokens,
                "cached tokens": newest.num_cached_tokens,
                "its status": str(newest.status),
                "preemptions of the request": newest.num_preemptions,
                "preemptions in all": scheduler.num_preemptions,
            }
            seen |= {(number, key): told[key] for key in told if key in keys}
        found = {_nth(number, day) + key: value for (number, key), value in seen.items()}
        if "the end of the day" in keys:
            found |= _rest_of(server)
        return found

    return drive


def _nth(number: int, day: Inputs) -> str:
    return f"call {number + 1}, " if day.get("times", 1) > 1 else ""


def _rest_of(server: Server) -> dict[str, Any]:
    """The day to its end, with the engine's own parts."""
    scheduler = server.scheduler
    try:
        while scheduler.has_work and server.number < 150:
            step = server.begin()
            server.serve(step)
            server.finish_round(step)
    except (LookupError, ValueError, TypeError, AssertionError, AttributeError) as error:
        return {"the rest of the day": f"the engine stops with {type(error).__name__}"}
    stats = scheduler.kv_manager.stats
    return {
        "output tokens at the end of the day": server.each(lambda r: r.num_output_tokens),
        "why they ended": server.each(lambda r: r.finish_reason),
        "requests counted for the hit rate": stats.num_requests,
        "hits counted": stats.hits,
    }


def _describe_preempt(day: Inputs) -> str:
    times = f", {day['times']} times" if day.get("times", 1) > 1 else ""
    rounds = day["rounds"]
    before = f", the newest {day['before']} times before" if day.get("before") else ""
    return f"{_describe_day(day)}; after {rounds} round{'s' if rounds > 1 else ''}{times}{before}"


def _place_preempt(parting: Parting, day: Inputs) -> str:
    return str(parting.path[0]) if parting.path else ""


def _running_day(random: Random) -> Inputs:
    requests = _some(random, random.randint(3, 5), prompts=9, outputs=9)
    for request in requests:
        request[2] += 3
    block_size = random.choice([1, 3, 4])
    pool = sum(-(-(prompt + output) // block_size) for _, prompt, output in requests)
    late = {requests[-1][0]: 3}
    return _day(*requests, pool=pool, budget=64, block_size=block_size, rounds=2 + (pool % 2),
                late=late)  # fmt: skip


def _cached_day(random: Random) -> Inputs:
    requests = [[n, 9 + random.randint(0, 3), random.randint(5, 9)] for n in "ABC"]
    late = {"B": 2, "C": 3}
    return _day(*requests, pool=20, budget=32, common=8, late=late, rounds=random.randint(3, 4))


def _preempt_probe(behaviour: str, *keys: str, make: Any = _running_day, **more: Any) -> Probe:
    times = {"times": more.pop("times", 1), "before": more.pop("before", 0)}
    examples = more.pop("examples", (_day(A, B, C, pool=16, rounds=3),))
    return Probe(
        behaviour,
        _preempt(keys),
        examples=tuple({**day, **times} for day in examples),
        make=lambda random: {**make(random), **times},
        describe=_describe_preempt,
        place=_place_preempt,
        **more,
    )


PREEMPT = Exercise(
    id="6.1",
    title="Take the blocks back",
    symbol="course.engine.scheduler:preempt_newest",
    points=2,
    minutes=10,
    difficulty=1,
    trials="random days",
    hints=(
        "A request is in one of two places, `running` or `waiting`, and holds blocks only in one "
        "of them. What has to change so that both stay true?",
        '"`AttributeError: \'list\' object has no attribute ...`": `running` is a list, with '
        "`pop`; `waiting` is a `deque`, which also has `appendleft`. The blocks belong to the "
        "manager: `scheduler.kv_manager.release(request)`.",
        "Take it off `running`, release its blocks, set its status and its computed count, add "
        "one to both counters, put it back in the queue, return it. Touch none of its tokens.",
    ),
    probes=(
        _preempt_probe(
            "the newest leaves, for the front of the queue", "what it returns", "running", "waiting"
        ),
        _preempt_probe("its blocks are free", "free blocks", "blocks held"),
        _preempt_probe("no token is lost, and none counts as computed", "what it returns",
                       "its tokens", "computed tokens"),
        _preempt_probe("status and counters are right", "what it returns", "its status",
                       "preemptions of the request", "preemptions in all", before=2),
        _preempt_probe("one after the other", "what it returns", "running", "waiting",
                       "blocks held", "preemptions in all", times=2),
        _preempt_probe(
            "everybody has the whole answer in the end, and no hit counts twice", "cached tokens",
            "the end of the day", make=_cached_day,
            examples=(_day(["A", 9, 6], ["B", 10, 6], pool=20, budget=32, common=8, late={"B": 2},
                           rounds=3),),
        ),
    ),
)  # fmt: skip

# ---- 6.2 serve_running --------------------------------------------------------------------------


def play_serving(serve_running: Any, day: Inputs) -> list[dict]:
    def one_round(server: Server, step: Step, entry: dict) -> Callable[[], None]:
        left = server.serve(step, serve_running)
        copies = step.copies
        if type(copies) is not list:
            raise Unusable(f"step.copies became {copies!r}; it must stay a list of pairs")
        entry |= {
            "rows": _rows(step),
            "preempted": names_of(step.preempted),
            "budget left": left,
            "blocks held": server.blocks(),
            "copies": len(copies),
            "running": server.running(),
            "waiting": server.waiting(),
        }
        return lambda: server.finish_round(step)

    return play(day, one_round)


def _chunks(random: Random) -> Inputs:
    requests = _some(random, random.randint(2, 4), prompts=30, outputs=5)
    requests[0][1] += 10
    budget = random.choice([3, 5, 7])
    pool = sum(-(-(prompt + output) // 4) for _, prompt, output in requests)
    return _day(*requests, pool=pool, budget=budget, rounds=20)


def _spent(random: Random) -> Inputs:
    """More requests run than the budget has tokens for, or some are in the middle of a prompt."""
    requests = _some(random, random.randint(3, 5), prompts=9, outputs=5)
    for request in requests:
        request[2] += 3
    budgets = [32] + [random.randint(0, 5) for _ in range(8)]
    return _day(*requests, pool=30, budget=32, budgets=budgets, rounds=9,
                admission={str(n): 0 for n in range(4, 10)})  # fmt: skip


def _several(random: Random) -> Inputs:
    """A's prompt, begun early and continued late, needs the blocks of two newer requests."""
    first = random.randint(1, 4)
    requests = [["A", 20, 3], ["B", random.randint(5, 8), 6], ["C", random.randint(5, 8), 6]]
    return _day(*requests, pool=6, budget=32, budgets=[9, 0, random.randint(17, 30), 20],
                admission={"1": first, "2": 32}, rounds=14)  # fmt: skip


def _itself(random: Random) -> Inputs:
    """The newest grows into a full pool: the older ones still have room in their last blocks."""
    output = random.randint(2, 5)
    full = 4 * random.randint(1, 3)
    requests = [["A", random.randint(1, 2), 6], ["B", full, output], ["C", 2, 2]]
    return _day(*requests, pool=1 + max(full // 4, 3), budget=32, rounds=16)


def _forked(random: Random) -> Inputs:
    prompt = random.choice([2, 3, 5, 6, 7])
    requests = [["A", prompt, random.randint(3, 6)], ["B", random.randint(1, 6), 3]]
    return _day(*requests, pool=16, budget=16, samples={"A": random.randint(2, 3)}, rounds=8)


def _serving_probe(behaviour: str, make: Any, *examples: Inputs, **more: Any) -> Probe:
    return Probe(
        behaviour,
        play_serving,
        examples=examples,
        make=make,
        cases=4,
        describe=_describe_day,
        place=_place_day,
        **more,
    )


SERVE = Exercise(
    id="6.2",
    title="Those who run",
    symbol="course.engine.scheduler:serve_running",
    points=4,
    minutes=20,
    difficulty=3,
    trials="random days",
    hints=(
        "How many tokens of this request are not computed yet? Does it matter whether they are "
        "prompt or output?",
        '"`KeyError: \'B\'` in `grow`": B has lost its table. Either you preempted B and went on '
        "to serve it (then stop: it was the newest), or you walk over a copy of `running`.",
        "An outer loop over the places in `running` while there is budget; an inner `while` that "
        "asks `grow(request, start + num_tokens)` until it is not None, preempting once a turn. "
        "`None` means no room; an empty list is good news.",
    ),
    probes=(
        _serving_probe(
            "each gets its tokens, the oldest first",
            _roomy,
            _day(A, B, C, pool=16, rounds=3),
        ),
        _serving_probe(
            "a prompt goes on where it stopped, as far as the budget goes",
            _chunks,
            _day(["A", 11, 3], ["B", 6, 2], pool=8, budget=5, rounds=5),
        ),
        _serving_probe(
            "with the budget spent, the others wait",
            _spent,
            _day(["A", 3, 5], ["B", 2, 5], ["C", 1, 5], pool=9, budget=16, budgets=[16, 2],
                 rounds=3),
        ),
        _serving_probe(
            "in a full pool the newest makes room",
            _pressed,
            _day(["A", 4, 6], ["B", 3, 6], pool=3, budget=16, rounds=8),
            _day(A, B, C, pool=12, rounds=46),
        ),
        _serving_probe(
            "as many make room as it takes",
            _several,
            _day(["A", 10, 2], ["B", 2, 5], ["C", 2, 5], pool=3, budget=16, budgets=[9, 0, 16],
                 admission={"1": 4, "2": 9}, rounds=6),
        ),
        _serving_probe(
            "the newest itself may be the one who asks",
            _itself,
            _day(["A", 1, 6], ["B", 8, 3], ["C", 2, 2], pool=3, budget=16, rounds=9),
        ),
        _serving_probe(
            "blocks to copy first are passed on",
            _forked,
            _day(["A", 6, 3], pool=8, budget=16, samples={"A": 2}, rounds=3),
        ),
        _serving_probe("days in a crowd", _crowded),
    ),
)  # fmt: skip

# ---- 6.3 admit_waiting --------------------------------------------------------------------------


def play_admission(admit_waiting: Any, day: Inputs) -> list[dict]:
    def one_round(server: Server, step: Step, entry: dict) -> Callable[[], None]:
        server.serve(step)
        served = len(step.scheduled)
        entry["tokens that are left"] = server.admission
        server.admit(step, admit_waiting)
        entry |= {
            "rows of those who come in": _rows(step, served),
            "running": server.running(),
            "waiting": server.waiting(),
            "blocks held": server.blocks(),
            "where they stand": server.each(lambda request: request.status.value),
        }
        return lambda: server.update(step, server.sample(step)) and None

    return play(day, one_round)


def _whole_prompts(random: Random) -> Inputs:
    requests = _some(random, random.randint(3, 5), prompts=11, outputs=4)
    pool = sum(-(-(prompt + output) // 4) for _, prompt, output in requests)
    return _day(*requests, pool=pool, budget=random.randint(12, 15), chunked=False, rounds=14)


def _few_seats(random: Random) -> Inputs:
    requests = _some(random, 5, prompts=4, outputs=5)
    return _day(*requests, pool=20, budget=32, seats=random.randint(1, 3), rounds=16)


def _seats_for_samples(random: Random) -> Inputs:
    requests = [["A", 5, 4], ["B", random.randint(3, 9), 4], ["C", 2, 2], ["D", 2, 2]]
    who = random.choice("ABC")
    return _day(*requests, pool=30, budget=random.choice([6, 32]), seats=random.randint(3, 4),
                samples={who: random.randint(2, 3)}, rounds=14)  # fmt: skip


def _large_head(random: Random) -> Inputs:
    """Who comes second fits in, and may not before the first."""
    large = random.randint(9, 12)
    requests = [["A", random.randint(5, 8), 7], ["B", large, 3], ["C", 1, 2], ["D", 2, 2]]
    return _day(*requests, pool=4, budget=32, rounds=18)


def _common(random: Random) -> Inputs:
    requests = [[n, 9 + random.randint(0, 6), random.randint(2, 6)] for n in "ABC"]
    late = {"B": 2, "C": random.randint(2, 4)}
    budget = random.choice([4, 6, 32])
    return _day(*requests, pool=20, budget=budget, common=8, late=late, rounds=12)


def _guarded(random: Random) -> Inputs:
    requests = _some(random, 4, prompts=9, outputs=6)
    watermark = random.choice([0.2, 0.4])
    return _day(*requests, pool=8, budget=16, watermark=watermark, rounds=20)


def _admission_probe(behaviour: str, make: Any, *examples: Inputs, **more: Any) -> Probe:
    return Probe(
        behaviour,
        play_admission,
        examples=examples,
        make=make,
        cases=4,
        describe=_describe_day,
        place=_place_day,
        **more,
    )


ADMIT = Exercise(
    id="6.3",
    title="Those who come in",
    symbol="course.engine.scheduler:admit_waiting",
    points=4,
    minutes=20,
    difficulty=3,
    trials="random days",
    hints=(
        "Three things can be short: tokens, seats, blocks. In which order must you ask, if asking "
        "for blocks already takes them?",
        '"The second in the queue gets in before the first": where a request does not fit, you '
        "`continue`; leave the loop instead. \"Blocks held: more than expected\": you ask `admit` "
        "for the whole prompt; ask for what is cached plus this step's chunk. \"`unsupported "
        "operand type(s) for +: 'int' and 'list'`\": unforked_children is a list of requests; "
        "its `len` is the number of seats.",
        "First return if anybody was preempted. Then, while there are requests and budget: look at "
        "`waiting[0]`; num_cached, num_wanted, num_tokens; return if it may not be split, has no "
        "seat, or `admit` says False; else move it over and write its row.",
    ),
    probes=(
        _admission_probe(
            "the head of the queue comes in, while there are tokens",
            _roomy,
            _day(A, B, C, pool=16, rounds=4),
        ),
        _admission_probe(
            "a long prompt comes in with a first chunk, and blocks for no more",
            _chunks,
            _day(["A", 11, 3], ["B", 6, 2], pool=8, budget=5, rounds=6),
        ),
        _admission_probe(
            "nobody overtakes the head of the queue",
            _large_head,
            _day(["A", 6, 4], ["B", 9, 2], ["C", 1, 2], pool=4, budget=32, rounds=5),
        ),
        _admission_probe(
            "without chunks a prompt waits for room for all of it",
            _whole_prompts,
            _day(["A", 5, 3], ["B", 6, 2], ["C", 2, 2], pool=8, budget=8, chunked=False, rounds=4),
            _day(["A", 4, 5], ["B", 3, 7], pool=3, budget=4, chunked=False, rounds=14),
        ),
        _admission_probe(
            "no more than there are seats",
            _few_seats,
            _day(["A", 2, 3], ["B", 2, 2], ["C", 2, 2], pool=8, budget=16, seats=2, rounds=4),
        ),
        _admission_probe(
            "samples of one prompt have their seats from the start",
            _seats_for_samples,
            _day(["A", 5, 3], ["B", 2, 2], pool=12, budget=16, seats=2, samples={"A": 2}, rounds=4),
            _day(["A", 2, 3], ["B", 5, 2], pool=12, budget=16, seats=2, samples={"B": 2}, rounds=4),
            _day(["A", 2, 4], ["B", 8, 2], ["C", 1, 1], pool=12, budget=6, seats=3,
                 samples={"B": 2}, rounds=6),
        ),
        _admission_probe(
            "what the cache holds is not computed again",
            _common,
            _day(["A", 9, 4], ["B", 11, 2], pool=12, budget=16, common=8, late={"B": 2}, rounds=3),
        ),
        _admission_probe(
            "who comes back computes prompt and output, and nobody came in before",
            _pressed,
            _day(["A", 4, 6], ["B", 3, 6], ["C", 1, 1], pool=3, budget=16, late={"C": 3},
                 rounds=10),
        ),
        _admission_probe(
            "a watermark keeps blocks free",
            _guarded,
            _day(["A", 6, 3], ["B", 5, 2], ["C", 3, 2], pool=5, budget=32, watermark=0.4, rounds=5),
        ),
    ),
)  # fmt: skip

# ---- 6.4 update_requests ------------------------------------------------------------------------


def play_update(update_requests: Any, day: Inputs) -> list[dict]:
    def one_round(server: Server, step: Step, entry: dict) -> Callable[[], None]:
        server.serve(step)
        server.admit(step)
        tokens = server.sample(step)
        entry["rows"] = _rows(step)
        finished = server.update(step, tokens, update_requests)
        if type(finished) is not list:
            raise Unusable(f"update_requests gave {finished!r}, not a list of Requests")
        entry |= {
            "finished": names_of(finished),
            "computed tokens": server.each(lambda request: request.num_computed_tokens),
            "output tokens": server.each(lambda request: request.output_token_ids),
            "why they ended": server.each(lambda request: request.finish_reason),
            "running": server.running(),
            "blocks held": server.blocks(),
        }
        if server.day.get("common"):
            entry["tokens that others would find"] = server.each(lambda r: _found(server, r))
        return lambda: None

    return play(day, one_round)


def _found(server: Server, request: Request) -> int:
    """Tokens of a request that somebody with the same tokens and one more would not compute."""
    other = Request("somebody", [*request.token_ids, 7], SamplingParams())
    return server.scheduler.kv_manager.cached_tokens(other)


def _ending(random: Random) -> Inputs:
    requests = _some(random, random.randint(2, 4), prompts=6, outputs=6)
    ends = {name: random.randint(1, 4) for name, _, _ in requests if random.random() < 0.6}
    return _day(*requests, pool=16, budget=random.choice([6, 24]), ends=ends, rounds=12)


def _together(random: Random) -> Inputs:
    """Several end in one step, side by side in the batch."""
    output = random.randint(1, 4)
    requests = [[n, random.randint(1, 5), output] for n in "ABCD"]
    requests[random.randrange(4)][2] += 2
    return _day(*requests, pool=16, budget=32, rounds=7)


def _aborting(random: Random) -> Inputs:
    requests = _some(random, 3, prompts=5, outputs=6)
    for request in requests:
        request[2] += 2
    who = random.choice("ABC")
    return _day(*requests, pool=16, budget=32, aborted=[[random.randint(1, 2), who]], rounds=5)


def _update_probe(behaviour: str, make: Any, *examples: Inputs, **more: Any) -> Probe:
    return Probe(
        behaviour,
        play_update,
        examples=examples,
        make=make,
        cases=4,
        describe=_describe_day,
        place=_place_day,
        **more,
    )


UPDATE = Exercise(
    id="6.4",
    title="What came of it",
    symbol="course.engine.scheduler:update_requests",
    points=3,
    minutes=15,
    difficulty=2,
    trials="random days",
    hints=(
        "After the step, how many tokens of a request are stored in the cache? Is the token that "
        "was just sampled among them?",
        '"`KeyError`" for a name in `tokens`: only those in step.samples get a token, and not '
        'even these if they have finished meanwhile. "Somebody is left out": do not walk over '
        "`running` while `finish` takes requests off it.",
        "Three parts, one after the other: a loop over `step.scheduled` (count, then publish), the "
        "one call that forks, a loop over `step.samples` (append, `stop_reason`, finish, note).",
    ),
    probes=(
        _update_probe(
            "what was computed is counted, and who is at the end gets a token",
            _roomy,
            _day(A, B, C, pool=16, rounds=3),
        ),
        _update_probe(
            "a chunk is not a prompt",
            _chunks,
            _day(["A", 11, 2], ["B", 3, 2], pool=8, budget=5, rounds=6),
        ),
        _update_probe(
            "who has said enough ends in the same step",
            _ending,
            _day(["A", 2, 2], ["B", 3, 4], pool=8, budget=16, ends={"B": 3}, rounds=4),
        ),
        _update_probe(
            "several may end in one step",
            _together,
            _day(["A", 2, 1], ["B", 3, 1], ["C", 1, 2], pool=8, budget=16, rounds=3),
        ),
        _update_probe(
            "who was aborted meanwhile is left alone",
            _aborting,
            _day(["A", 2, 3], ["B", 3, 3], pool=8, budget=16, aborted=[[2, "A"]], rounds=4),
        ),
        _update_probe(
            "full blocks can be found by others, and no others",
            _common,
            _day(["A", 9, 5], pool=12, budget=16, common=8, rounds=5),
            _day(["A", 11, 2], pool=12, budget=5, common=8, rounds=4),
        ),
        _update_probe(
            "samples of one prompt part before the first token",
            _forked,
            _day(["A", 6, 3], pool=8, budget=16, samples={"A": 2}, rounds=3),
            _day(["A", 6, 1], pool=8, budget=16, samples={"A": 2}, rounds=2),
        ),
        _update_probe("days in a crowd", _crowded),
    ),
)  # fmt: skip

# ---- 6.5 and 6.6: a fault that waits for a preemption -------------------------------------------

PLENTY = 200  # blocks: nobody is ever preempted


def serve_day(
    row_inputs: Callable[[Request, int, int], tuple],
    num_blocks: int,
    requests: list[tuple[int, int]],
    budget: int = 64,
) -> dict[str, list[int]]:
    """Serve requests (prompt, output) with blocks of 4 tokens; their outputs by name.

    The model is a toy: it keeps the token ids of each row at the positions that `row_inputs` gives,
    and says a number that depends on every position that it should see by then.
    """
    return _served(row_inputs, num_blocks, requests, budget)[0]


def _served(
    row_inputs: Any, num_blocks: int, requests: list, budget: int = 64
) -> tuple[dict[str, list[int]], Scheduler, list[str]]:
    """Outputs by name, the scheduler after its day, and the blocks held in each round."""
    config = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=budget)
    scheduler = Scheduler(config, KVManager(num_blocks, 4, prefix_caching=False))
    everybody = []
    for place, (prompt, output) in enumerate(requests):
        ids = range(11 * place + 1, 11 * place + 1 + prompt)
        request = Request("ABCDEFGH"[place], ids, SamplingParams(max_tokens=output))
        scheduler.add(request)
        everybody.append(request)
    stored: dict[str, dict[int, int]] = {request.request_id: {} for request in everybody}
    held = []
    while scheduler.has_work:
        step = scheduler.schedule()
        held.append(" ".join(f"{n} {len(t)}" for n, t in scheduler.kv_manager.tables.items()))
        for request in step.preempted:
            stored[request.request_id].clear()
        for request, start, num_tokens in step.scheduled:
            answer = row_inputs(request, start, num_tokens)
            if not (isinstance(answer, tuple | list) and len(answer) == 2):
                raise Unusable(f"row_inputs gave {answer!r}, not (token ids, positions)")
            token_ids, positions = answer
            stored[request.request_id].update(zip(positions, token_ids, strict=False))
        sampled = {}
        for request in step.samples:
            memory = stored[request.request_id]
            seen = sum((p + 1) * (1 + memory.get(p, -1)) for p in range(request.num_tokens))
            sampled[request.request_id] = seen % 997
        scheduler.update(step, sampled)
    outputs = {request.request_id: request.output_token_ids for request in everybody}
    return outputs, scheduler, held


def faulty_inputs(request: Request, start: int, num_tokens: int) -> tuple[list[int], list[int]]:
    """The function that stands above exercise 6.5."""
    if request.num_output_tokens == 0:
        positions = list(range(start, start + num_tokens))
        return request.token_ids[start : start + num_tokens], positions
    return request.token_ids[-1:], [request.num_tokens - 1]


def _day_of(answer: Any) -> tuple[int, list[tuple[int, int]]]:
    """The learner's day, if it is one that the server takes."""
    if type(answer) is not dict or set(answer) != {"num_blocks", "requests"}:
        raise Unusable('give {"num_blocks": ..., "requests": [(prompt, output), ...]}')
    requests = answer["requests"]
    if type(requests) not in (list, tuple) or not all(
        type(pair) in (list, tuple) and len(pair) == 2 for pair in requests
    ):
        raise Unusable("requests is a list of pairs (prompt tokens, output tokens)")
    numbers = [answer["num_blocks"], *(number for pair in requests for number in pair)]
    if any(type(number) is not int or not 1 <= number <= 100 for number in numbers):
        raise Unusable("blocks, prompts and outputs are whole numbers from 1 to 100")
    if not 1 <= len(requests) <= 8:
        raise Unusable("give at least 1 request, and at most 8")
    for prompt, output in requests:
        if prompt + output > 4 * answer["num_blocks"]:
            raise Unusable(
                f"a request of {prompt} + {output} tokens does not fit into "
                f"{answer['num_blocks']} blocks of 4, even alone; its output would be cut"
            )
    return answer["num_blocks"], [tuple(pair) for pair in requests]


def _somebody_is_preempted(answer: Any, inputs: Inputs) -> str:
    num_blocks, requests = _day_of(answer)
    _, scheduler, held = _served(faulty_inputs, num_blocks, requests)
    if scheduler.num_preemptions:
        return "somebody is preempted"
    told = list(dict.fromkeys(held))[:3]
    return f"nobody is; blocks held: {', then '.join(told)}"


def _answers_differ(answer: Any, inputs: Inputs) -> str:
    num_blocks, requests = _day_of(answer)
    with_room = serve_day(faulty_inputs, PLENTY, requests)
    if serve_day(faulty_inputs, num_blocks, requests) != with_room:
        return "the answers differ"
    return "the answers are the same as with room enough"


def _smallest(answer: Any, inputs: Inputs) -> str:
    num_blocks, requests = _day_of(answer)
    if _answers_differ(answer, inputs) != "the answers differ":
        return "first a day that goes wrong"
    total = sum(map(sum, requests))
    if len(requests) > 2:
        return f"{len(requests)} requests: fewer are enough"
    if num_blocks > 2:
        return f"a pool of {num_blocks} blocks: a smaller one is enough"
    if total > 9:
        return f"{total} tokens in all: fewer are enough"
    return "no smaller day would do"


def _of_answer(inputs: Inputs) -> str:
    return "your answer"


FAILING = Exercise(
    id="6.5",
    title="Find the bug: the smallest day that shows it",
    symbol="course.practice.answers.lab_06:failing_day",
    kind="data",
    start='failing_day = {"num_blocks": None, "requests": None}',
    points=3,
    minutes=15,
    difficulty=2,
    piece=False,
    lines=1,
    hints=(
        "For which requests is the last line of `faulty_inputs` wrong? They have output, and more "
        "than one token to compute: how does that come about?",
        '"Nobody is preempted": if two requests are never in the pool together, nobody can be '
        "thrown out. Both must be small enough to come in, and one must grow past a block while "
        "the other still runs.",
        "One request alone never preempts; a pool of one block never holds two. So: two requests "
        "in two blocks, each with a block of its own. The first fills its block and needs one "
        "more token computed; the second has said a token by then and wants another.",
    ),
    probes=(
        Probe("somebody is preempted", _somebody_is_preempted, examples=({},), describe=_of_answer),
        Probe("the answers go wrong", _answers_differ, examples=({},), describe=_of_answer),
        Probe("no smaller day would do", _smallest, examples=({},), describe=_of_answer),
    ),
)


def _one_row(row_inputs: Any, inputs: Inputs) -> dict[str, Any]:
    params = SamplingParams(max_tokens=99)
    request = Request("A", inputs["prompt"], params)
    request.token_ids += inputs["output"]
    request.num_computed_tokens = inputs["start"]
    request.num_preemptions = inputs.get("preempted", 0)
    answer = row_inputs(request, inputs["start"], inputs["num_tokens"])
    if not (isinstance(answer, tuple | list) and len(answer) == 2):
        raise Unusable(f"row_inputs gave {answer!r}, not (token ids, positions)")
    ids, positions = answer
    if isinstance(ids, int) or isinstance(positions, int):
        raise Unusable(f"row_inputs gave {answer!r}; ids and positions are lists")
    return {"token ids": list(ids), "positions": list(positions)}


def _row_of(prompt: int, output: int, start: int, num_tokens: int, **more: int) -> Inputs:
    words = [21, 35, 14, 77, 52, 90, 63, 48, 19, 86, 71, 33, 28, 95, 44, 57, 66, 12, 81, 39]
    words = [*words, *(100 + word for word in words)]
    return {
        "prompt": words[:prompt],
        "output": [500 + word for word in words[:output]],
        "start": start,
        "num_tokens": num_tokens,
        **more,
    }


def _whole_prompt(random: Random) -> Inputs:
    prompt = random.randint(2, 30)
    return _row_of(prompt, 0, 0, prompt)


def _chunk_of_prompt(random: Random) -> Inputs:
    prompt = random.randint(5, 30)
    start = random.randint(0, prompt - 3)
    return _row_of(prompt, 0, start, random.randint(1, prompt - start - 1))


def _decode(random: Random) -> Inputs:
    prompt, output = random.randint(1, 20), random.randint(1, 15)
    return _row_of(prompt, output, prompt + output - 1, 1, preempted=random.randint(0, 1))


def _resumed(random: Random) -> Inputs:
    prompt, output = random.randint(2, 20), random.randint(2, 15)
    start = random.randint(0, prompt + output - 2)
    return _row_of(prompt, output, start, random.randint(1, prompt + output - start), preempted=1)


def _row_story(inputs: Inputs) -> str:
    prompt, output = len(inputs["prompt"]), len(inputs["output"])
    again = ", preempted before" if inputs.get("preempted") else ""
    row = f"start {inputs['start']}, num_tokens {inputs['num_tokens']}"
    return f"a prompt of {prompt} and {output} output tokens{again}; {row}"


def _row_place(parting: Parting, inputs: Inputs) -> str:
    if not parting.path:
        return ""
    what, *rest = parting.path
    return f"{what}, entry {rest[0]}" if rest else str(what)


def _row_probe(behaviour: str, make: Any, *examples: Inputs) -> Probe:
    return Probe(
        behaviour,
        _one_row,
        examples=examples,
        make=make,
        describe=_row_story,
        place=_row_place,
    )


def _whole_day(row_inputs: Any, inputs: Inputs) -> dict[str, list[int]]:
    requests = [tuple(pair) for pair in inputs["requests"]]
    return serve_day(row_inputs, inputs["num_blocks"], requests, inputs["budget"])


def _day_of_pressure(random: Random) -> Inputs:
    requests = [[random.randint(1, 6), random.randint(4, 9)] for _ in range(random.randint(2, 4))]
    num_blocks = max(-(-sum(pair) // 4) for pair in requests)
    return {"num_blocks": num_blocks, "requests": requests, "budget": random.choice([4, 5, 64])}


def _describe_pressure(inputs: Inputs) -> str:
    told = ", ".join(f"{prompt}+{output}" for prompt, output in inputs["requests"])
    return f"{told}; {inputs['num_blocks']} blocks of 4, budget {inputs['budget']}"


MEND = Exercise(
    id="6.6",
    title="Find the bug: mend the row",
    symbol="course.practice.answers.lab_06:row_inputs",
    kind="mend",
    start="whoever has output is taken to decode one token",
    points=2,
    minutes=10,
    difficulty=1,
    piece=False,
    lines=2,
    trials="random rows and days",
    hints=(
        "The scheduler has said which tokens this row computes. Does the function need to know "
        "why?",
        '"The positions are off": they count within the request, so a row that starts at 5 has '
        "the positions 5, 6, ...",
        "Without `if`: one slice of `request.token_ids` and one `range`, both from `start` to "
        "`start + num_tokens`.",
    ),
    probes=(
        _row_probe("a whole prompt", _whole_prompt, _row_of(7, 0, 0, 7)),
        _row_probe("a prompt in pieces", _chunk_of_prompt, _row_of(7, 0, 3, 2),
                   _row_of(7, 0, 3, 1)),
        _row_probe("one new token", _decode, _row_of(7, 1, 7, 1)),
        _row_probe("after a preemption", _resumed, _row_of(3, 4, 0, 7, preempted=1),
                   _row_of(3, 4, 2, 3, preempted=1)),
        Probe(
            "under pressure the answers are those of a day with room",
            _whole_day,
            examples=({"num_blocks": 3, "requests": [[4, 5], [3, 6]], "budget": 64},),
            make=_day_of_pressure,
            describe=_describe_pressure,
            place=lambda parting, inputs: " ".join(
                [f"{parting.path[0]}'s output",
                 *(f"token {int(n) + 1}" for n in parting.path[1:])]) if parting.path else "",
        ),
    ),
)  # fmt: skip

# ---- 6.7 a prediction ---------------------------------------------------------------------------

# What is served, with (static seats, continuous seats). Half an hour of patience, nobody late.
CASES: dict[str, tuple[list[tuple[int, int]], int, int]] = {
    "alike": ([(1, 40)] * 200, 4, 4),
    "mixed": ([(1, 100), (1, 10), (1, 10), (1, 10)] * 150, 4, 4),
    "mixed, more seats": ([(1, 100), (1, 10), (1, 10), (1, 10)] * 150, 4, 16),
    "one token each, more seats": ([(200, 1)] * 200, 4, 16),
}


@cache
def measured_gain(case: str) -> float:
    """Tokens per second of continuous over static batching, on the clock of lesson 06."""
    from course.memory.batching import Job, run_batching

    lengths, static_seats, continuous_seats = CASES[case]
    jobs = [Job(str(i), prompt, output) for i, (prompt, output) in enumerate(lengths)]
    static = run_batching("static", jobs, static_seats)
    return run_batching("continuous", jobs, continuous_seats).throughput / static.throughput


def _near(answer: Any, inputs: Inputs) -> str:
    case = inputs["case"]
    guess = answer.get(case) if type(answer) is dict else None
    if not isinstance(guess, int | float) or isinstance(guess, bool):
        raise Unusable(f"there is no number for {case!r}")
    measured = measured_gain(case)
    if abs(guess - measured) <= 0.15 * measured:
        return "within 15 % of what is measured"
    return f"you say {guess:g} times: {how_far(guess, measured)}"


PREDICTION = Exercise(
    id="6.7",
    title="Predict, then measure: where tenfold comes from",
    symbol="course.practice.answers.lab_06:predicted_gain",
    kind="data",
    start='predicted_gain = {\n    "alike": None,\n    "mixed": None,\n'
    '    "mixed, more seats": None,\n    "one token each, more seats": None,\n}',
    points=2,
    minutes=10,
    difficulty=2,
    piece=False,
    lines=6,
    hints=(
        "A static batch of the mixed kind takes as many steps as its longest answer. How many "
        "seats compute something in each of them, in the mean?",
        '"My number for the last case is four": a step with 16 such prompts in it has 16 times '
        "200 tokens to compute. Is it as quick as a step with 4?",
        "Steps count while a step stays under 20 tokens. Static: 100 steps for four requests. "
        "Continuous: as many tokens as those four have, spread over all seats. Above 20 tokens "
        "only the number of tokens counts, and batching cannot change it.",
    ),
    probes=tuple(
        Probe(
            f"the gain: {case}",
            _near,
            examples=({"case": case},),
            describe=_of_answer,
            measured=lambda inputs: f"{measured_gain(inputs['case']):.1f}",
        )
        for case in CASES
    ),
)

EXERCISES = (PREEMPT, SERVE, ADMIT, UPDATE, FAILING, MEND, PREDICTION)
