"""When a request has said enough."""

from course.engine.request import Request


def stop_reason(request: Request) -> str | None:
    """Why the request ends with its newest token, or None if it goes on.

    "stop": the newest token is the model's end of sequence (unless ignored) or one of
    stop_token_ids, and the output has min_tokens tokens, this one included. "length": prompt and
    output together have come to max_num_tokens, which the scheduler has made of max_tokens, the
    model's limit and the pool's (None: there is no limit). Where both are true it is "stop".

    With a prompt of 7 tokens and max_tokens=3, max_num_tokens is 10:

    >>> from course.engine.sampling_params import SamplingParams
    >>> request = Request("A", range(7), SamplingParams(max_tokens=3), eos_token_id=2)
    >>> request.max_num_tokens = 10
    >>> reasons = []
    >>> for token_id in (5, 2, 8):
    ...     request.token_ids.append(token_id)
    ...     reasons.append(stop_reason(request))
    >>> reasons
    [None, 'stop', 'length']
    """
    params, token_id = request.params, request.token_ids[-1]
    if request.num_output_tokens >= params.min_tokens:
        is_eos = token_id == request.eos_token_id and not params.ignore_eos
        if is_eos or token_id in params.stop_token_ids:
            return "stop"
    if request.max_num_tokens is not None and request.num_tokens >= request.max_num_tokens:
        return "length"
    return None
