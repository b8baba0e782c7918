"""Lab 08: right answers that are not in the engine, wrong ones, other right ones, and why."""

from __future__ import annotations

from course.engine.stats import Timing
from course.practice.exercise import Alternative, Answers, Mistake

# ---- Answers that exist only for this lab -------------------------------------------------------


def throughput(timings: list[Timing]) -> float:
    """Output tokens per second, all requests together.

    The time runs from the first arrival to the last token, of all requests that have a token;
    0.0 if none has.

    A comes at 10.0 and gets 3 tokens, the last at 14.0. B comes at 12.0 and gets 2, the last at
    18.0. That is 5 tokens in 8 seconds:

    >>> throughput([Timing(10.0, 11.0, 14.0, 3), Timing(12.0, 13.0, 18.0, 2)])
    0.625
    """
    served = [timing for timing in timings if timing.last_token is not None]
    if not served:
        return 0.0
    begin = min(timing.arrival for timing in served)
    end = max(timing.last_token for timing in served if timing.last_token is not None)
    return sum(timing.num_tokens for timing in served) / (end - begin)


predicted_ratio = 6.4

# ---- 8.1 ----------------------------------------------------------------------------------------

_MINIMUM = "if request.num_output_tokens >= params.min_tokens:"
_IS_EOS = "is_eos = token_id == request.eos_token_id and not params.ignore_eos"
_IF_STOP = "if is_eos or token_id in params.stop_token_ids:"
_LIMIT = "if request.max_num_tokens is not None and request.num_tokens >= request.max_num_tokens:"

STOP = Answers(
    mistakes=(
        Mistake(
            "only the output is measured against the limit",
            "`max_num_tokens` is for prompt and output together: compare `num_tokens` with it.",
            edit=(("request.num_tokens >= request", "request.num_output_tokens >= request"),),
        ),
        Mistake(
            "the limit is taken to be max_tokens alone",
            "The model or the pool may allow less than the user asked for. `max_num_tokens` is the "
            "least of all three, and counts the prompt too.",
            edit=((_LIMIT, "if request.num_output_tokens >= params.max_tokens:"),),
        ),
        Mistake(
            "the request must come to its limit exactly",
            "Once past it, `==` is never true again, and the request goes on for ever. `>=` costs "
            "nothing.",
            edit=(("request.num_tokens >= request", "request.num_tokens == request"),),
        ),
        Mistake(
            "one token more than the limit is allowed",
            "At `max_num_tokens` it is full: `>=` and not `>`.",
            edit=(("request.num_tokens >= request", "request.num_tokens > request"),),
        ),
        Mistake(
            "ignore_eos is not looked at",
            "Benchmarks set it, so that all requests run to their length.",
            edit=((" and not params.ignore_eos", ""),),
        ),
        Mistake(
            "ignore_eos is taken to switch off stop ids as well",
            "It is about the model's own end of sequence. The stop ids are the user's.",
            edit=(
                (
                    _IF_STOP,
                    "if is_eos or (token_id in params.stop_token_ids and not params.ignore_eos):",
                ),
            ),
        ),
        Mistake(
            "min_tokens is not looked at",
            "Somebody wants at least so many tokens: a stop token before that does not count.",
            edit=((_MINIMUM, "if True:"),),
        ),
        Mistake(
            "the newest token is not counted for min_tokens",
            "It is part of the output already when this is asked: `>=`.",
            edit=((_MINIMUM, "if request.num_output_tokens > params.min_tokens:"),),
        ),
        Mistake(
            "min_tokens holds back the limit too",
            "It holds back stop tokens. Past the limit there is no room in the cache, whatever "
            "anybody wants.",
            edit=(
                (
                    _MINIMUM,
                    "if request.num_output_tokens < params.min_tokens:\n"
                    "        return None\n    if True:",
                ),
            ),
        ),
        Mistake(
            "the prompt is counted for min_tokens",
            "It is a minimum of output: `num_output_tokens`.",
            edit=((_MINIMUM, "if request.num_tokens >= params.min_tokens:"),),
        ),
        Mistake(
            "every token of the output is looked at",
            "An end of sequence that was ignored, or came too early, is behind us. Look at the "
            "newest token.",
            edit=(
                (
                    _IS_EOS,
                    "is_eos = request.eos_token_id in request.output_token_ids\n"
                    "        is_eos = is_eos and not params.ignore_eos",
                ),
            ),
        ),
        Mistake(
            "the limit is asked before the stop tokens",
            'Where both hold, the answer is complete: that is the better news, and it is "stop".',
            code="""
            def stop_reason(request: Request) -> str | None:
                params, token_id = request.params, request.token_ids[-1]
                limit = request.max_num_tokens
                if limit is not None and request.num_tokens >= limit:
                    return "length"
                if request.num_output_tokens >= params.min_tokens:
                    is_eos = token_id == request.eos_token_id and not params.ignore_eos
                    if is_eos or token_id in params.stop_token_ids:
                        return "stop"
                return None
            """,
        ),
        Mistake(
            "a missing limit is not thought of",
            "`max_num_tokens` may be None: then nothing but a stop token ends the request.",
            edit=(("request.max_num_tokens is not None and ", ""),),
        ),
    ),
    alternatives=(
        Alternative(
            "all stop ids in one set",
            code="""
            def stop_reason(request):
                enders = set(request.params.stop_token_ids)
                if not request.params.ignore_eos:
                    enders.add(request.eos_token_id)
                enough = request.num_output_tokens >= request.params.min_tokens
                if enough and request.token_ids[-1] in enders:
                    return "stop"
                limit = request.max_num_tokens
                return "length" if limit is not None and request.num_tokens >= limit else None
            """,
        ),
        Alternative(
            "the reason is found first and told last",
            code="""
            def stop_reason(request):
                reason, params = None, request.params
                if request.max_num_tokens is not None:
                    if len(request.token_ids) >= request.max_num_tokens:
                        reason = "length"
                newest = request.token_ids[-1]
                is_stop = newest in params.stop_token_ids
                is_stop = is_stop or (not params.ignore_eos and newest == request.eos_token_id)
                if is_stop and len(request.output_token_ids) >= params.min_tokens:
                    reason = "stop"
                return reason
            """,
        ),
        Alternative(
            "an endless limit",
            edit=(
                (
                    _LIMIT,
                    "limit = request.max_num_tokens\n"
                    '    limit = float("inf") if limit is None else limit\n'
                    "    if not request.num_tokens < limit:",
                ),
            ),
        ),
    ),
    why="""
    Two questions in the order of their news: is the answer complete, and if not, is there room for
    more? `min_tokens` belongs to the first and must not reach into the second. The limit is
    compared with `>=`, so that a request which has somehow come past it ends all the same: an
    equality that is missed once holds a request, and its blocks, for ever.
    """,
    shown="the request must come to its limit exactly",
    equivalent={
        "stop_reason: return None -> (dropped)": "a function without a return gives None",
    },
)

