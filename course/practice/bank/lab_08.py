"""Lab 08, the engine: when a request ends, one forward pass, one step, its clocks, and the race."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import cache
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any

from course.engine.request import Request
from course.engine.sampling_params import SamplingParams
from course.practice.compare import Parting, Tolerance
from course.practice.exercise import Exercise, Inputs, Probe
from course.practice.guard import Unusable
from course.practice.guess import how_far

TORCH = ("torch",)
EOS = 2

# ---- 8.1 stop_reason ----------------------------------------------------------------------------


def _call_stop(stop_reason: Any, inputs: Inputs) -> Any:
    params = SamplingParams(
        max_tokens=max(1, len(inputs["output"]), inputs.get("min_tokens", 0)),
        min_tokens=inputs.get("min_tokens", 0),
        stop_token_ids=inputs.get("stop", ()),
        ignore_eos=inputs.get("ignore_eos", False),
    )
    request = Request("A", inputs["prompt"], params, eos_token_id=inputs.get("eos", EOS))
    request.token_ids += inputs["output"]
    request.max_num_tokens = inputs["limit"]
    return stop_reason(request)


def _asked(prompt: list[int], output: list[int], limit: int | None, **more: Any) -> Inputs:
    return {"prompt": prompt, "output": output, "limit": limit, **more}


def _describe_stop(inputs: Inputs) -> str:
    told = [f"prompt {inputs['prompt']}, output {inputs['output']}"]
    told += [f"max_num_tokens {inputs['limit']}"]
    told += [f"end of sequence {inputs.get('eos', EOS)}"]
    told += [f"stop_token_ids {inputs['stop']}"] if inputs.get("stop") else []
    told += [f"min_tokens {inputs['min_tokens']}"] if inputs.get("min_tokens") else []
    told += ["ignore_eos"] if inputs.get("ignore_eos") else []
    return ", ".join(told)


def _place_stop(parting: Parting, inputs: Inputs) -> str:
    return f"with {inputs['output'][-1]} as its newest token"


def _some_output(random: Random, most: int = 9) -> list[int]:
    return [random.randint(3, 9) for _ in range(random.randint(1, most))]


def _ended(random: Random, **more: Any) -> Inputs:
    """An end of sequence, as the newest token or as an older one."""
    output = _some_output(random)
    place = random.choice([-1, -1, 0])
    output[place] = EOS
    prompt = [random.choice([EOS, 5, 6]) for _ in range(random.randint(1, 5))]
    return _asked(prompt, output, random.choice([None, 40]), **more)


def _stop_ids(random: Random) -> Inputs:
    output = _some_output(random)
    stop = random.sample(range(3, 10), 2)
    ignored = random.choice([True, False])
    return _asked([5, 6], output, random.choice([None, 40]), stop=stop, ignore_eos=ignored)


def _limited(random: Random) -> Inputs:
    prompt = [5] * random.randint(1, 6)
    output = _some_output(random)
    limit = len(prompt) + len(output) + random.choice([-1, 0, 0, 1, 2])
    return _asked(prompt, output, limit)


def _minimum(random: Random) -> Inputs:
    output = [*_some_output(random, 5), random.choice([EOS, 7])]
    minimum = max(0, len(output) + random.choice([-1, 0, 1, 6]))
    prompt = [5] * random.randint(1, 4)
    return _asked(prompt, output, None, min_tokens=minimum, stop=[7])


STOP = Exercise(
    id="8.1",
    title="When is it enough?",
    symbol="course.engine.stop_rules:stop_reason",
    points=2,
    minutes=10,
    difficulty=1,
    trials="random requests",
    hints=(
        "Which token is looked at: any of the request's, or one? Which of the conditions can hold "
        "back which others?",
        '"A request goes on for ever": with a limit that was passed already, `==` is never true '
        "again. `>=` is.",
        "Two questions, one after the other. First, if `num_output_tokens` has come to "
        "`min_tokens`: end of sequence, or a stop id? Then: is there a limit, and is it reached?",
    ),
    probes=(
        Probe(
            "the end of sequence ends it, as the newest token",
            _call_stop,
            examples=(
                _asked([5] * 7, [5, 2], 10),
                _asked([5] * 7, [5], 10),
                _asked([2, 5], [2, 6], None),
            ),
            make=_ended,
            describe=_describe_stop,
            place=_place_stop,
        ),
        Probe(
            "unless it is to be ignored",
            _call_stop,
            examples=(_asked([5] * 7, [5, 2], 10, ignore_eos=True),),
            make=lambda random: _ended(random, ignore_eos=True),
            cases=3,
            describe=_describe_stop,
            place=_place_stop,
        ),
        Probe(
            "so do stop ids, also where the end of sequence is ignored",
            _call_stop,
            examples=(
                _asked([5], [6, 7], None, stop=[7, 8], ignore_eos=True),
                _asked([5], [7, 6], None, stop=[7, 8]),
            ),
            make=_stop_ids,
            describe=_describe_stop,
            place=_place_stop,
        ),
        Probe(
            "prompt and output together have a limit",
            _call_stop,
            examples=(
                _asked([5] * 7, [5, 4, 8], 10),
                _asked([5] * 7, [5, 4], 10),
                _asked([5] * 7, [5, 4, 8, 9], 10),
                _asked([5] * 3, [4], None),
            ),
            make=_limited,
            cases=8,
            describe=_describe_stop,
            place=_place_stop,
        ),
        Probe(
            "no stop token counts before min_tokens",
            _call_stop,
            examples=(
                _asked([5], [2], None, min_tokens=2),
                _asked([5], [6, 2], None, min_tokens=2),
                _asked([5], [6, 2], None, min_tokens=3),
                _asked([5], [2], None, min_tokens=3),
            ),
            make=_minimum,
            cases=8,
            describe=_describe_stop,
            place=_place_stop,
        ),
        Probe(
            "the limit holds whatever min_tokens says",
            _call_stop,
            examples=(_asked([5] * 7, [5, 4, 2], 10, min_tokens=5),),
            describe=_describe_stop,
            place=_place_stop,
        ),
        Probe(
            "with both at once it is stop",
            _call_stop,
            examples=(_asked([5] * 7, [5, 4, 2], 10), _asked([5] * 7, [7], 8, stop=[7])),
            describe=_describe_stop,
            place=_place_stop,
        ),
    ),
)


# ---- 8.2 one forward pass -----------------------------------------------------------------------
#
# A model of two layers and 13 words, with random weights: small enough to run hundreds of steps a
# second, and every wrong key, position or order changes its words.


@cache
def _weights() -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(8)

    def rand(*size: int) -> Any:
        return torch.randn(*size, generator=generator)

    return {
        "words": 2 * rand(13, 8),
        "places": rand(64, 8),
        "q": rand(2, 8, 8),
        "k": rand(2, 8, 4),
        "v": 2 * rand(2, 8, 4),
        "out": 2 * rand(2, 8, 8),
        "head": rand(8, 13),
    }


class SmallModel:
    """A model as the runner knows it; notes for how many rows it was asked for logits."""

    def __init__(self) -> None:
        import torch

        from course.sizing import ModelShape

        self.config = SimpleNamespace(shape=ModelShape("small", 2, 2, 1, 4, 64))
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self.num_rows: list[int] = []

    def forward(self, token_ids: Any, positions: Any, attend: Any) -> Any:
        w = _weights()
        hidden = w["words"][token_ids] + w["places"][positions]
        for layer in range(2):
            q = (hidden @ w["q"][layer]).view(-1, 2, 4)
            k = (hidden @ w["k"][layer]).view(-1, 1, 4)
            v = (hidden @ w["v"][layer]).view(-1, 1, 4)
            hidden = hidden + attend(layer, q, k, v).flatten(1) @ w["out"][layer]
            hidden = hidden / hidden.pow(2).mean(-1, keepdim=True).sqrt()
        return hidden

    def logits(self, hidden: Any) -> Any:
        self.num_rows.append(len(hidden))
        return 3 * hidden @ _weights()["head"]


def _run_steps(runner_class: Any, inputs: Inputs) -> list[dict[str, Any]]:
    """Serve the requests with this runner; what each step sampled, and for how many rows."""
    from course.engine.block_pool import BlockPool
    from course.engine.kv_cache import PagedKVCache
    from course.engine.kv_manager import KVManager
    from course.engine.scheduler import Scheduler, SchedulerConfig

    order = inputs["order"]
    pool = BlockPool(len(order), order=order)
    manager = KVManager(len(order), inputs["block_size"], prefix_caching=False, pool=pool)
    scheduler = Scheduler(SchedulerConfig(8, inputs["budget"]), manager)
    model = SmallModel()
    cache = PagedKVCache(model.config.shape, len(order), inputs["block_size"])
    for tensor in (cache.keys, cache.values):
        tensor.fill_(0.7)  # what others left there
    runner = runner_class(model, cache, manager.tables, "torch")
    for name, prompt, more in inputs["requests"]:
        scheduler.add(Request(name, prompt, SamplingParams(ignore_eos=True, **more)))
    log = []
    while scheduler.has_work and len(log) < 40:
        step = scheduler.schedule()
        model.num_rows.clear()
        sampled = runner.run(step)
        if type(sampled) is not dict:
            raise Unusable(f"run gave {type(sampled).__name__}; it gives {{request id: token id}}")
        entry = {"sampled": sampled, "rows with logits": list(model.num_rows)}
        log.append(entry if inputs.get("rows") else {"sampled": sampled})
        tokens = {}
        for request in step.samples:
            token = sampled.get(request.request_id, 1)
            tokens[request.request_id] = token if type(token) is int and 0 <= token < 13 else 1
        scheduler.update(step, tokens)
    return log


def _describe_run(inputs: Inputs) -> str:
    told = []
    for name, prompt, more in inputs["requests"]:
        extra = {k: v for k, v in more.items() if k != "max_tokens"}
        more_told = "".join(f", {k} {v}" for k, v in extra.items())
        told.append(f"{name}: {len(prompt)} + {more['max_tokens']} tokens{more_told}")
    return f"{'; '.join(told)}; blocks of {inputs['block_size']}, budget {inputs['budget']}"


def _place_run(parting: Parting, inputs: Inputs) -> str:
    if not parting.path:
        return ""
    number, *rest = parting.path
    where = f"in step {int(number) + 1}"
    if len(rest) > 1 and rest[0] == "sampled":
        return f"{where}, for {rest[1]}"
    return f"{where}: {rest[0]}" if rest else where


def _request(name: str, random: Random, longest: int, **more: Any) -> list:
    prompt = [random.randint(0, 12) for _ in range(random.randint(1, longest))]
    return [name, prompt, {"max_tokens": random.randint(2, 5), **more}]


def _requests(random: Random, budget: int = 40, most: int = 3, **more: Any) -> Inputs:
    num_blocks = random.randint(20, 26)
    return {
        "order": random.sample(range(num_blocks), num_blocks),
        "block_size": random.choice([2, 3, 4]),
        "budget": budget,
        "requests": [_request(n, random, 9) for n in "ABC"[: random.randint(2, most)]],
        **more,
    }


def _sampled_twice(random: Random) -> Inputs:
    inputs = _requests(random)
    inputs["block_size"] = random.choice([3, 4])
    length = (
        inputs["block_size"] * random.randint(1, 2) + 1
    )  # so the last block is shared, not full
    prompt = [random.randint(0, 12) for _ in range(length)]
    more = {"max_tokens": 5, "n": 2, "temperature": 2.0, "seed": random.randrange(1000)}
    inputs["requests"] = [["A", prompt, more]]
    return inputs


def _dice(random: Random) -> Inputs:
    inputs = _requests(random)
    hot = {"temperature": 2.0, "seed": random.randrange(1000), "max_tokens": 5}
    inputs["requests"] = [_request("A", random, 5), _request("B", random, 5, **hot)]
    other = {**hot, "temperature": 0.7, "top_k": 3, "seed": random.randrange(1000)}
    inputs["requests"] += [_request("C", random, 5, **other)]
    random.shuffle(inputs["requests"])
    return inputs


A_RUN = {
    "order": [7, 1, 3, 0, 2, 5, 4, 6, 11, 9, 8, 10, 15, 13, 14, 12],
    "block_size": 4,
    "budget": 40,
    "requests": [
        ["A", [5, 9, 1, 7, 3, 3, 8], {"max_tokens": 3}],
        ["B", [4, 12, 6], {"max_tokens": 4}],
    ],
}
IN_PIECES = {
    **A_RUN,
    "budget": 6,
    "requests": [
        ["A", [5, 9], {"max_tokens": 4}],
        ["B", [4, 12, 6, 1, 1, 8, 2, 11, 0], {"max_tokens": 2}],
        ["C", [10, 3, 3], {"max_tokens": 2}],
    ],
}

RUNNER = Exercise(
    id="8.2",
    title="One forward pass",
    symbol="course.engine.runner:Runner",
    points=4,
    minutes=25,
    difficulty=3,
    blank=("run",),
    trials="random batches",
    hints=(
        "What must lie in memory before the model may read it? In what order do copies, writes and "
        "reads have to come?",
        '"`ValueError: 10 rows of logits, 2 params and 2 generators`": rows of the batch are '
        "tokens, and not all of them sample. `inputs.sample_rows` says which do, one for each of "
        "`step.samples`.",
        "Copies; `prepare`; `self._plan(inputs)`; a function `attend(layer, q, k, v)` that writes "
        "into `self.cache` and then asks the plan with `*self.cache.layer(layer)`; the model's "
        "`forward`; for those who sample, `logits` and `sample`.",
    ),
    probes=(
        Probe(
            "prompts and decode tokens of many requests, in one pass",
            _run_steps,
            examples=(A_RUN,),
            make=_requests,
            cases=4,
            describe=_describe_run,
            place=_place_run,
            unit="token",
            needs=TORCH,
        ),
        Probe(
            "a prompt in pieces samples nothing before its end",
            _run_steps,
            examples=(IN_PIECES,),
            make=lambda random: _requests(random, random.choice([4, 5, 6])),
            cases=4,
            describe=_describe_run,
            place=_place_run,
            unit="token",
            needs=TORCH,
        ),
        Probe(
            "each request has its own params and its own dice",
            _run_steps,
            examples=(
                {
                    **A_RUN,
                    "requests": [
                        ["A", [5, 9], {"max_tokens": 4}],
                        ["B", [4, 2, 6], {"max_tokens": 5, "temperature": 2.0, "seed": 1}],
                    ],
                },
            ),
            make=_dice,
            cases=4,
            describe=_describe_run,
            place=_place_run,
            unit="token",
            needs=TORCH,
        ),
        Probe(
            "blocks are copied before anybody writes into them",
            _run_steps,
            examples=(
                {
                    **A_RUN,
                    "requests": [
                        [
                            "A",
                            [5, 9, 1, 7, 3],
                            {"max_tokens": 5, "n": 2, "temperature": 2.0, "seed": 3},
                        ]
                    ],
                },
            ),
            make=_sampled_twice,
            cases=4,
            describe=_describe_run,
            place=_place_run,
            unit="token",
            needs=TORCH,
        ),
        Probe(
            "logits for those who sample, and for nobody else",
            _run_steps,
            examples=(
                {**IN_PIECES, "requests": [["A", [5] * 9, {"max_tokens": 2}]], "rows": True},
                {**IN_PIECES, "rows": True},
            ),
            make=lambda random: _requests(random, random.choice([3, 4]), 2, rows=True),
            cases=2,
            describe=_describe_run,
            place=_place_run,
            needs=TORCH,
        ),
    ),
)


# ---- 8.3 the step -------------------------------------------------------------------------------
#
# A real scheduler under a runner without a model, which gives the tokens that the inputs say. Who
# was called, with what, is written down.


class Interrupted(BaseException):
    """What an interrupt is to the engine: no Exception."""


class Alphabet:
    """A tokenizer whose token 5 is "f"."""

    eos_token_id = EOS

    def stream_decoder(self) -> Any:
        return SimpleNamespace(push=lambda token: chr(97 + token), flush=lambda: "")


class Told:
    """A runner that is told what comes out, and notes what it is asked."""

    def __init__(self, outputs: dict[str, list[int]], calls: list[str], fail: Inputs | None):
        from time import perf_counter

        self.outputs, self.calls, self.fail = outputs, calls, fail or {}
        self.clock, self.ended, self.number = perf_counter, 0.0, 0
        self.step: Any = None
        self.tokens: dict[str, int] = {}

    def run(self, step: Any) -> dict[str, int]:
        self.calls.append("run")
        self.number += 1
        if not step.scheduled:
            raise RuntimeError("the model was given a step in which nobody is scheduled")
        self.step = step
        if self.number == self.fail.get("run"):
            raise Interrupted if self.fail["how"] == "interrupt" else RuntimeError("out of memory")
        self.tokens = {
            request.request_id: self.outputs[request.request_id][request.num_output_tokens]
            for request in step.samples
        }
        self.ended = self.clock()
        return dict(self.tokens)

    def abandon(self) -> None:
        self.calls.append("runner abandons")

    def forget(self, request_id: str) -> None:
        self.calls.append(f"dice of {request_id} forgotten")


class Noted:
    """A recorder that keeps what it is told."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.finished: list[str] = []
        self.times_fit = True

    def step(self, rows: int, seconds: float, model_seconds: float) -> None:
        self.steps.append(rows)
        self.times_fit &= 0 <= model_seconds <= seconds

    def request_finished(self, request: Any, timing: Any, is_child: bool) -> None:
        self.finished.append(request.request_id)


