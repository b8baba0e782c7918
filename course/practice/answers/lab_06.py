"""Lab 06: right answers that are not in the engine, wrong ones, other right ones, and why."""

from __future__ import annotations

from textwrap import indent

from course.engine.request import Request
from course.practice.exercise import Alternative, Answers, Mistake
from course.practice.source import clean

# ---- Answers that exist only for this lab -------------------------------------------------------

failing_day = {"num_blocks": 2, "requests": [(4, 2), (1, 2)]}


def row_inputs(request: Request, start: int, num_tokens: int) -> tuple[list[int], list[int]]:
    """What the model reads for one row of a step: token ids, and their positions in the request.

    The row computes the request's tokens `start` to `start + num_tokens - 1`, whether they are
    prompt or output.

    Example: A has the prompt [5, 6, 7] and the output [9]. The row (A, 1, 3) gives
    ([6, 7, 9], [1, 2, 3]).
    """
    positions = list(range(start, start + num_tokens))
    return request.token_ids[start : start + num_tokens], positions


predicted_gain = {
    "alike": 1,
    "mixed": 3.1,
    "mixed, more seats": 12.3,
    "one token each, more seats": 1,
}

# ---- 6.1 ----------------------------------------------------------------------------------------

PREEMPT = Answers(
    mistakes=(
        Mistake(
            "the oldest is taken",
            "The oldest must come forward, or two requests could throw each other out for ever. "
            "The newest stands at the end of `running`.",
            edit=(("scheduler.running.pop()", "scheduler.running.pop(0)"),),
        ),
        Mistake(
            "it goes to the end of the queue",
            "Everybody who waits came after it. At the end they would all go before it, and it has "
            "lost its blocks already.",
            edit=(("waiting.appendleft(", "waiting.append("),),
        ),
        Mistake(
            "it keeps its count of computed tokens",
            "The blocks with those keys and values are somebody else's now. Nothing of it is "
            "computed any more.",
            edit=(("    victim.num_computed_tokens = 0\n", ""),),
        ),
        Mistake(
            "one token is left counted as computed",
            "While a request runs the two counts differ by one. Now its cache is empty: the count "
            "is 0.",
            edit=(("victim.num_computed_tokens = 0", "victim.num_computed_tokens = 1"),),
        ),
        Mistake(
            "its blocks are not given back",
            "Then it was thrown out for nothing: whoever needed a block still has none. "
            "`kv_manager.release(request)` gives back all of its table.",
            edit=(("    scheduler.kv_manager.release(victim)\n", ""),),
        ),
        Mistake(
            "its output is thrown away",
            "The user has read those tokens. Only keys and values are lost, and they can be "
            "computed again from the ids.",
            edit=(
                (
                    "    victim.num_computed_tokens = 0\n",
                    "    victim.num_computed_tokens = 0\n"
                    "    victim.token_ids = victim.prompt_token_ids\n",
                ),
            ),
        ),
        Mistake(
            "its output is made part of its prompt",
            "It looks like a new request with a longer prompt, and its answer then begins in the "
            "middle. `token_ids` holds both already; leave the border where it is.",
            edit=(
                (
                    "    victim.num_computed_tokens = 0\n",
                    "    victim.num_computed_tokens = 0\n"
                    "    victim.num_prompt_tokens = victim.num_tokens\n",
                ),
            ),
        ),
        Mistake(
            "it gets the status of a request that was never served",
            "WAITING means: not admitted yet. When it comes back, its own old blocks would be "
            "counted as hits of the prefix cache. PREEMPTED tells the two apart.",
            edit=(("RequestStatus.PREEMPTED", "RequestStatus.WAITING"),),
        ),
        Mistake(
            "its status stays as it was",
            "It does not run any more. Whoever ends it now would look for it among the running.",
            edit=(("    victim.status = RequestStatus.PREEMPTED\n", ""),),
        ),
        Mistake(
            "its count of cached tokens is forgotten",
            "num_cached_tokens says what the prefix cache saved at its first admission. That "
            "stays true.",
            edit=(
                (
                    "    victim.num_computed_tokens = 0\n",
                    "    victim.num_computed_tokens = victim.num_cached_tokens = 0\n",
                ),
            ),
        ),
        Mistake(
            "only the scheduler counts the preemption",
            "The request has a count of its own, which says how unlucky it was.",
            edit=(("    victim.num_preemptions += 1\n", ""),),
        ),
        Mistake(
            "the request's count is set to 1",
            "It may not be the first time. A count is added to.",
            edit=(("    victim.num_preemptions += 1\n", "    victim.num_preemptions = 1\n"),),
        ),
        Mistake(
            "only the request counts the preemption",
            "The scheduler's count is the first thing that an operator looks at when a server "
            "slows down.",
            edit=(("    scheduler.num_preemptions += 1\n", ""),),
        ),
        Mistake(
            "it stays among the running",
            "`running[-1]` looks at the last one, `pop()` takes it off. Now it stands in both "
            "places.",
            edit=(("scheduler.running.pop()", "scheduler.running[-1]"),),
        ),
        Mistake(
            "it is not put back in the queue",
            "It is in no list now, so nobody will ever serve it: its user waits for ever.",
            edit=(("    scheduler.waiting.appendleft(victim)\n", ""),),
        ),
        Mistake(
            "nothing is returned",
            "The caller must know whom it was: perhaps the very request that asked for room.",
            edit=(
                (
                    "    scheduler.waiting.appendleft(victim)\n    return victim",
                    "    scheduler.waiting.appendleft(victim)",
                ),
            ),
        ),
    ),
    alternatives=(
        Alternative(
            "looked at first, moved last",
            code="""
            def preempt_newest(scheduler, /):
                newest = scheduler.running[-1]
                newest.status = RequestStatus.PREEMPTED
                newest.num_computed_tokens = 0
                newest.num_preemptions = newest.num_preemptions + 1
                scheduler.num_preemptions = scheduler.num_preemptions + 1
                scheduler.kv_manager.release(newest)
                scheduler.running.remove(newest)
                scheduler.waiting.insert(0, newest)
                return newest
            """,
        ),
        Alternative(
            "with slices",
            code="""
            def preempt_newest(scheduler):
                *scheduler.running[:], victim = scheduler.running
                scheduler.waiting.extendleft([victim])
                scheduler.kv_manager.release(victim)
                victim.num_computed_tokens, victim.status = 0, RequestStatus.PREEMPTED
                for counted in (victim, scheduler):
                    counted.num_preemptions += 1
                return victim
            """,
        ),
        Alternative(
            "the list cut with del",
            edit=(
                (
                    "victim = scheduler.running.pop()",
                    "victim = scheduler.running[-1]\n    del scheduler.running[-1]",
                ),
            ),
        ),
    ),
    why="""
    A preempted request is a waiting one with a past. Its blocks go, so nothing counts as computed;
    its token ids stay, so everything can be computed again, output and all. That is why `token_ids`
    is one list: whoever comes back is a request with more tokens to compute than others, and no
    special case.

    It goes to the front, because `running` and `waiting` together are in order of arrival, and
    stay so. And it is PREEMPTED, not WAITING: its return is no second visit for the hit rate.
    """,
    shown="it gets the status of a request that was never served",
)

