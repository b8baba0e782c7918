"""When a request has said enough."""

from course.engine.request import Request


def stop_reason(request: Request) -> str | None:
    """Why the request ends with its newest token, or None if it goes on.

    "stop": the token is the model's end of sequence (unless ignored) or one of stop_token_ids, and
    there are min_tokens of output. "length": max_tokens, the model or the pool allow no more.
    """
    params, token_id = request.params, request.token_ids[-1]
    if request.num_output_tokens >= params.min_tokens:
        is_eos = token_id == request.eos_token_id and not params.ignore_eos
        if is_eos or token_id in params.stop_token_ids:
            return "stop"
    if request.max_num_tokens is not None and request.num_tokens >= request.max_num_tokens:
        return "length"
    return None