def _noting_scheduler(base: type, calls: list[str], runner: Any) -> type:
    class Noting(base):
        def schedule(self) -> Any:
            calls.append("schedule")
            return super().schedule()

        def update(self, step: Any, sampled: dict[str, int]) -> Any:
            same = step is runner.step or not step.scheduled
            told = "update" if same else "update with another step"
            if same and step.scheduled and sampled != runner.tokens:
                told += f" with {sampled} in place of {runner.tokens}"
            calls.append(told)
            return super().update(step, sampled)

        def abandon(self) -> None:
            calls.append("scheduler abandons")
            super().abandon()

    return Noting


def _steps(core_class: Any, inputs: Inputs) -> Any:
    """Take steps until everybody has finished; what is looked at says ``inputs["look"]``."""
    from course.engine.block_pool import BlockPool
    from course.engine.core import Job
    from course.engine.kv_manager import KVManager
    from course.engine.scheduler import Scheduler, SchedulerConfig

    calls: list[str] = []
    outputs = {name: output for name, _, output, _ in inputs["requests"]}
    runner = Told(outputs, calls, inputs.get("fail"))
    manager = KVManager(16, 4, prefix_caching=False, pool=BlockPool(16, order=A_RUN["order"]))
    scheduler_class = _noting_scheduler(Scheduler, calls, runner)
    core = core_class.__new__(core_class)
    core.tokenizer, core.cache, core.runner = Alphabet(), None, runner
    core.scheduler = scheduler_class(SchedulerConfig(8, inputs["budget"]), manager)
    core.recorder, core.jobs, core._ids = Noted(), {}, count()
    for name, prompt, output, more in inputs["requests"]:
        params = SamplingParams(max_tokens=len(output), **more)
        request = Request(name, prompt, params, eos_token_id=EOS)
        core.scheduler.add(request)
        core.jobs[name] = Job(request, core.tokenizer)
        for child in request.children:
            core.jobs[child.request_id] = Job(child, core.tokenizer, is_child=True)
            outputs[child.request_id] = output[::-1]
    log, clocks_fit = [], True
    for _ in range(inputs.get("steps", 60)):
        if not core.scheduler.has_work and "steps" not in inputs:
            break
        del calls[:]
        try:
            finished = core.step()
        except (RuntimeError, Interrupted) as error:
            if isinstance(error, RuntimeError) and "fail" not in inputs:
                raise
            log.append({"raised": type(error).__name__, "calls": ", ".join(calls)})
            continue
        if type(finished) is not list:
            raise Unusable(f"_step gave {type(finished).__name__}; it gives a list of requests")
        ids = [request.request_id for request in finished]
        log.append({"calls": ", ".join(calls), "finished": ids})
        times = [core.jobs[name].timing.last_token for name in runner.tokens]
        clocks_fit &= all(time is not None and time >= runner.ended for time in times)
    if inputs["look"] == "calls":
        return log
    if inputs["look"] == "finished":
        return [{name: entry[name] for name in entry if name != "calls"} for entry in log]
    if inputs["look"] == "clocks":
        return {"read when the model is done": clocks_fit, "model time within the step's": (
            core.recorder.times_fit), "rows a step": core.recorder.steps}  # fmt: skip
    return {
        name: {
            "output": job.request.output_token_ids,
            "text": job.output.text,
            "why it ended": job.request.finish_reason,
            "counted as finished": core.recorder.finished.count(name),
        }
        for name, job in core.jobs.items()
    }


