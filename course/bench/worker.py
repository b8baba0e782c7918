"""One engine in a process of its own: loads once, then serves a case for every line it reads.

A line in is a case (engines.py says what it holds); a line out is {"seconds": ..., "outputs":
[[ids], ...]} or {"error": ...}. The first line out tells that the engine is loaded.
"""

import argparse
import json
import os
import sys
import time

# Run by its path, in an environment that may not have the course: its own folder is on the path.
from engines import ENGINES  # type: ignore[import-not-found]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("model", help="path of the GGUF file, or of a Hugging Face folder")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    answers = os.fdopen(os.dup(1), "w")  # libraries that print must not disturb the answers
    os.dup2(2, 1)

    def say(**answer) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        if args.engine != "llama.cpp":  # its environment has no PyTorch
            import torch

            torch.set_num_threads(args.threads)
        started = time.perf_counter()
        engine = ENGINES[args.engine](args.model, args.dtype)
        say(loaded=time.perf_counter() - started, version=engine.version)
    except Exception as error:
        say(error=f"{type(error).__name__}: {error}")
        return
    for line in sys.stdin:
        try:
            case = json.loads(line)
            started = time.perf_counter()
            outputs = engine.run(case)
            say(seconds=time.perf_counter() - started, outputs=outputs)
        except Exception as error:
            say(error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