# ---- 6.2 ----------------------------------------------------------------------------------------

_NUM = "num_tokens = min(request.num_tokens - start, budget)"
_GROW = "scheduler.kv_manager.grow(request, start + num_tokens)"
_VICTIM = (
    "            if victim is request:  # everybody older is served, and nobody newer is left\n"
    "                return budget\n"
)


def _serving(body: str) -> str:
    head = "def serve_running(scheduler, step, budget):\n"
    return head + indent(clean(body), "    ") + "\n"


SERVE = Answers(
    mistakes=(
        Mistake(
            "the newest is served first",
            "Whoever is served last is thrown out first, and that must be the newest.",
            edit=(
                (
                    "request = scheduler.running[num_served]",
                    "request = scheduler.running[len(scheduler.running) - 1 - num_served]",
                ),
            ),
        ),
        Mistake(
            "whoever has output is taken to decode one token",
            "After a preemption a request has output, and all of it to compute again. Do not ask "
            "what a token is; ask how many are not computed.",
            edit=(
                (
                    _NUM,
                    "num_left = 1 if request.num_output_tokens else request.num_tokens - start\n"
                    "        num_tokens = min(num_left, budget)",
                ),
            ),
        ),
        Mistake(
            "only prompts are gone on with",
            "num_prompt_tokens is not all of it: the newest token was said in the last step and is "
            "to be computed in this one. num_tokens counts both.",
            edit=((_NUM, _NUM.replace("request.num_tokens", "request.num_prompt_tokens")),),
        ),
        Mistake(
            "a row may be longer than the budget",
            "The budget is the promise that a step does not get longer. What does not fit comes in "
            "the next step.",
            edit=((_NUM, "num_tokens = request.num_tokens - start"),),
        ),
        Mistake(
            "the row begins with the newest token",
            "True for a decode. A prompt in pieces goes on at num_computed_tokens, which is right "
            "for both.",
            edit=(
                ("start = request.num_computed_tokens", "start = request.num_tokens - 1"),
                (
                    _NUM,
                    "num_tokens = min(request.num_tokens - request.num_computed_tokens, budget)",
                ),
            ),
        ),
        Mistake(
            "room is asked for this row's tokens only",
            "`grow` wants the number of tokens that must have room in all, those before this row "
            "included.",
            edit=((_GROW, _GROW.replace("start + num_tokens", "num_tokens")),),
        ),
        Mistake(
            "room is asked for the token after this one too",
            "A block is taken when it is needed and not before. The next token is computed in the "
            "next step.",
            edit=((_GROW, _GROW.replace("num_tokens)", "num_tokens + 1)")),),
        ),
        Mistake(
            "room is asked for the whole request",
            "Of a long prompt this step writes one chunk. Blocks for the rest would stand empty "
            "while others are thrown out for them.",
            edit=((_GROW, _GROW.replace("start + num_tokens", "request.num_tokens")),),
        ),
        Mistake(
            "whoever asks is thrown out",
            "That can be the oldest, who then comes back and asks again. The newest makes room; it "
            "may be the one who asks.",
            code=_serving("""
            num_served = 0
            while num_served < len(scheduler.running) and budget > 0:
                request = scheduler.running[num_served]
                start = request.num_computed_tokens
                num_tokens = min(request.num_tokens - start, budget)
                copies = scheduler.kv_manager.grow(request, start + num_tokens)
                if copies is None:
                    scheduler.running.append(scheduler.running.pop(num_served))
                    step.preempted.append(preempt_newest(scheduler))
                    continue
                step.copies += copies
                step.scheduled.append((request, start, num_tokens))
                budget -= num_tokens
                num_served += 1
            return budget
            """),
        ),
        Mistake(
            "one makes room, and the request is left out of this step",
            "The room is there now: ask again, in this step. And one may not be enough.",
            code=_serving("""
            for request in scheduler.running:
                if budget == 0:
                    break
                start = request.num_computed_tokens
                num_tokens = min(request.num_tokens - start, budget)
                copies = scheduler.kv_manager.grow(request, start + num_tokens)
                if copies is None:
                    step.preempted.append(preempt_newest(scheduler))
                    continue
                step.copies += copies
                step.scheduled.append((request, start, num_tokens))
                budget -= num_tokens
            return budget
            """),
        ),
        Mistake(
            "at most one makes room",
            "A chunk can need several blocks, and the newest may have held only one. Ask again "
            "until there is room.",
            edit=(
                (
                    "while (copies := scheduler.kv_manager.grow(request, start + num_tokens)) is "
                    "None:",
                    "if (copies := scheduler.kv_manager.grow(request, start + num_tokens)) is "
                    "None:",
                ),
                (
                    _VICTIM,
                    _VICTIM + f"            copies = {_GROW}\n"
                    "            if copies is None:\n"
                    "                return budget\n",
                ),
            ),
        ),
        Mistake(
            "nobody makes room: who finds none waits for the next step",
            "If all of them wait, nothing is ever freed, and the server stands still.",
            code=_serving("""
            for request in scheduler.running:
                start = request.num_computed_tokens
                num_tokens = min(request.num_tokens - start, budget)
                if num_tokens == 0:
                    break
                copies = scheduler.kv_manager.grow(request, start + num_tokens)
                if copies is None:
                    continue
                step.copies += copies
                step.scheduled.append((request, start, num_tokens))
                budget -= num_tokens
            return budget
            """),
        ),
        Mistake(
            "a request that was thrown out is asked for once more",
            "It was the newest itself. It holds no blocks and is no longer among the running: it "
            "gets no row.",
            edit=((_VICTIM, ""),),
        ),
        Mistake(
            "the loop walks over a copy of `running`",
            "A copy still holds those who were thrown out in this step: they have no blocks, and "
            "get no row. Walk over `running` itself, which gets shorter at its end, or look "
            "whether a request is still in it.",
            code=_serving("""
            for request in list(scheduler.running):
                if budget == 0:
                    break
                start = request.num_computed_tokens
                num_tokens = min(request.num_tokens - start, budget)
                while (copies := scheduler.kv_manager.grow(request, start + num_tokens)) is None:
                    victim = preempt_newest(scheduler)
                    step.preempted.append(victim)
                    if victim is request:
                        return budget
                step.copies += copies
                step.scheduled.append((request, start, num_tokens))
                budget -= num_tokens
            return budget
            """),
        ),
        Mistake(
            "the preempted are not noted",
            "The step must say who lost their blocks: in such a step nobody is let in.",
            edit=(("            step.preempted.append(victim)\n", ""),),
        ),
        Mistake(
            "the copies are forgotten",
            "A block that two samples share is copied before one of them writes into it. Without "
            "the copy the new block holds somebody's old tokens.",
            edit=(("        step.copies += copies\n", ""),),
        ),
        Mistake(
            "an empty list of copies is taken for no room",
            "`[]` is good news: there is room, and nothing to copy. Only None means no room: ask "
            "`is None`.",
            edit=((f"(copies := {_GROW}) is None:", f"not (copies := {_GROW}):"),),
        ),
        Mistake(
            "`while not copies` throws everybody out, the request itself as well",
            "`grow` gave `[]`, which means room and nothing to copy. Only None means no room: ask "
            "`is None`. And stop when the victim is the request itself.",
            code=_serving("""
            num_served = 0
            while num_served < len(scheduler.running) and budget > 0:
                request = scheduler.running[num_served]
                start = request.num_computed_tokens
                num_tokens = min(request.num_tokens - start, budget)
                copies = scheduler.kv_manager.grow(request, start + num_tokens)
                while not copies:
                    step.preempted.append(preempt_newest(scheduler))
                    copies = scheduler.kv_manager.grow(request, start + num_tokens)
                step.copies += copies
                step.scheduled.append((request, start, num_tokens))
                budget -= num_tokens
                num_served += 1
            return budget
            """),
        ),
        Mistake(
            "each list of copies is put in as one entry",
            "step.copies is one list of pairs (source, destination) for the whole step: `+=` or "
            "`extend`, not `append`.",
            edit=(("step.copies += copies", "step.copies.append(copies)"),),
        ),
        Mistake(
            "rows of no tokens are written when the budget is spent",
            "A row must compute something. Stop when nothing is left.",
            edit=((" and budget > 0", ""),),
        ),
        Mistake(
            "the budget is not made smaller",
            "Each row takes its tokens from what is left for the next, and for those who wait.",
            edit=(("        budget -= num_tokens\n", ""),),
        ),
        Mistake(
            "requests are counted off the budget, and not tokens",
            "A chunk of 500 tokens takes as long as 500 tokens do. The budget counts tokens.",
            edit=(("budget -= num_tokens", "budget -= 1"),),
        ),
        Mistake(
            "nothing is returned",
            "Those who wait are let in with what is left: return it, also when it is 0.",
            edit=(("        num_served += 1\n    return budget", "        num_served += 1"),),
        ),
    ),
    alternatives=(
        Alternative(
            "a for loop over the list itself, which gets shorter at its end",
            code=_serving("""
            kv = scheduler.kv_manager
            for request in scheduler.running:
                chunk = min(budget, request.num_tokens - request.num_computed_tokens)
                if chunk == 0:
                    break
                end = request.num_computed_tokens + chunk
                copies = kv.grow(request, end)
                while copies is None and request in scheduler.running:
                    step.preempted.append(preempt_newest(scheduler))
                    if request in scheduler.running:
                        copies = kv.grow(request, end)
                if copies is None:
                    break
                step.copies.extend(copies)
                step.scheduled.append((request, end - chunk, chunk))
                budget -= chunk
            return budget
            """),
        ),
        Alternative(
            "a copy of the list, and a look at the status",
            code=_serving("""
            left = budget
            for request in list(scheduler.running):
                if request not in scheduler.running or left <= 0:
                    break
                start = request.num_computed_tokens
                count = request.num_tokens - start
                if count > left:
                    count = left
                while True:
                    copies = scheduler.kv_manager.grow(request, start + count)
                    if copies is not None:
                        step.copies.extend(copies)
                        step.scheduled.append((request, start, count))
                        left = left - count
                        break
                    victim = preempt_newest(scheduler)
                    step.preempted.append(victim)
                    if victim.request_id == request.request_id:
                        break
            return left
            """),
        ),
        Alternative(
            "while and else",
            code=_serving("""
            place = 0
            while budget and place < len(scheduler.running):
                request = scheduler.running[place]
                start, end = request.num_computed_tokens, request.num_tokens
                end = min(end, start + budget)
                while (copies := scheduler.kv_manager.grow(request, end)) is None:
                    step.preempted += [preempt_newest(scheduler)]
                    if step.preempted[-1] is request:
                        break
                else:
                    step.copies += copies
                    step.scheduled += [(request, start, end - start)]
                    budget -= end - start
                    place += 1
            return budget
            """),
        ),
    ),
    why="""
    There is one rule for prompts and for output: compute what is not computed, as far as the budget
    goes. A decode is the case where that is one token; a chunk, and a request that comes back after
    a preemption, are the cases where it is more. Nothing asks which it is.

    Served from the oldest on, robbed from the newest on: so a victim has never got a row in the
    same step, and none has to be taken back. The inner `while` ends, because every turn frees
    blocks or takes the request itself.
    """,
    shown="whoever has output is taken to decode one token",
    equivalent={
        f"serve_running: {_NUM} -> num_tokens = min(budget, request.num_tokens - start)": (
            "the smaller of two is the same in any order"
        ),
    },
)