def _describe_steps(inputs: Inputs) -> str:
    told = []
    for name, prompt, output, more in inputs["requests"]:
        extra = "".join(f", {k} {v!r}" for k, v in more.items())
        tokens = "token" if len(prompt) == 1 else "tokens"
        told.append(f"{name}: {len(prompt)} prompt {tokens}, then {output}{extra}")
    fail = inputs.get("fail")
    end = f"; the model fails in run {fail['run']} ({fail['how']})" if fail else ""
    return f"{'; '.join(told) or 'nobody'}; budget {inputs['budget']}{end}"


def _place_steps(parting: Parting, inputs: Inputs) -> str:
    if not parting.path:
        return ""
    first, *rest = parting.path
    if isinstance(first, int):
        return f"in step {first + 1}" + (f": {rest[0]}" if rest else "")
    return f"{first}: {rest[0]}" if rest else str(first)


def _served(random: Random, look: str, budget: int = 40, most: int = 1, **more: Any) -> Inputs:
    requests = []
    for name in "ABC"[: random.randint(2, 3)]:
        prompt = [random.randint(3, 12) for _ in range(random.randint(1, 8))]
        output = [random.randint(3, 12) for _ in range(random.randint(1, 5))]
        if random.random() < 0.3:
            output[-1] = EOS
        samples = random.randint(1, most)
        requests.append([name, prompt, output, {"n": samples} if samples > 1 else {}])
    return {"requests": requests, "budget": budget, "look": look, **more}