# ---- 8.2 ----------------------------------------------------------------------------------------

_COPY = """        if step.copies:
            self.cache.copy_blocks(step.copies)
"""
_ATTEND = """            self.cache.write(layer, k, v, slots)
            return plan.attend(q, *self.cache.layer(layer))
"""
_NOBODY = (
    "        if not step.samples:  # every chunk of this step stops short of its prompt's end\n"
    "            return {}\n"
)
_LOGITS = "logits = self.model.logits(hidden[inputs.sample_rows])"
_PARAMS = "[request.params for request in step.samples],"
_DICE = "[self._generator(request) for request in step.samples],"
_RESULT = "return {r.request_id: t for r, t in zip(step.samples, token_ids, strict=True)}"

RUNNER = Answers(
    mistakes=(
        Mistake(
            "blocks are copied after the forward pass",
            "By then the new token's key and value are in the copy, and the old block is copied "
            "over them. And attention has read a block that was not filled yet.",
            edit=((_COPY, ""), (_NOBODY, _COPY + _NOBODY)),
        ),
        Mistake(
            "the scheduler's copies are not made",
            "A sample that parted from its parent got a fresh block. What lay in the shared one "
            "must be copied into it before anything is written.",
            edit=((_COPY, ""),),
        ),
        Mistake(
            "attention reads before keys and values are written",
            "A token sees itself: its own key and value must lie in the cache when its layer "
            "attends.",
            edit=(
                (
                    _ATTEND,
                    "            out = plan.attend(q, *self.cache.layer(layer))\n"
                    "            self.cache.write(layer, k, v, slots)\n"
                    "            return out\n",
                ),
            ),
        ),
        Mistake(
            "all layers are written to the first one's place",
            "Each layer has keys and values of its own: `write(layer, ...)`, and `layer(layer)` to "
            "read.",
            edit=(("self.cache.write(layer, k", "self.cache.write(0, k"),),
        ),
        Mistake(
            "every scheduled request gets a token, its prompt computed or not",
            "In the middle of its prompt a request knows its next token: it is in the prompt. "
            "`step.samples` names those who need one.",
            edit=(
                (
                    _LOGITS,
                    "logits = self.model.logits(hidden[inputs.query_start_loc[1:].long() - 1])",
                ),
                (_PARAMS, "[request.params for request, _, _ in step.scheduled],"),
                (_DICE, "[self._generator(request) for request, _, _ in step.scheduled],"),
                (
                    _RESULT,
                    "return {r.request_id: t for (r, _, _), t in zip(step.scheduled, token_ids)}",
                ),
            ),
        ),
        Mistake(
            "tokens are handed to the scheduled requests in order",
            "A prompt with several samples is scheduled once and needs a token for each; one that "
            "is not at its end needs none. Tokens belong to `step.samples`.",
            edit=(
                (
                    _RESULT,
                    "return {r.request_id: t for (r, _, _), t in zip(step.scheduled, token_ids)}",
                ),
            ),
        ),
        Mistake(
            "a request samples from its first row",
            "That is the word after its first token of this step. The new one comes after its "
            "*last*: `inputs.sample_rows`.",
            edit=(
                (
                    _LOGITS,
                    "first = inputs.query_start_loc[:-1].long()\n"
                    "        logits = self.model.logits(hidden[first[step.sample_rows]])",
                ),
            ),
        ),
        Mistake(
            "logits are computed for every token and most are thrown away",
            "The result is right. But the vocabulary is the widest matrix of the model, and a "
            "prompt of 1,000 tokens needs one row of it: choose rows first.",
            edit=((_LOGITS, "logits = self.model.logits(hidden)[inputs.sample_rows]"),),
        ),
        Mistake(
            "the model is asked for logits of no row at all",
            "When nobody samples in a step there is nothing to compute. Return {} before.",
            edit=((_NOBODY, ""),),
        ),
        Mistake(
            "all samples are drawn with the first request's params",
            "One batch serves many users: each has a temperature, a top_k and a top_p of its own.",
            edit=((_PARAMS, "[step.samples[0].params] * len(step.samples),"),),
        ),
        Mistake(
            "the likeliest token is taken, whatever the params say",
            "That is temperature 0. Others have asked for dice: `sample` takes the params and the "
            "generator of each request.",
            edit=(
                (
                    "token_ids = sample(\n            logits,\n            "
                    + _PARAMS
                    + "\n            "
                    + _DICE
                    + "\n        )",
                    "token_ids = logits.argmax(dim=-1).tolist()",
                ),
            ),
        ),
        Mistake(
            "every token gets new dice",
            "Made anew from the seed, they show the same number each time. `self._generator` keeps "
            "a request's dice from step to step.",
            edit=(
                (
                    _DICE,
                    "[\n"
                    "                torch.Generator().manual_seed(request.params.seed or 0)\n"
                    "                for request in step.samples\n"
                    "            ],",
                ),
            ),
        ),
        Mistake(
            "positions are counted over the whole batch",
            "A position counts within its request. `inputs.positions` has them.",
            edit=(
                (
                    "self.model.forward(inputs.token_ids, inputs.positions, attend)",
                    "self.model.forward(\n"
                    "            inputs.token_ids, torch.arange(len(inputs.token_ids)), attend\n"
                    "        )",
                ),
            ),
        ),
        Mistake(
            "tokens are kept by request, and not by its id",
            "`update` looks them up by `request.request_id`.",
            edit=((_RESULT, "return dict(zip(step.samples, token_ids, strict=True))"),),
        ),
        Mistake(
            "the tokens are returned without saying whose they are",
            "`update` takes a dict: {request id: token id}.",
            edit=((_RESULT, "return token_ids"),),
        ),
    ),
    alternatives=(
        Alternative(
            "slots as they come, copies without asking",
            edit=(
                (_COPY, "        self.cache.copy_blocks(step.copies)\n"),
                ("slots = self.cache.check_slots(inputs.slots)", "slots = inputs.slots"),
            ),
        ),
        Alternative(
            "one sample after another",
            edit=(
                (
                    _LOGITS
                    + "\n        token_ids = sample(\n            logits,\n            "
                    + _PARAMS
                    + "\n            "
                    + _DICE
                    + "\n        )\n        "
                    + _RESULT,
                    "logits = self.model.logits(hidden[inputs.sample_rows])\n"
                    "        tokens = {}\n"
                    "        for row, request in enumerate(step.samples):\n"
                    "            dice = self._generator(request)\n"
                    "            one = sample(logits[row : row + 1], [request.params], [dice])\n"
                    "            tokens[request.request_id] = one[0]\n"
                    "        return tokens",
                ),
            ),
        ),
        Alternative(
            "attention by the cache's own tensors",
            edit=(
                (
                    _ATTEND,
                    "            self.cache.write(layer, k, v, slots)\n"
                    "            keys, values = self.cache.keys[layer], self.cache.values[layer]\n"
                    "            return plan.attend(q, keys, values)\n",
                ),
            ),
        ),
    ),
    why="""
    Everything hangs on one order: copies, then for each layer write before read, then the rows that
    sample. The copies come first because the writes of this very step made them necessary. A layer
    writes before it attends because a token is part of its own past.

    Rows and requests are different things. A prompt of a hundred tokens is a hundred rows and at
    most one sample; a parent and its children sample from the same row. The scheduler has said who
    samples, and `prepare` in which row.
    """,
    shown="blocks are copied after the forward pass",
    shown_part="run",
    equivalent={
        "Runner.run: if step.copies: -> if True:": "an empty list of copies copies nothing",
        "Runner.run: return {r.request_id: t for r, t in zip(step.samples, token_ids, "
        "strict=True)} -> return {r.request_id: t for r, t in zip(step.samples, token_ids, "
        "strict=False)}": "`sample` gives one token for each row, so there are as many",
    },
)