# ---- 6.3 ----------------------------------------------------------------------------------------

_FITS = "if taken > config.max_num_seqs or not kv_manager.admit(request, num_cached + num_tokens):"
_ADMIT = "kv_manager.admit(request, num_cached + num_tokens)"
_WANTED = "num_wanted = request.num_tokens - num_cached"
_TAKEN = "        taken += 1 + len(request.unforked_children)\n"


def _admission(body: str) -> str:
    head = "def admit_waiting(scheduler, step, budget):\n"
    return head + indent(clean(body), "    ") + "\n"


ADMIT = Answers(
    mistakes=(
        Mistake(
            "who does not fit is passed over",
            "Then small requests slip in for ever, and a large one never finds room. The first who "
            "does not fit ends it.",
            code=_admission("""
            if step.preempted:
                return
            config, manager = scheduler.config, scheduler.kv_manager
            taken = sum(1 + len(r.unforked_children) for r in scheduler.running)
            for request in list(scheduler.waiting):
                if budget == 0:
                    return
                num_cached = manager.cached_tokens(request)
                num_wanted = request.num_tokens - num_cached
                num_tokens = min(num_wanted, budget)
                if num_tokens < num_wanted and not config.may_split(num_wanted):
                    continue
                seats = 1 + len(request.unforked_children)
                if taken + seats > config.max_num_seqs:
                    continue
                if not manager.admit(request, num_cached + num_tokens):
                    continue
                scheduler.waiting.remove(request)
                scheduler.running.append(request)
                request.status = RequestStatus.RUNNING
                step.scheduled.append((request, num_cached, num_tokens))
                taken += seats
                budget -= num_tokens
            """),
        ),
        Mistake(
            "somebody comes in although somebody was just thrown out",
            "The freed blocks are not spare: the victim stands at the head of the queue and would "
            "take them back at once, to be thrown out again.",
            edit=(("    if step.preempted:\n        return\n", ""),),
        ),
        Mistake(
            "the seats are not counted",
            "max_num_seqs bounds how many run at once, however short their prompts are.",
            edit=((_FITS, f"if not {_ADMIT}:"),),
        ),
        Mistake(
            "one seat too few is given away",
            "With max_num_seqs 2, two may sit: only more than that is too many.",
            edit=(("taken > config.max_num_seqs", "taken >= config.max_num_seqs"),),
        ),
        Mistake(
            "those who already run have no seats",
            "The seats of this step's newcomers are not all: begin with those of `running`.",
            edit=(
                (
                    "taken = sum(1 + len(request.unforked_children) for request in "
                    "scheduler.running)",
                    "taken = 0",
                ),
            ),
        ),
        Mistake(
            "a request with samples is given one seat",
            "Its other samples part from it when its prompt is computed, and run from then on. "
            "Their seats must be free by then.",
            edit=(
                (
                    "sum(1 + len(request.unforked_children) for request in scheduler.running)",
                    "len(scheduler.running)",
                ),
                (_TAKEN, "        taken += 1\n"),
            ),
        ),
        Mistake(
            "the seats of samples that have not parted yet are given to others",
            "While the prompt is computed over several steps, its unforked children are not in "
            "`running`. Their seats are taken all the same.",
            edit=(
                (
                    "sum(1 + len(request.unforked_children) for request in scheduler.running)",
                    "len(scheduler.running)",
                ),
            ),
        ),
        Mistake(
            "the seats in use are counted in `running` alone",
            "`len(scheduler.running)` is one for each. A request whose samples have not parted yet "
            "takes more: one for each of its unforked_children, until they run.",
            code=_admission("""
            if step.preempted:
                return
            config, manager = scheduler.config, scheduler.kv_manager
            while scheduler.waiting and budget > 0:
                request = scheduler.waiting[0]
                num_cached = manager.cached_tokens(request)
                num_wanted = request.num_tokens - num_cached
                num_tokens = min(num_wanted, budget)
                if num_tokens < num_wanted and not config.may_split(num_wanted):
                    return
                seats = 1 + len(request.unforked_children)
                if len(scheduler.running) + seats > config.max_num_seqs:
                    return
                if not manager.admit(request, num_cached + num_tokens):
                    return
                scheduler.running.append(scheduler.waiting.popleft())
                request.status = RequestStatus.RUNNING
                step.scheduled.append((request, num_cached, num_tokens))
                budget -= num_tokens
            """),
        ),
        Mistake(
            "no seats are kept for the newcomer's own samples",
            "They part from it when its prompt is computed, and run from then on. Count them "
            "before it is let in: 1 + len(request.unforked_children).",
            edit=(
                (_TAKEN, ""),
                (_FITS, _FITS.replace("taken >", "taken + 1 >")),
                (
                    "        budget -= num_tokens",
                    "        taken += 1 + len(request.unforked_children)\n"
                    "        budget -= num_tokens",
                ),
            ),
        ),
        Mistake(
            "`may_split` is asked of prompts that need no split",
            "It says whether a prompt may come in with *less* than all it wants. One that fits "
            "into the budget whole need not be asked.",
            edit=(("num_tokens < num_wanted and not config.may_split", "not config.may_split"),),
        ),
        Mistake(
            "the whole prompt comes in whatever the budget",
            "One long prompt then makes everybody wait for a whole step. It comes in pieces: "
            "`min` of what is wanted and what is left.",
            edit=(("num_tokens = min(num_wanted, budget)", "num_tokens = num_wanted"),),
        ),
        Mistake(
            "prompts are split although chunks are turned off",
            "Ask `config.may_split` before you let in less than all that is wanted.",
            edit=(
                (
                    "        if num_tokens < num_wanted and not config.may_split(num_wanted):\n"
                    "            return\n",
                    "",
                ),
            ),
        ),
        Mistake(
            "nothing is ever split when chunks are turned off",
            "A preempted request may have outgrown the whole budget. It would wait for ever; "
            "`config.may_split` knows, if you ask it for all that is wanted.",
            edit=(("not config.may_split(num_wanted)", "not config.chunked_prefill"),),
        ),
        Mistake(
            "blocks are taken for the whole prompt at once",
            "A block is taken when it is needed. This step writes one chunk; the rest of the "
            "prompt takes its blocks in the steps that write it.",
            edit=((_ADMIT, "kv_manager.admit(request, request.num_tokens)"),),
        ),
        Mistake(
            "room is asked for the computed tokens and not for the cached ones",
            "The table begins with the blocks of the hit. `admit` wants the number of tokens that "
            "must have slots in all.",
            edit=((_ADMIT, "kv_manager.admit(request, num_tokens)"),),
        ),
        Mistake(
            "what the cache holds is computed again",
            "The row begins after the hit. Those tokens are stored already, in blocks that others "
            "may be reading.",
            edit=(
                (_WANTED, "num_wanted = request.num_tokens"),
                (
                    "step.scheduled.append((request, num_cached, num_tokens))",
                    "step.scheduled.append((request, 0, num_tokens))",
                ),
                (_ADMIT, "kv_manager.admit(request, num_tokens)"),
            ),
        ),
        Mistake(
            "the row begins at 0 although the hit is not computed",
            "num_tokens is right, and they start after what the cache holds: at num_cached.",
            edit=(
                (
                    "step.scheduled.append((request, num_cached, num_tokens))",
                    "step.scheduled.append((request, 0, num_tokens))",
                ),
            ),
        ),
        Mistake(
            "only the prompt of a request that comes back is computed",
            "Its output had keys and values, too, and they are gone. num_tokens counts prompt and "
            "output.",
            edit=((_WANTED, "num_wanted = request.num_prompt_tokens - num_cached"),),
        ),
        Mistake(
            "the head of the queue is taken off before it is asked for",
            "If it does not fit it must stay where it was. Look at `waiting[0]`, and take it off "
            "when it has been admitted.",
            edit=(
                ("request = scheduler.waiting[0]", "request = scheduler.waiting.popleft()"),
                ("running.append(scheduler.waiting.popleft())", "running.append(request)"),
            ),
        ),
        Mistake(
            "the status stays as it was",
            "Whoever ends a request looks at its status to know where it stands and whether it "
            "holds blocks: RUNNING.",
            edit=(("        request.status = RequestStatus.RUNNING\n", ""),),
        ),
        Mistake(
            "the last of the queue is asked first",
            "The queue is in order of arrival: its head is `waiting[0]`, and `popleft` takes it.",
            edit=(
                ("scheduler.waiting[0]", "scheduler.waiting[-1]"),
                ("scheduler.waiting.popleft()", "scheduler.waiting.pop()"),
            ),
        ),
        Mistake(
            "newcomers are put before those who run",
            "`running` is in order of arrival, too, so that the newest is the last: append.",
            edit=(
                (
                    "scheduler.running.append(scheduler.waiting.popleft())",
                    "scheduler.running.insert(0, scheduler.waiting.popleft())",
                ),
            ),
        ),
        Mistake(
            "the budget is not made smaller",
            "Each newcomer takes its tokens from what is left for the next.",
            edit=(("\n        budget -= num_tokens", ""),),
        ),
        Mistake(
            "somebody comes in for no tokens",
            "With no budget left there is nothing to compute for a newcomer, but it would hold a "
            "seat and blocks. Stop when the budget is spent.",
            edit=((" and budget > 0", ""),),
        ),
    ),
    alternatives=(
        Alternative(
            "everything asked in one place",
            code=_admission("""
            def seats(request):
                return 1 + len(request.unforked_children)

            if step.preempted:
                return
            queue, manager = scheduler.waiting, scheduler.kv_manager
            while queue and budget:
                head = queue[0]
                cached = manager.cached_tokens(head)
                rest = head.num_tokens - cached
                chunk = rest if rest <= budget else budget
                has_tokens = chunk == rest or scheduler.config.may_split(rest)
                in_use = sum(seats(request) for request in scheduler.running)
                has_seat = in_use + seats(head) <= scheduler.config.max_num_seqs
                if not (has_tokens and has_seat and manager.admit(head, cached + chunk)):
                    break
                queue.popleft()
                head.status = RequestStatus.RUNNING
                scheduler.running += [head]
                step.scheduled += [(head, cached, chunk)]
                budget -= chunk
            """),
        ),
        Alternative(
            "free seats counted down",
            code=_admission("""
            free = scheduler.config.max_num_seqs
            for request in scheduler.running:
                free -= 1 + len(request.unforked_children)
            admitted = []
            for request in scheduler.waiting if not step.preempted else []:
                start = scheduler.kv_manager.cached_tokens(request)
                wanted = request.num_tokens - start
                num_tokens = min(wanted, budget)
                free -= 1 + len(request.unforked_children)
                if free < 0 or num_tokens <= 0:
                    break
                if num_tokens != wanted and not scheduler.config.may_split(wanted):
                    break
                if not scheduler.kv_manager.admit(request, start + num_tokens):
                    break
                admitted.append(request)
                step.scheduled.append((request, start, num_tokens))
                budget -= num_tokens
            for request in admitted:
                scheduler.waiting.popleft()
                request.status = RequestStatus.RUNNING
            scheduler.running.extend(admitted)
            """),
        ),
        Alternative(
            "the start is read off the request after its admission",
            edit=(
                (
                    "step.scheduled.append((request, num_cached, num_tokens))",
                    "step.scheduled.append((request, request.num_computed_tokens, num_tokens))",
                ),
            ),
        ),
    ),
    why="""
    Three things can be short, and they are asked in the order of their price: tokens and seats are
    only counted, `admit` takes blocks, so it comes last. It is all or nothing itself, and a False
    has nothing to undo.

    The first who does not fit ends the loop, though others might. That leaves some room unused for
    some steps; in return every wait has an end. For the same reason nobody comes in while blocks
    are being taken away: the victim is the head of the queue, and would get its blocks back in the
    very step in which it lost them.
    """,
    shown="who does not fit is passed over",
    equivalent={
        "admit_waiting: num_tokens = min(num_wanted, budget) -> "
        "num_tokens = min(budget, num_wanted)": "the smaller of two is the same in any order",
    },
)

