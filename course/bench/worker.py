"""One engine in a process of its own: loads once, then serves a case for every line it reads.

A line in is {"prompts": [[ids], ...], "max_tokens": [...]}; a line out is {"seconds": ...,
"outputs": [[ids], ...]} or {"error": ...}. The first line out tells that the engine is loaded.
Imports nothing of the course but for the engine it is asked for, so that it runs in an
environment that has only a peer in it.
"""

import argparse
import json
import os
import sys
import time


class Ours:
    """The engine of this course. The prefix cache is off: every case is computed in full."""

    def __init__(self, path: str, dtype: str):
        import torch

        from course.engine import LLM

        self.llm = LLM(
            path,
            dtype=getattr(torch, dtype),
            prefix_caching=False,
            kv_cache_bytes=2**30,
            max_num_seqs=64,
        )
        self.version = {"torch": torch.__version__}

    def run(self, prompts, max_tokens):
        from course.engine import SamplingParams

        params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in max_tokens]
        return [c.token_ids for c in self.llm.generate(prompts, params)]


class Transformers:
    """`generate` of the transformers library, on the same GGUF file. One length a batch."""

    def __init__(self, path: str, dtype: str):
        import torch
        import transformers  # type: ignore[import-not-found]  # a peer, only measured if there

        folder, file = os.path.split(path)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=file, dtype=getattr(torch, dtype)
        ).eval()
        self.version = {"transformers": transformers.__version__, "torch": torch.__version__}

    def run(self, prompts, max_tokens):
        import torch

        if len({len(p) for p in prompts}) > 1 or len(set(max_tokens)) > 1:
            raise NotImplementedError("generate serves one length of prompt and output a batch")
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            out = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                min_new_tokens=max_tokens[0],
                max_new_tokens=max_tokens[0],
                do_sample=False,
                pad_token_id=0,
            )
        return out[:, ids.shape[1] :].tolist()


class WeightsOnly:
    """The bound: each step's linear layers alone, on activations of the same shape.

    No attention, no norms, no scheduling, no prefill: an engine that reads its weights once a step
    cannot be faster by more than its prefill is free.
    """

    def __init__(self, path: str, dtype: str):
        import torch

        from course.engine import load_model

        self.model, _ = load_model(path, getattr(torch, dtype))
        self.version = {"torch": torch.__version__}

    def run(self, prompts, max_tokens):
        import torch

        model, rows, steps = self.model, len(prompts), max(max_tokens)
        config = model.config
        x = torch.randn(rows, config.hidden_size).to(model.dtype)
        heads = torch.randn(rows, config.num_heads * config.head_dim).to(model.dtype)
        with torch.inference_mode():
            for _ in range(steps):
                for layer in model.layers:
                    layer.qkv(x)
                    layer.o(heads)
                    width = layer.gate_up(x).shape[-1] // 2
                    layer.down(torch.ones(rows, width, dtype=model.dtype))
                model.lm_head(x)
        return [[0] * n for n in max_tokens]


ENGINES = {"ours": Ours, "transformers": Transformers, "weights only": WeightsOnly}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("model", help="path of the GGUF file")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    answers = os.fdopen(os.dup(1), "w")  # libraries that print must not disturb the answers
    os.dup2(2, 1)

    def say(**answer) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        import torch

        torch.set_num_threads(args.threads)
        started = time.perf_counter()
        engine = ENGINES[args.engine](args.model, args.dtype)
        say(loaded=time.perf_counter() - started, version=engine.version)
    except Exception as error:
        say(error=f"{type(error).__name__}: {error}")
        return
    for line in sys.stdin:
        case = json.loads(line)
        try:
            started = time.perf_counter()
            outputs = engine.run(case["prompts"], case["max_tokens"])
            say(seconds=time.perf_counter() - started, outputs=outputs)
        except Exception as error:
            say(error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
