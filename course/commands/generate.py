"""`python -m course generate`: one prompt, one answer, on the real model."""

import json
import sys
from typing import Annotated

import typer


def generate(
    prompt: Annotated[str, typer.Argument(help='The text to go on from; "-" reads it from stdin.')],
    chat: Annotated[bool, typer.Option(help="Treat it as a message to an assistant.")] = False,
    stream: Annotated[bool, typer.Option(help="Print the answer while it grows.")] = False,
    max_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Sample from the k likeliest tokens; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Sample from this much probability.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="The same seed, the same answer.")] = None,
    n: Annotated[int, typer.Option("-n", "--samples", help="Answers to one prompt.")] = 1,
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this text. Repeatable.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="smollm2, tiny, a .gguf file or a Hugging Face folder.")
    ] = "smollm2",
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Complete a prompt with the engine of this course."""
    from course.engine import LLM, SamplingParams

    if stream and (as_json or n != 1):
        raise ValueError("--stream prints one growing answer; it goes with neither --json nor -n")
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        n=n,
        stop=tuple(stop or ()),
    )
    text = sys.stdin.read() if prompt == "-" else prompt
    llm = LLM(model, dtype=dtype, device=device)
    if chat:
        text = llm.tokenizer.apply_chat_template([{"role": "user", "content": text}])
    if stream:
        for piece in llm.stream(text, params):
            print(piece, end="", flush=True)
        print()
        return
    completion = llm.generate(text, params)[0]
    if as_json:
        print(json.dumps(completion.as_dict(), indent=2))
        return
    shown = text if not chat else ""
    for number, sample in enumerate(completion.samples, 1):
        if n > 1:
            print(f"--- sample {number} of {n}")
        print(shown + sample.text)
