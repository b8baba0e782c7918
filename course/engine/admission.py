"""What is decided about a request once, when it is added: can it ever be served, and how far?"""

from dataclasses import replace

from course.engine.kv_manager import KVManager
from course.engine.request import Request, RequestStatus
from course.engine.sampling_params import MAX_SEED
from course.engine.scheduler_types import RequestRefused, SchedulerConfig


def longest_allowed(request: Request, config: SchedulerConfig, kv_manager: KVManager) -> int:
    """The number of tokens, prompt and output, at which the request ends with "length".

    RequestRefused if it could never be served, however long it waits: no other request is looked at
    here, only the limits. A prompt must leave room for one token of output.
    """
    num_prompt_tokens = request.num_prompt_tokens
    if request.status is not RequestStatus.WAITING or request.num_output_tokens:
        raise RequestRefused(f"{request!r} was served before; make a new Request")
    if num_prompt_tokens == 0:
        raise RequestRefused("the prompt is empty; give at least 1 token")
    budget = config.max_num_batched_tokens
    if not config.chunked_prefill and num_prompt_tokens > budget:
        raise RequestRefused(
            f"the prompt has {num_prompt_tokens} tokens and without chunked prefill at most "
            f"max_num_batched_tokens={budget} fit into a step: "
            "turn chunked_prefill on, raise the budget or shorten the prompt"
        )
    num_samples = request.params.n
    for limit, name in (
        (config.max_num_seqs, "max_num_seqs"),
        (kv_manager.max_samples, "the pool's number of slabs"),
    ):
        if num_samples > limit:
            raise RequestRefused(
                f"n={num_samples} samples run side by side and {name} is {limit}: "
                "raise the limit or ask for fewer samples"
            )
    longest = kv_manager.longest_sequence(budget)
    for limit, name, remedy in (
        (config.max_model_len, "max_model_len", "raise max_model_len"),
        (longest, "the longest sequence that the KV cache can hold", "give it more blocks"),
    ):
        if limit is not None and num_prompt_tokens + 1 > limit:
            raise RequestRefused(
                f"the prompt has {num_prompt_tokens} tokens and its output needs 1 more; "
                f"{name} is {limit} tokens: {remedy}, or shorten the prompt to {limit - 1}"
            )
    max_model_len = longest if config.max_model_len is None else config.max_model_len
    return min(num_prompt_tokens + request.params.max_tokens, max_model_len, longest)


def make_children(request: Request) -> list[Request]:
    """The other n - 1 samples of a request: same prompt, each with a seed of its own."""
    children = []
    for number in range(1, request.params.n):
        seed = request.params.seed
        if seed is not None:
            seed = (seed + number) & MAX_SEED  # stays in the range of seeds
        child = Request(
            f"{request.request_id}/{number}",
            request.prompt_token_ids,
            replace(request.params, n=1, seed=seed),
            request.extra_key,
            request.eos_token_id,
        )
        child.parent_id = request.request_id
        children.append(child)
    return children