# ---- 6.4 ----------------------------------------------------------------------------------------

_COUNT = "request.num_computed_tokens = start + num_tokens"
_PUBLISH = "            scheduler.kv_manager.publish(request)\n"
_FORK = "    scheduler.fork_children(step)\n"
_APPEND = "        request.token_ids.append(tokens[request.request_id])\n"
_SKIP = "        if request.is_finished:\n            continue\n"


def _updating(body: str) -> str:
    head = "def update_requests(scheduler, step, tokens):\n"
    return head + indent(clean(body), "    ") + "\n"


UPDATE = Answers(
    mistakes=(
        Mistake(
            "all tokens of a request are taken to be computed",
            "A chunk computes some of them. After this step it is `start + num_tokens`, not more.",
            edit=((_COUNT, "request.num_computed_tokens = request.num_tokens"),),
        ),
        Mistake(
            "the new token is counted as computed",
            "It was sampled, that is all: its key and value are written in the next step. While a "
            "request decodes, the two counts differ by one.",
            edit=((_APPEND, _APPEND + "        request.num_computed_tokens += 1\n"),),
        ),
        Mistake(
            "only this row's tokens are counted",
            "The count is of all tokens that are stored, those of earlier steps included.",
            edit=((_COUNT, "request.num_computed_tokens = num_tokens"),),
        ),
        Mistake(
            "everybody who was scheduled gets a token",
            "A prompt that is not at its end has nothing to say yet. step.samples says who gets a "
            "token.",
            edit=(
                (
                    "for request in step.samples:",
                    "for request in [row[0] for row in step.scheduled]:",
                ),
            ),
        ),
        Mistake(
            "everybody who runs gets a token",
            "Some of them are in the middle of their prompt, and some had no row in this step. "
            "step.samples says who gets one.",
            edit=(
                (
                    "    for request in step.samples:\n        if request.is_finished:\n",
                    "    for request in list(scheduler.running):\n"
                    "        if request.is_finished:\n",
                ),
            ),
        ),
        Mistake(
            "the token is appended to `output_token_ids`",
            "That is cut out of `token_ids` anew each time, and what is appended to the cutting is "
            "lost. A request's tokens are one list, `token_ids`, prompt and output.",
            edit=((_APPEND, _APPEND.replace("token_ids", "output_token_ids")),),
        ),
        Mistake(
            "blocks are published before the count is raised",
            "`publish` goes by num_computed_tokens: it then knows only what the step before had "
            "written, and the block is found one step late.",
            edit=(
                (
                    f"            {_COUNT}\n{_PUBLISH}",
                    f"{_PUBLISH}            {_COUNT}\n",
                ),
            ),
        ),
        Mistake(
            "nothing is published",
            "Then the prefix cache stays empty, and everybody computes the common beginning again.",
            edit=((_PUBLISH, ""),),
        ),
        Mistake(
            "blocks are published last",
            "Who has ended by then has given its table back. Publish a row as soon as it is "
            "counted.",
            edit=(
                (_PUBLISH, ""),
                (
                    "    return finished",
                    "    for request, *_ in step.scheduled:\n"
                    "        scheduler.kv_manager.publish(request)\n"
                    "    return finished",
                ),
            ),
        ),
        Mistake(
            "blocks are published when a request gets a token",
            "A long prompt fills blocks in every step, long before its first token: publish each "
            "row.",
            edit=(
                (_PUBLISH, ""),
                (_APPEND, "        scheduler.kv_manager.publish(request)\n" + _APPEND),
            ),
        ),
        Mistake(
            "nobody forks",
            "The other samples wait for their parent's prompt and for nothing else: this is the "
            "moment.",
            edit=((_FORK, ""),),
        ),
        Mistake(
            "samples part after the first token",
            "By then their parent may have ended and given its blocks back, and a child that is "
            "not running yet gets a token all the same. Fork first.",
            edit=(
                (_FORK, ""),
                ("    return finished", _FORK + "    return finished"),
            ),
        ),
        Mistake(
            "the end is looked for before the token is there",
            "`stop_reason` looks at the newest token and at the number of tokens: append first.",
            edit=(
                (
                    _APPEND + "        if reason := stop_reason(request):\n",
                    "        reason = stop_reason(request)\n" + _APPEND + "        if reason:\n",
                ),
            ),
        ),
        Mistake(
            "who is done is only noted, and keeps its blocks",
            "`scheduler.finish(request, reason)` gives seat and blocks back in this very step. "
            "Otherwise it would be served once more.",
            edit=(("            scheduler.finish(request, reason)\n", ""),),
        ),
        Mistake(
            "every end is called a stop",
            'The reason matters to who asked: "length" means that there would have been more. Pass '
            "on what `stop_reason` says.",
            edit=(
                ("    scheduler.finish(request, reason)", '    scheduler.finish(request, "stop")'),
            ),
        ),
        Mistake(
            "the list of running requests is walked while it gets shorter",
            "`finish` takes a request off `running`, and the loop skips the one behind it. Walk "
            "over step.samples, which nobody changes.",
            edit=(
                (
                    "    for request in step.samples:\n        if request.is_finished:\n",
                    "    for request in scheduler.running:\n"
                    "        if request not in step.samples:\n",
                ),
            ),
        ),
        Mistake(
            "an aborted request gets its token",
            "It ended while the model ran. It has no table any more, and perhaps no token: skip "
            "whoever is_finished.",
            edit=((_SKIP, ""),),
        ),
        Mistake(
            "an aborted request is still counted and published",
            "It has given its table back, so there is nothing to publish. Look at is_finished in "
            "the first loop, too.",
            edit=(("if not request.is_finished:", "if True:"),),
        ),
        Mistake(
            "nobody is returned",
            "The engine hands out the answers of those in the list.",
            edit=(("            finished.append(request)\n", ""),),
        ),
    ),
    alternatives=(
        Alternative(
            "the count raised by what was computed",
            edit=((_COUNT, "request.num_computed_tokens += num_tokens"),),
        ),
        Alternative(
            "tokens first for all, then the ends",
            code=_updating("""
            for request, _, num_tokens in step.scheduled:
                if request.is_finished:
                    continue
                request.num_computed_tokens += num_tokens
                scheduler.kv_manager.publish(request)
            scheduler.fork_children(step)
            alive = [request for request in step.samples if not request.is_finished]
            for request in alive:
                request.token_ids.append(tokens[request.request_id])
            done = [request for request in alive if stop_reason(request) is not None]
            for request in done:
                scheduler.finish(request, stop_reason(request))
            return done
            """),
        ),
        Alternative(
            "counts of all, then what can be found",
            code=_updating("""
            rows = [row for row in step.scheduled if not row[0].is_finished]
            for request, start, num_tokens in rows:
                request.num_computed_tokens = start + num_tokens
            for request, *_ in rows:
                scheduler.kv_manager.publish(request)
            scheduler.fork_children(step)
            ended = []
            for request in step.samples:
                if not request.is_finished:
                    request.token_ids += [tokens[request.request_id]]
                    reason = stop_reason(request)
                    if reason is not None:
                        ended += [request]
                        scheduler.finish(request, reason)
            return ended
            """),
        ),
    ),
    why="""
    The order is the whole of it. Counting comes before publishing, because only what is written may
    be found. Forking comes before the first token, because that token is the parent's and the
    children get their own. And the end comes in the same step as the last token: seat and blocks
    are free for the very next `schedule()`. That is the step that a static batch gives away.

    Between `schedule` and here the model ran, and somebody may have hung up. What has ended is left
    alone, in both loops.
    """,
    shown="the new token is counted as computed",
)