def _stopped_by_text(random: Random) -> Inputs:
    inputs = _served(random, "finished")
    for _, _, output, more in inputs["requests"]:
        if random.random() < 0.7:
            letter = chr(97 + random.choice(output))
            more["stop"] = [letter]
    return inputs


def _failing(random: Random, how: str) -> Inputs:
    return _served(random, "calls", fail={"run": random.randint(1, 2), "how": how})


AN_A = ["A", [5, 9, 1, 7, 3, 3, 8], [4, 5, 6], {}]
A_B = ["B", [4, 12, 6], [8, EOS], {}]


def _step_probe(behaviour: str, make: Any, *examples: Inputs, cases: int = 4) -> Probe:
    return Probe(
        behaviour,
        _steps,
        examples=examples,
        make=make,
        cases=cases,
        describe=_describe_steps,
        place=_place_steps,
        needs=TORCH,
    )


CORE = Exercise(
    id="8.3",
    title="The step",
    symbol="course.engine.core:EngineCore",
    points=4,
    minutes=25,
    difficulty=3,
    blank=("_step",),
    given={"_step": (1, 2)},
    omit=("submit", "drop", "stats", "check_invariants"),
    trials="random crowds",
    hints=(
        "The lesson's engine took its step in three lines. Which of them can fail half-way, and "
        "who has to be told then?",
        '"`RuntimeError: update(step, tokens) the last step first`": a step was scheduled and '
        "nobody said that it came to nothing. What catches a failing model, and an interrupt too?",
        "`try`: schedule, read the clock as `model_started`, run if `step.scheduled`. "
        "`except BaseException`: both `abandon()`, `raise`. Then read the clock as `now`, update, "
        "add what `_deliver` gives to `finished`, and `_retire` each.",
    ),
    probes=(
        _step_probe(
            "schedule, run, update: in this order, once each",
            lambda random: _served(random, "calls"),
            {"requests": [AN_A, A_B], "budget": 40, "look": "calls"},
        ),
        _step_probe(
            "every token goes to the request that it was sampled for",
            lambda random: _served(random, "outputs", random.choice([3, 4, 5]), most=2),
            {"requests": [AN_A, A_B], "budget": 40, "look": "outputs"},
            {"requests": [["A", [5], [3, 4, 5], {"n": 2}], A_B], "budget": 40, "look": "outputs"},
            {
                "requests": [["A", [5] * 9, [4, 5], {}], ["B", [6], [7, 8, 9], {}]],
                "budget": 10,
                "look": "outputs",
            },
        ),
        _step_probe(
            "who finishes is returned in that step, by a stop string too",
            _stopped_by_text,
            {"requests": [AN_A, A_B], "budget": 40, "look": "finished"},
            {
                "requests": [["A", [5], [3, 4, 5, 6], {"stop": ["e"]}]],
                "budget": 40,
                "look": "finished",
            },
        ),
        _step_probe(
            "where nobody is scheduled the model does not run",
            None,
            {"requests": [], "budget": 40, "steps": 1, "look": "calls"},
            {"requests": [A_B], "budget": 40, "steps": 3, "look": "calls"},
        ),
        _step_probe(
            "an error of the model comes through, and the next step starts clean",
            lambda random: _failing(random, "error"),
            {
                "requests": [AN_A],
                "budget": 40,
                "fail": {"run": 1, "how": "error"},
                "look": "calls",
            },
        ),
        _step_probe(
            "so does an interrupt",
            lambda random: _failing(random, "interrupt"),
            {
                "requests": [AN_A],
                "budget": 40,
                "fail": {"run": 2, "how": "interrupt"},
                "look": "calls",
            },
            cases=2,
        ),
        _step_probe(
            "a token's time is read when the model is done",
            lambda random: _served(random, "clocks"),
            {"requests": [AN_A, A_B], "budget": 40, "look": "clocks"},
            cases=2,
        ),
    ),
)


