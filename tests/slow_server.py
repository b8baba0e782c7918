"""The oracle of course/memory/server.py: the same server, one step and one request at a time.

It holds real slots through the policies' own admit, grow and release, checks at every step that
no slot has two owners, and takes the ledger by counting.
"""

from collections import deque

from course.memory.ledger import Holding, take_ledger
from course.memory.simulate import Step


def slow_steps(requests, policy, step_s=1.0, max_batch=None, all_at_once=False, over_limit="drop"):
    order = sorted(range(len(requests)), key=lambda i: requests[i].arrival_s)
    arrivals = deque()
    for index in order:
        prompt, output = requests[index].prompt_tokens, requests[index].output_tokens
        room = policy.max_model_len - prompt
        if over_limit == "cut" and 1 <= room < output:
            output = room
        if policy.possible(prompt, output):
            time = 0.0 if all_at_once else requests[index].arrival_s
            arrivals.append((time, str(index), prompt, output))
    queue, running = deque(), []
    step, time = 0, 0.0
    while arrivals or queue or running:
        if not queue and not running:
            time = max(time, arrivals[0][0])
        while arrivals and arrivals[0][0] <= time:
            queue.append(arrivals.popleft()[1:])

        preempted = False
        for request in list(running):
            while request in running:
                tokens = request["prompt"] + request["generated"] + 1
                if policy.grow(request["id"], tokens):
                    break
                victim = running.pop()
                policy.release(victim["id"])
                left = victim["output"] - victim["generated"]
                queue.appendleft((victim["id"], victim["prompt"] + victim["generated"], left))
                preempted = True
        while queue and not preempted and (max_batch is None or len(running) < max_batch):
            name, prompt, output = queue[0]
            if not policy.admit(name, prompt, output):
                break
            queue.popleft()
            running.append({"id": name, "prompt": prompt, "output": output, "generated": 0})

        for request in running:
            request["generated"] += 1
        took = step_s(len(running)) if callable(step_s) else step_s
        yield Step(step, time, len(running), len(queue), _ledger(policy, running, queue))

        for request in list(running):
            if request["generated"] == request["output"]:
                running.remove(request)
                policy.release(request["id"])
        time += took
        step += 1


def _ledger(policy, running, queue):
    owners = {}
    for request in running:
        tokens = 0
        for start, size in policy.spans(request["id"]):
            for slot in range(start, start + size):
                assert slot not in owners, f"slot {slot} has two owners"
                assert 0 <= slot < policy.pool_tokens
                owners[slot] = request["id"]
                tokens += 1
        assert tokens == policy.held(request["id"])
        assert tokens >= request["prompt"] + request["generated"]
    assert policy.num_free == policy.pool_tokens - len(owners)
    holdings = [
        Holding(r["prompt"] + r["generated"], r["prompt"] + r["output"], policy.held(r["id"]))
        for r in running
    ]
    if not queue:
        return take_ledger(policy.pool_tokens, holdings)
    _, prompt, output = queue[0]
    return take_ledger(
        policy.pool_tokens, holdings, policy.asks(prompt, output), policy.fits(prompt, output)
    )