# ---- 8.3 ----------------------------------------------------------------------------------------

_TRY = """        try:
            step = self.scheduler.schedule()
            model_started = perf_counter()
            tokens = self.runner.run(step) if step.scheduled else {}
        except BaseException:
            self.scheduler.abandon()
            self.runner.abandon()
            raise
"""
_NOW = "        now = perf_counter()\n"
_UPDATE = "        finished = self.scheduler.update(step, tokens)\n"
_DELIVER = "        finished += self._deliver(tokens, now)\n"
_RETIRE = """        for request in finished:
            self._retire(request)
"""

CORE = Answers(
    mistakes=(
        Mistake(
            "the books are updated before the model has run",
            "`update` takes the tokens of this step, and those come from the model.",
            edit=(
                (
                    "            tokens = self.runner.run(step) if step.scheduled else {}\n",
                    "            guesses = dict.fromkeys((r.request_id for r in step.samples), 5)\n"
                    "            finished = self.scheduler.update(step, guesses)\n"
                    "            tokens = self.runner.run(step) if step.scheduled else {}\n",
                ),
                (_UPDATE, ""),
            ),
        ),
        Mistake(
            "the model runs although nobody is scheduled",
            "A step may be empty: its batch has no token, and there is nothing to ask the model. "
            "Look at `step.scheduled` first.",
            edit=((" if step.scheduled else {}", ""),),
        ),
        Mistake(
            "an empty step is left without its update",
            "The scheduler waits for an `update` after every `schedule`, an empty step's too. Give "
            "it {}; only the model is left out.",
            edit=(
                (
                    "            model_started = perf_counter()\n",
                    "            if not step.scheduled:\n"
                    "                return []\n"
                    "            model_started = perf_counter()\n",
                ),
            ),
        ),
        Mistake(
            "tokens are handed to the scheduled requests in order",
            "The runner says in its dict whose each token is. A prompt with several samples is "
            "scheduled once and has a token for each.",
            edit=(
                (
                    _UPDATE,
                    "        ids = [request.request_id for request, _, _ in step.scheduled]\n"
                    "        tokens = dict(zip(ids, tokens.values()))\n"
                    "        missing = [r for r in step.samples if r.request_id not in tokens]\n"
                    "        tokens |= {r.request_id: 0 for r in missing}\n" + _UPDATE,
                ),
            ),
        ),
        Mistake(
            "the text is handed out before the books are updated",
            "Only `update` finds out whether a token ended its request. Before it, the token that "
            "means the end looks like part of the text.",
            edit=(
                (_UPDATE, ""),
                (
                    _DELIVER,
                    "        stopped = self._deliver(tokens, now)\n"
                    "        finished = self.scheduler.update(step, tokens) + stopped\n",
                ),
            ),
        ),
        Mistake(
            "who was ended by a stop string is not counted as finished",
            "`_deliver` returns them: they have finished in this step like the others.",
            edit=((_DELIVER, "        self._deliver(tokens, now)\n"),),
        ),
        Mistake(
            "nobody gets a token",
            "`update` keeps the engine's books. Texts and clocks are the jobs', and those get "
            "theirs by `_deliver`.",
            edit=((_DELIVER, ""),),
        ),
        Mistake(
            "who has finished is not retired",
            "Their last text stays unsaid, their dice stay in memory, and no statistics know of "
            "them: `_retire` each.",
            edit=((_RETIRE, ""),),
        ),
        Mistake(
            "nobody is told when the model fails",
            "The error comes through, and the scheduler still waits for the step's `update`: the "
            "next one cannot begin. Whoever holds a part of it must `abandon()` it.",
            edit=(
                (
                    _TRY,
                    "        step = self.scheduler.schedule()\n"
                    "        model_started = perf_counter()\n"
                    "        tokens = self.runner.run(step) if step.scheduled else {}\n",
                ),
            ),
        ),
        Mistake(
            "an error of the model is swallowed",
            "Whoever waits for the answer must be told. Tidy up, then `raise`.",
            edit=(("            raise\n", "            return []\n"),),
        ),
        Mistake(
            "a failed step stays open",
            "The scheduler waits for its `update` and refuses to schedule again. Tell it to "
            "abandon the step.",
            edit=(("            self.scheduler.abandon()\n", ""),),
        ),
        Mistake(
            "the runner is not told that the step failed",
            "It may have thrown dice already. Thrown again without `abandon()`, they show other "
            "numbers, and the seed means nothing.",
            edit=(("            self.runner.abandon()\n", ""),),
        ),
        Mistake(
            "an interrupt is not thought of",
            "Ctrl-C is a `KeyboardInterrupt`, which is no `Exception`. Catch `BaseException`, tidy "
            "up, raise it again.",
            edit=(("except BaseException:", "except Exception:"),),
        ),
        Mistake(
            "the clock of the tokens is read before the model runs",
            "A token comes when the model is done. Read before, every token seems to come a step "
            "earlier than it does.",
            edit=((_NOW, "        now = model_started\n"),),
        ),
        Mistake(
            "a second step is scheduled to update the first",
            "`schedule` takes blocks and makes a new step each time. Keep the one that the model "
            "ran.",
            edit=(
                (
                    _UPDATE,
                    "        finished = self.scheduler.update(self.scheduler.schedule(), tokens)\n",
                ),
            ),
        ),
    ),
    alternatives=(
        Alternative(
            "the good way in an else",
            edit=(
                (
                    _TRY + _NOW + _UPDATE + _DELIVER + _RETIRE,
                    """        try:
            step = self.scheduler.schedule()
            model_started = perf_counter()
            tokens = {}
            if step.scheduled:
                tokens = self.runner.run(step)
            now = perf_counter()
        except BaseException:
            for each in (self.scheduler, self.runner):
                each.abandon()
            raise
        else:
            finished = self.scheduler.update(step, tokens)
            finished.extend(self._deliver(tokens, now))
            for request in finished:
                self._retire(request)
""",
                ),
            ),
        ),
        Alternative(
            "a flag and a finally",
            edit=(
                (
                    _TRY,
                    """        is_done = False
        try:
            step = self.scheduler.schedule()
            model_started = perf_counter()
            tokens = self.runner.run(step) if step.scheduled else {}
            is_done = True
        finally:
            if not is_done:
                self.scheduler.abandon()
                self.runner.abandon()
""",
                ),
            ),
        ),
        Alternative(
            "two lists, put together at the end",
            edit=(
                (
                    _UPDATE + _DELIVER + _RETIRE,
                    """        ended = self.scheduler.update(step, tokens)
        stopped = self._deliver(tokens, now)
        finished = [*ended, *stopped]
        [self._retire(request) for request in finished]
""",
                ),
            ),
        ),
    ),
    why="""
    Schedule, run, update: the scheduler decides on what it knows, the model computes, and only then
    are the books true again. Between schedule and update the engine is in the middle of something,
    and whatever goes wrong there, an interrupt too, must be undone by those who hold a part of it:
    blocks and positions by the scheduler, dice by the runner.

    Text comes after the books, since only they know whether a token belongs to the text or ends it.
    """,
    shown="an interrupt is not thought of",
    shown_part="_step",
)