# ---- 6.5 ----------------------------------------------------------------------------------------


def _failing(num_blocks: int, *requests: tuple[int, int]) -> str:
    return f'failing_day = {{"num_blocks": {num_blocks}, "requests": {list(requests)}}}\n'


FAILING = Answers(
    mistakes=(
        Mistake(
            "the pool has room for both",
            "The fault sleeps until somebody is preempted. The pool must be too small for what the "
            "two grow to, and large enough to let both in.",
            code=_failing(4, (4, 2), (1, 2)),
        ),
        Mistake(
            "one request is to be preempted by itself",
            "A request that fits alone never makes room for itself. Somebody older must want the "
            "block.",
            code=_failing(2, (4, 4)),
        ),
        Mistake(
            "the second never comes in beside the first",
            "With one block, or a prompt that fills the pool, it waits at the door until the first "
            "has left. Nobody is thrown out.",
            code=_failing(2, (5, 3), (4, 2)),
        ),
        Mistake(
            "the first ends before it needs another block",
            "The last token of an answer is said and never computed: 4 + 1 tokens need slots for "
            "4. One more, and it needs the second block.",
            code=_failing(2, (4, 1), (1, 2)),
        ),
        Mistake(
            "the second has ended before the first grows",
            "With one token of output it is done in the step in which it came in. It must want "
            "another one.",
            code=_failing(2, (4, 2), (1, 1)),
        ),
        Mistake(
            "the running example is taken as it is",
            "In 12 blocks B is preempted, and the fault shows. But far less is enough.",
            code=_failing(12, (7, 21), (3, 24), (6, 2)),
        ),
        Mistake(
            "two requests are right, and the pool could be smaller",
            "Each block of the pool that is not needed to let both in only delays what you want to "
            "see. How many blocks do two requests need at the very least?",
            code=_failing(3, (4, 6), (4, 6)),
        ),
        Mistake(
            "the answers could be shorter",
            "The pool is as small as can be. One of the two need not fill its block: its first "
            "token comes after any prompt.",
            code=_failing(2, (4, 3), (4, 3)),
        ),
    ),
    alternatives=(
        Alternative("the other way round", code=_failing(2, (1, 2), (4, 2))),
        Alternative(
            "as lists",
            code='failing_day = {"requests": [[4, 2], [1, 2]], "num_blocks": 2}\n',
        ),
        Alternative(
            "as a tuple of tuples",
            code='failing_day = {"num_blocks": 2, "requests": ((4, 2), (1, 2))}\n',
        ),
    ),
    why="""
    Two blocks and nine tokens. A and B come in together, one block each, and both say a token. In
    the next step A's fifth token needs a second block: B is thrown out, with a prompt of one token
    and one token of output. When it comes back, two tokens have to be computed. The function sees
    output, takes it for a decode and hands over the newest alone. The model never sees the prompt.

    On a server with enough memory this runs for weeks. And nothing fails when it happens: the
    answer is made of words, and they are wrong.
    """,
    shown="the first ends before it needs another block",
)