# ---- 8.4 and 8.5 clocks -------------------------------------------------------------------------


def _play_timing(timing_class: Any, inputs: Inputs) -> list[dict[str, Any]]:
    timing = timing_class(arrival=inputs["arrival"])
    log = []
    for number in range(len(inputs["tokens"]) + 1):
        if number:
            timing.token(inputs["tokens"][number - 1])
        log.append(
            {
                "tokens": timing.num_tokens,
                "time to first token": timing.time_to_first_token,
                "time per token": timing.time_per_token,
            }
        )
    return log


def _play_token(timing_class: Any, inputs: Inputs) -> list[dict[str, Any]]:
    timing = timing_class(arrival=inputs["arrival"])
    log = []
    for now in inputs["tokens"]:
        timing.token(now)
        log.append(
            {
                "tokens": timing.num_tokens,
                "first token at": timing.first_token,
                "last token at": timing.last_token,
            }
        )
    return log


def _describe_timing(inputs: Inputs) -> str:
    return f"arrival {inputs['arrival']}, tokens at {inputs['tokens']}"


def _place_timing(parting: Parting, inputs: Inputs) -> str:
    if len(parting.path) < 2:
        return ""
    number, what = parting.path
    return f"after {number} token{'' if number == 1 else 's'}: {what}"