# ---- 8.4 ----------------------------------------------------------------------------------------

_FIRST = "        if self.first_token is None:\n            self.first_token = now\n"
_EACH = "return (self.last_token - self.first_token) / (self.num_tokens - 1)"
_FEW = "if self.num_tokens < 2 or self.first_token is None or self.last_token is None:"
_TO_FIRST = "return None if self.first_token is None else self.first_token - self.arrival"

TIMING = Answers(
    mistakes=(
        Mistake(
            "every token is taken for the first",
            "Keep the first one's time when it comes, and leave it then.",
            edit=((_FIRST, "        self.first_token = now\n"),),
        ),
        Mistake(
            "the time is divided by the number of tokens",
            "Three tokens have two times between them. The wait for the first is another measure.",
            edit=((_EACH, "return (self.last_token - self.first_token) / self.num_tokens"),),
        ),
        Mistake(
            "the wait for the first token is counted into the time per token",
            "It holds queue and prompt, and would hide how fast the answer runs. Begin at the "
            "first token.",
            edit=((_EACH, "return (self.last_token - self.arrival) / self.num_tokens"),),
        ),
        Mistake(
            "the time per token begins at the arrival",
            "From there to the first token is the other measure, with queue and prompt in it. "
            "Begin at the first token.",
            edit=((_EACH, "return (self.last_token - self.arrival) / (self.num_tokens - 1)"),),
        ),
        Mistake(
            "tokens per second are given and not seconds per token",
            "It is a time: seconds over tokens.",
            edit=((_EACH, "return (self.num_tokens - 1) / (self.last_token - self.first_token)"),),
        ),
        Mistake(
            "a single token is thought to have a time per token",
            "There is no second token to measure to. It would be 0 seconds, over 0 tokens.",
            edit=(
                ("self.num_tokens < 2 or ", ""),
                (
                    _EACH,
                    "return (self.last_token - self.first_token) / max(1, self.num_tokens - 1)",
                ),
            ),
        ),
        Mistake(
            "a request without a token is not thought of",
            "Before the first token there is nothing to subtract from: None.",
            edit=((_TO_FIRST, "return self.first_token - self.arrival"),),
        ),
        Mistake(
            "the moment of the first token is given, not the time to it",
            "A clock's reading alone says nothing: subtract the arrival.",
            edit=((_TO_FIRST, "return self.first_token"),),
        ),
        Mistake(
            "tokens are not counted",
            "The mean needs to know how many there were.",
            edit=(("        self.num_tokens += 1\n", ""),),
        ),
        Mistake(
            "a first token at time 0 is taken for none",
            "0.0 counts as False where it is asked, as does None. Ask `is None`.",
            edit=((_FIRST, "        self.first_token = self.first_token or now\n"),),
        ),
        Mistake(
            "the last token's time is only kept once",
            "It moves on with each token: set it every time.",
            edit=(
                (
                    "        self.last_token = now\n",
                    "        if self.last_token is None:\n            self.last_token = now\n",
                ),
            ),
        ),
    ),
    alternatives=(
        Alternative(
            "by the count of tokens",
            edit=(
                (_FIRST, "        if self.num_tokens == 0:\n            self.first_token = now\n"),
            ),
        ),
        Alternative(
            "a running mean",
            code="""
            @dataclass
            class Timing:
                arrival: float = field(default_factory=perf_counter)
                first_token: float | None = None
                last_token: float | None = None
                num_tokens: int = 0
                mean: float = 0.0

                def token(self, now):
                    if self.num_tokens == 0:
                        self.first_token = now
                    else:
                        self.mean += (now - self.last_token - self.mean) / self.num_tokens
                    self.last_token = now
                    self.num_tokens += 1

                @property
                def time_to_first_token(self):
                    if self.num_tokens:
                        return self.first_token - self.arrival

                @property
                def time_per_token(self):
                    return self.mean if self.num_tokens > 1 else None
            """,
        ),
        Alternative(
            "all times kept",
            code="""
            class Timing:
                def __init__(self, arrival=None, first_token=None, last_token=None, num_tokens=0):
                    self.arrival = perf_counter() if arrival is None else arrival
                    self.times = []

                def token(self, now):
                    self.times.append(now)

                num_tokens = property(lambda self: len(self.times))
                first_token = property(lambda self: self.times[0] if self.times else None)
                last_token = property(lambda self: self.times[-1] if self.times else None)

                @property
                def time_to_first_token(self):
                    return self.times[0] - self.arrival if self.times else None

                @property
                def time_per_token(self):
                    gaps = [b - a for a, b in zip(self.times, self.times[1:])]
                    return sum(gaps) / len(gaps) if gaps else None
            """,
        ),
    ),
    why="""
    Two clocks for two complaints: "it does not begin" and "it is slow". The first counts from the
    arrival, so that waiting in the queue is in it. The second begins at the first token, so that it
    is not. n tokens have n - 1 times between them. Where there is nothing to measure the answer is
    None and not 0: a mean over requests would take a 0 for a very fast one.
    """,
    shown="the time is divided by the number of tokens",
    shown_part="time_per_token",
)