# ---- 6.6 ----------------------------------------------------------------------------------------

_ROW_HEAD = '''
def row_inputs(request: Request, start: int, num_tokens: int) -> tuple[list[int], list[int]]:
    """What the model reads for one row of a step: token ids, and their positions in the request.

    The row computes the request's tokens `start` to `start + num_tokens - 1`, whether they are
    prompt or output.

    Example: A has the prompt [5, 6, 7] and the output [9]. The row (A, 1, 3) gives
    ([6, 7, 9], [1, 2, 3]).
    """
'''


def _row(body: str) -> str:
    return clean(_ROW_HEAD) + "\n" + indent(clean(body), "    ") + "\n"


MEND = Answers(
    mistakes=(
        Mistake(
            "whoever has output is taken to decode one token",
            "After a preemption a request has output, and prompt and output to compute. `start` "
            "and `num_tokens` say which; nothing else has to be asked.",
            code=_row("""
            if request.num_output_tokens == 0:  # prefill
                positions = list(range(start, start + num_tokens))
                return request.token_ids[start : start + num_tokens], positions
            return request.token_ids[-1:], [request.num_tokens - 1]  # decode
            """),
        ),
        Mistake(
            "one token is taken for a decode",
            "A chunk may be one token long, in the middle of a prompt. That one is asked for, not "
            "the newest.",
            code=_row("""
            if num_tokens > 1:
                positions = list(range(start, start + num_tokens))
                return request.token_ids[start : start + num_tokens], positions
            return request.token_ids[-1:], [request.num_tokens - 1]
            """),
        ),
        Mistake(
            "the positions of each piece begin at 0",
            "A position counts within the request, not within the row. The second piece of a "
            "prompt would be written over the first.",
            code=_row("""
            positions = list(range(num_tokens))
            return request.token_ids[start : start + num_tokens], positions
            """),
        ),
        Mistake(
            "the positions are one too high",
            "The first token of a request has position 0, so the token `start` has position "
            "`start`.",
            code=_row("""
            positions = list(range(start + 1, start + num_tokens + 1))
            return request.token_ids[start : start + num_tokens], positions
            """),
        ),
        Mistake(
            "the tokens are taken from the prompt",
            "Output is computed, too: one token in a decode, all of it after a preemption. "
            "`token_ids` holds both.",
            code=_row("""
            positions = list(range(start, start + num_tokens))
            return request.prompt_token_ids[start : start + num_tokens], positions
            """),
        ),
        Mistake(
            "the newest tokens are taken, as many as were asked for",
            "A slice from the end is right when the row ends where the request does. A prompt in "
            "pieces does not: begin at `start`.",
            code=_row("""
            positions = list(range(start, start + num_tokens))
            return request.token_ids[-num_tokens:], positions
            """),
        ),
        Mistake(
            "the row goes on to the request's last token",
            "The budget ended this row earlier: num_tokens tokens, and the rest in the next step.",
            code=_row("""
            positions = list(range(start, request.num_tokens))
            return request.token_ids[start:], positions
            """),
        ),
        Mistake(
            "num_tokens is taken for the place where the row ends",
            "It is how many there are. The row ends before `start + num_tokens`.",
            code=_row("""
            return request.token_ids[start:num_tokens], list(range(start, num_tokens))
            """),
        ),
        Mistake(
            "a preempted request is computed anew whole, however little was asked",
            "It has to be computed again, but in pieces as the budget allows. The scheduler has "
            "said which piece this is.",
            code=_row("""
            if request.num_preemptions and start < request.num_tokens - 1:
                return list(request.token_ids), list(range(request.num_tokens))
            positions = list(range(start, start + num_tokens))
            return request.token_ids[start : start + num_tokens], positions
            """),
        ),
    ),
    alternatives=(
        Alternative(
            "position by position",
            code=_row("""
            positions = [start + i for i in range(num_tokens)]
            return [request.token_ids[p] for p in positions], positions
            """),
        ),
        Alternative(
            "one end for both",
            code=_row("""
            end = start + num_tokens
            return request.token_ids[start:end], list(range(start, end))
            """),
        ),
        Alternative(
            "in pairs",
            code=_row("""
            pairs = list(enumerate(request.token_ids))[start : start + num_tokens]
            ids, places = [], []
            for place, token_id in pairs:
                ids.append(token_id)
                places.append(place)
            return ids, places
            """),
        ),
    ),
    why="""
    The scheduler has decided what a row computes; whoever carries it out must not guess why. "Has
    it output?" and "is it one token?" both answer right for nearly every row of a day, and that is
    what makes them dangerous. The engine's runner has no such question either.
    """,
    shown="the positions of each piece begin at 0",
)