def _clock(random: Random) -> Inputs:
    now = round(random.uniform(5, 90), 2)
    arrival, tokens = now, []
    for _ in range(random.randint(2, 6)):
        now = round(now + random.uniform(0.01, 2.0), 3)
        tokens.append(now)
    return {"arrival": arrival, "tokens": tokens}


CLOCK = Tolerance(rtol=1e-9, atol=1e-9)

TIMING = Exercise(
    id="8.4",
    title="The clocks of a request",
    symbol="course.engine.stats:Timing",
    points=2,
    minutes=10,
    difficulty=1,
    blank=("token", "time_to_first_token", "time_per_token"),
    trials="random times",
    hints=(
        "Three tokens came. How many times did somebody wait from one token to the next?",
        '"`TypeError: unsupported operand`": before its first token a request has no time for it. '
        "Say None, and calculate only when there is something to calculate with.",
        "The first token's time is kept once, the last one's every time. First minus arrival; last "
        "minus first, over one less than the tokens.",
    ),
    probes=(
        Probe(
            "it keeps the first and the last reading, and counts",
            _play_token,
            examples=({"arrival": 10.0, "tokens": [10.5, 10.6, 10.9]},),
            make=_clock,
            cases=2,
            describe=_describe_timing,
            place=lambda parting, inputs: _place_timing(
                replace(parting, path=(int(parting.path[0]) + 1, *parting.path[1:])), inputs
            ),
            tolerance=CLOCK,
        ),
        Probe(
            "first token and time per token",
            _play_timing,
            examples=(
                {"arrival": 10.0, "tokens": [10.5, 10.6, 10.9]},
                {"arrival": 3.0, "tokens": [3.25]},
            ),
            make=_clock,
            cases=8,
            describe=_describe_timing,
            place=_place_timing,
            unit="",
            tolerance=CLOCK,
        ),
        Probe(
            "None where there is nothing to measure",
            _play_timing,
            examples=({"arrival": 3.0, "tokens": []},),
            describe=_describe_timing,
            place=_place_timing,
            tolerance=CLOCK,
        ),
        Probe(
            "a clock may stand at 0",
            _play_timing,
            examples=({"arrival": -1.0, "tokens": [0.0, 2.0, 3.0]},),
            describe=_describe_timing,
            place=_place_timing,
            tolerance=CLOCK,
        ),
    ),
)