# ---- 8.5 ----------------------------------------------------------------------------------------

_SERVED = "served = [timing for timing in timings if timing.last_token is not None]"
_BEGIN = "begin = min(timing.arrival for timing in served)"
_END = "end = max(timing.last_token for timing in served if timing.last_token is not None)"
_RATE = "return sum(timing.num_tokens for timing in served) / (end - begin)"

THROUGHPUT = Answers(
    mistakes=(
        Mistake(
            "the requests' own rates are averaged",
            "That is how fast one user is served. Many at once get many times that together.",
            edit=(
                (
                    _RATE,
                    "rates = [t.num_tokens / (t.last_token - t.arrival) for t in served]\n"
                    "    return sum(rates) / len(rates)",
                ),
            ),
        ),
        Mistake(
            "the requests' own rates are added up",
            "They did not all run all the time: with a pause between two requests the sum counts "
            "seconds that nobody used.",
            edit=(
                (_RATE, "return sum(t.num_tokens / (t.last_token - t.arrival) for t in served)"),
            ),
        ),
        Mistake(
            "every request's time is counted, also where they overlap",
            "Two requests side by side for 10 seconds took 10 seconds together, not 20.",
            edit=(
                (
                    _RATE,
                    "spent = sum(t.last_token - t.arrival for t in served)\n"
                    "    return sum(t.num_tokens for t in served) / spent",
                ),
            ),
        ),
        Mistake(
            "the time begins at the first token",
            "Somebody waited before it: the clock runs from the first arrival.",
            edit=((_BEGIN, "begin = min(timing.first_token for timing in served)"),),
        ),
        Mistake(
            "the time ends with the last arrival's request",
            "Who came last need not finish last: take the latest of all last tokens.",
            edit=((_END, "end = max(served, key=lambda timing: timing.arrival).last_token"),),
        ),
        Mistake(
            "the time ends with the last request of the list",
            "Who stands last in the list need not finish last: take the latest of all last tokens.",
            edit=((_END, "end = served[-1].last_token"),),
        ),
        Mistake(
            "the time begins with the first request of the list",
            "The list is in no order that was promised: `min` over all arrivals.",
            edit=((_BEGIN, "begin = served[0].arrival"),),
        ),
        Mistake(
            "requests are counted and not tokens",
            "That is another measure, and it favours short answers.",
            edit=((_RATE, "return len(served) / (end - begin)"),),
        ),
        Mistake(
            "requests without a token are not left out",
            "They have no last token, and their arrival is not the beginning of anything yet.",
            edit=(
                (_SERVED, "served = timings"),
                (_END, "end = max(timing.last_token for timing in served)"),
            ),
        ),
        Mistake(
            "nobody is thought to be always somebody",
            "`min` of nothing is an error. Without a token the throughput is 0.0.",
            edit=(("    if not served:\n        return 0.0\n", ""),),
        ),
        Mistake(
            "seconds per token are given",
            "It is a rate: tokens over seconds.",
            edit=((_RATE, "return (end - begin) / sum(timing.num_tokens for timing in served)"),),
        ),
    ),
    alternatives=(
        Alternative(
            "in one loop",
            code="""
            def throughput(timings):
                tokens, begin, end = 0, float("inf"), float("-inf")
                for timing in timings:
                    if timing.num_tokens:
                        tokens += timing.num_tokens
                        begin, end = min(begin, timing.arrival), max(end, timing.last_token)
                return tokens / (end - begin) if tokens else 0.0
            """,
        ),
        Alternative(
            "sorted",
            code="""
            def throughput(timings):
                good = sorted((t for t in timings if t.num_tokens > 0), key=lambda t: t.arrival)
                if len(good) == 0:
                    return 0.0
                last = sorted(t.last_token for t in good)[-1]
                return sum([t.num_tokens for t in good]) / (last - good[0].arrival)
            """,
        ),
        Alternative(
            "with NumPy",
            code="""
            import numpy as np


            def throughput(timings):
                rows = [(t.arrival, t.last_token, t.num_tokens) for t in timings if t.num_tokens]
                if not rows:
                    return 0.0
                arrivals, ends, counts = np.array(rows).T
                return float(counts.sum() / (ends.max() - arrivals.min()))
            """,
        ),
    ),
    why="""
    Throughput is the machine's measure, not a user's: everything that came out, over the time that
    it took. Rates of single requests overlap in time and can be neither averaged nor added. And the
    clock runs from an arrival, since waiting is time that the machine could have used.
    """,
    shown="the requests' own rates are averaged",
)