# ---- 6.7 ----------------------------------------------------------------------------------------


def _gain(alike: object, mixed: object, more: object, single: object) -> str:
    return (
        f'predicted_gain = {{\n    "alike": {alike},\n    "mixed": {mixed},\n'
        f'    "mixed, more seats": {more},\n    "one token each, more seats": {single},\n}}\n'
    )


PREDICTION = Answers(
    mistakes=(
        Mistake(
            "seats are taken to help everybody",
            "A seat shares the read of the weights. A prompt of 200 tokens is limited by "
            "arithmetic: four times the seats make the step four times as long.",
            code=_gain(1, 3.1, 12.3, 4),
        ),
        Mistake(
            "only the seats are counted",
            "Four times the seats, and more: a static batch also holds its seats for answers that "
            "ended long ago.",
            code=_gain(1, 1, 4, 1),
        ),
        Mistake(
            "only the lengths are counted",
            "In the third case the continuous server also has four times the seats, and a step "
            "with 16 tokens in it is as quick as one with 4.",
            code=_gain(1, 3.1, 3.1, 1),
        ),
        Mistake(
            "the longest answer is divided by the shortest",
            "One of four seats is busy all the time. In 100 steps a static batch computes 130 "
            "tokens of the 400 that it has seats for: 400 / 130.",
            code=_gain(1, 10, 40, 1),
        ),
        Mistake(
            "tenfold is believed for all",
            "It needs answers of different lengths, a queue, short prompts and more seats. Which "
            "of them does each case have?",
            code=_gain(10, 10, 10, 10),
        ),
        Mistake(
            "even equal answers are taken to gain",
            "They all end in the same step, so no seat is ever held for nothing.",
            code=_gain(2, 3.1, 12.3, 1),
        ),
        Mistake(
            "the gain is turned upside down",
            "How many times as many tokens per second does the continuous server give? More than "
            "one where it is quicker.",
            code=_gain(1, 0.325, 0.081, 1),
        ),
        Mistake(
            "the gains of lengths and seats are added",
            "Each seat is used three times as well, and there are four times as many: they "
            "multiply.",
            code=_gain(1, 3.1, 7.1, 1),
        ),
    ),
    alternatives=(
        Alternative("in fractions", code=_gain(1, "400 / 130", "4 * 400 / 130", 1)),
        Alternative("rounded", code=_gain(1, 3, 12, 1)),
        Alternative("a careful estimate", code=_gain(1.1, 2.8, 11, 0.9)),
    ),
    why="""
    Four static seats hold 400 tokens' worth of 100 steps and compute 130: continuous batching fills
    the rest, 400 / 130 = 3.1 times. Four times the seats multiply that to 12.3, as long as a step
    costs one read of the weights whatever it holds. There is the tenfold gain, and most of it is
    seats, which is memory.

    Equal answers leave nothing to fill. Prompts of 200 tokens with one token each are arithmetic,
    and no batcher makes less of it. The tolerance is 15 % because a day ends: in its last steps the
    queue is empty, and seats are idle for any batcher.
    """,
    shown="seats are taken to help everybody",
)

ANSWERS = {
    "preempt_newest": PREEMPT,
    "serve_running": SERVE,
    "admit_waiting": ADMIT,
    "update_requests": UPDATE,
    "failing_day": FAILING,
    "row_inputs": MEND,
    "predicted_gain": PREDICTION,
}