def _timings(inputs: Inputs) -> list[Any]:
    from course.engine.stats import Timing

    made = []
    for arrival, *tokens in inputs["requests"]:
        first, last = (tokens[0], tokens[-1]) if tokens else (None, None)
        made.append(Timing(arrival, first, last, len(tokens)))
    return made


def _call_throughput(throughput: Any, inputs: Inputs) -> Any:
    rate = throughput(_timings(inputs))
    return float(rate) if type(rate) is int else rate  # 0 for 0.0 is no fault


def _describe_requests(inputs: Inputs) -> str:
    told = [f"one comes at {r[0]}, tokens at {r[1:]}" for r in inputs["requests"]]
    return "; ".join(told) or "no requests"


def _crowd(random: Random) -> Inputs:
    requests = []
    for _ in range(random.randint(2, 4)):
        timing = _clock(random)
        requests.append([timing["arrival"], *timing["tokens"]])
    return {"requests": requests}


THROUGHPUT = Exercise(
    id="8.5",
    title="Throughput",
    symbol="course.practice.answers.lab_08:throughput",
    points=1,
    minutes=10,
    difficulty=2,
    piece=False,
    trials="random crowds",
    hints=(
        "Two requests ran side by side for 10 s and got 50 tokens each. How many tokens came per "
        "second?",
        '"Mine is too small, or twice too large": rates of single requests cannot be averaged or '
        "added. Their times overlap, and not evenly.",
        "All tokens, over the time from the first arrival to the last token. `min` and `max`, over "
        "those that have a token at all.",
    ),
    probes=(
        Probe(
            "all tokens over the whole time",
            _call_throughput,
            examples=(
                {"requests": [[10.0, 11.0, 12.0, 14.0], [12.0, 13.0, 18.0]]},
                {"requests": [[0.0, 1.0, 9.0], [2.0, 3.0, 4.0]]},
                {"requests": [[0.0, 2.0, 4.0]]},
            ),
            make=_crowd,
            describe=_describe_requests,
            tolerance=CLOCK,
        ),
        Probe(
            "requests one after another, with a pause",
            _call_throughput,
            examples=({"requests": [[0.0, 1.0, 2.0], [8.0, 9.0, 10.0]]},),
            describe=_describe_requests,
            tolerance=CLOCK,
        ),
        Probe(
            "a request without a token has none to count",
            _call_throughput,
            examples=({"requests": [[0.0, 1.0, 2.0], [5.0]]}, {"requests": [[1.0], [0.0, 4.0]]}),
            describe=_describe_requests,
            tolerance=CLOCK,
        ),
        Probe(
            "no tokens, no throughput",
            _call_throughput,
            examples=({"requests": []}, {"requests": [[1.0]]}),
            describe=_describe_requests,
            tolerance=CLOCK,
        ),
    ),
)