# ---- 8.6 ----------------------------------------------------------------------------------------


def _ratio(text: str) -> str:
    return f"predicted_ratio = {text}\n"


RATIO = Answers(
    mistakes=(
        Mistake(
            "equal memory is taken to hold equally many",
            "Of a slab most stays empty, and nobody else can have it. Blocks are taken when they "
            "are needed.",
            code=_ratio("1"),
        ),
        Mistake(
            "a request is taken to hold a single block",
            "That would be 8 tokens. These requests are longer.",
            code=_ratio("32"),
        ),
        Mistake(
            "the answer's tokens are left out",
            "They lie in the same blocks as the prompt's. Near, but a little too good.",
            code=_ratio("256 / 33.2"),
        ),
        Mistake(
            "the prompt's tokens are left out",
            "Keys and values of the prompt are kept too, and these prompts are longer than the "
            "answers.",
            code=_ratio("256 / 5.9"),
        ),
        Mistake(
            "every request is taken to be as long as the longest",
            "Then slabs of that size would do. Blocks win by what most requests do not need: take "
            "the mean.",
            code=_ratio("256 / 127"),
        ),
        Mistake(
            "slabs are divided by pages",
            "How many times as many run with *pages*? Their number goes over the line.",
            code=_ratio("39.1 / 256"),
        ),
        Mistake(
            "the number of requests is given, and not the ratio",
            "Two slabs fit. So many run with pages: how many times two is that?",
            code=_ratio("512 / 39.1"),
        ),
        Mistake(
            "the block size is given",
            "Blocks are small so that little is lost at a table's end. How many requests fit "
            "depends on how long they are.",
            code=_ratio("8"),
        ),
    ),
    alternatives=(
        Alternative("limit over mean length", code=_ratio("256 / (33.2 + 5.9)")),
        Alternative("in whole blocks", code=_ratio("32 / 5.25")),
        Alternative("half of the answer, in the mean", code=_ratio("256 / (33.2 + 5.9 / 2)")),
        Alternative("a rough estimate", code=_ratio("6")),
    ),
    why="""
    Let a pool have P slots. Slabs fit P / limit times, requests with blocks about P / mean length
    times, so the ratio is limit / mean length, whatever the pool: `256 / 39 = 6.5`. Measured is a
    little less. Blocks are held whole, 3.5 slots of the last one empty in the mean; long answers
    stay longer than short ones; and what is left over in the pool is seldom just what the next one
    needs. Hence a tolerance of 20 %. On the other side half of an answer is not written yet, in the
    mean.

    The ratio is a fact about these lengths and this limit, not about paging. With a limit of 128
    it would be half.
    """,
    shown="equal memory is taken to hold equally many",
)

ANSWERS = {
    "stop_reason": STOP,
    "Runner": RUNNER,
    "EngineCore": CORE,
    "Timing": TIMING,
    "throughput": THROUGHPUT,
    "predicted_ratio": RATIO,
}