# ---- 8.6 a prediction ---------------------------------------------------------------------------

RACE_BLOCKS, RACE_BLOCK_SIZE, RACE_LIMIT = 64, 8, 256
TOLERANCE = 0.2


@cache
def race_lengths() -> tuple[tuple[int, int], ...]:
    """(prompt, output) tokens of the race's 28 requests: Azure conversations, shortened."""
    from course.workload.lengths import mix

    drawn = mix("azure_conv_2023").sample(28, seed=2)
    return tuple((max(1, prompt // 32), max(1, output // 32)) for prompt, output in drawn)


@cache
def measured_batch(policy: str) -> float:
    """How many requests run after a step, in the mean, while others wait. No model is needed."""
    from course.engine.kv_manager import KVManager
    from course.engine.scheduler import Scheduler, SchedulerConfig
    from course.engine.slab import SlabKVManager

    if policy == "slab":
        manager = SlabKVManager(RACE_BLOCKS, RACE_BLOCK_SIZE, RACE_LIMIT)
    else:
        manager = KVManager(RACE_BLOCKS, RACE_BLOCK_SIZE, prefix_caching=False, watermark=0.01)
    scheduler = Scheduler(SchedulerConfig(64, 1024, max_model_len=RACE_LIMIT), manager)
    for number, (prompt, output) in enumerate(race_lengths()):
        params = SamplingParams(max_tokens=output, ignore_eos=True)
        scheduler.add(Request(str(number), range(prompt), params))
    running: deque[int] = deque()
    while scheduler.has_work:
        step = scheduler.schedule()
        scheduler.update(step, {request.request_id: 1 for request in step.samples})
        if scheduler.waiting:
            running.append(len(scheduler.running))
    return sum(running) / len(running)


def _near_ratio(answer: Any, inputs: Inputs) -> str:
    if not isinstance(answer, int | float) or isinstance(answer, bool):
        raise Unusable("predicted_ratio is a number: so many times as many")
    measured = measured_batch("pages") / measured_batch("slab")
    if abs(answer - measured) <= TOLERANCE * measured:
        return "within 20 % of what is measured"
    return f"you say {answer:g} times as many: {how_far(answer, measured)}"


def _of_answer(inputs: Inputs) -> str:
    return ""


RATIO = Exercise(
    id="8.6",
    title="Predict, then measure: pages against slabs",
    symbol="course.practice.answers.lab_08:predicted_ratio",
    kind="data",
    start="predicted_ratio = None  # a number: with pages so many times as many run together",
    points=2,
    minutes=10,
    difficulty=2,
    piece=False,
    lines=1,
    hints=(
        "What does a request take of the pool in the one server, and what in the other?",
        '"I get the number of requests": that depends on the pool. Asked is how many times as many '
        "as with slabs, and there the pool cancels.",
        "A slab is as long as the limit. With blocks a request holds about what it has written. So "
        "the limit, over a request's mean length.",
    ),
    probes=(
        Probe(
            "pages : slabs, at equal memory",
            _near_ratio,
            examples=({},),
            describe=_of_answer,
            measured=lambda inputs: f"{measured_batch('pages') / measured_batch('slab'):.1f}",
        ),
    ),
)

EXERCISES = (STOP, RUNNER, CORE, TIMING, THROUGHPUT, RATIO)
