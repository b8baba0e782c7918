"""The engines that are measured, each behind one method: run a case, give the tokens.

Imports nothing of the course but for the engine it is asked for, so that it runs in an
environment that has only a peer in it. A case is plain data: {"prompts": [[ids], ...],
"max_tokens": [...], "num_samples": 1, "pool_tokens": null}.
"""

import os
import time
from typing import Any

BLOCK_SIZE = 16
ROOMY = 60_000  # tokens of keys and values where a case sets no limit
LONGEST = 2_048
MOST_AT_ONCE = 64
PATIENCE = 120  # seconds of one case for an engine that may take many times as long as the others
BUDGET = 1_024  # tokens that one step computes, for every engine that takes a budget


class Ours:
    """The engine of this course. The prefix cache is on and is emptied before every run."""

    def __init__(self, path: str, dtype: str):
        import torch

        from course.engine import load_model

        self.loaded = load_model(path, getattr(torch, dtype))
        self.llm: Any = None
        self.pool_tokens = 0
        self.version = {"torch": torch.__version__}

    def run(self, case: dict) -> list[list[int]]:
        from course.engine import LLM, SamplingParams

        pool_tokens = case["pool_tokens"] or ROOMY
        if pool_tokens != self.pool_tokens:
            self.llm = LLM(
                self.loaded,
                num_blocks=pool_tokens // BLOCK_SIZE,
                block_size=BLOCK_SIZE,
                max_num_seqs=MOST_AT_ONCE,
                max_num_batched_tokens=BUDGET,
            )
            self.pool_tokens = pool_tokens
        self.llm.scheduler.kv_manager.reset_prefix_cache()
        n = case["num_samples"]
        how = {"n": n, "temperature": float(n > 1), "seed": 0, "ignore_eos": True}
        params = [SamplingParams(max_tokens=count, **how) for count in case["max_tokens"]]
        answers = self.llm.generate(case["prompts"], params)
        return [sample.token_ids for answer in answers for sample in answer.samples]


class Transformers:
    """`generate` of the transformers library, on the same weights: static batches.

    Prompts of different lengths are padded on the left, and a batch runs until its longest answer
    is there: what a static batch costs.
    """

    def __init__(self, path: str, dtype: str):
        import torch
        import transformers  # type: ignore[import-not-found]  # a peer, only measured if there

        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=getattr(torch, dtype)
        ).eval()
        self.version = {"transformers": transformers.__version__, "torch": torch.__version__}

    def run(self, case: dict) -> list[list[int]]:
        if case["pool_tokens"]:
            raise NotImplementedError("generate has no pool of memory to limit")
        outputs = []
        for at in range(0, len(case["prompts"]), MOST_AT_ONCE):
            batch = slice(at, at + MOST_AT_ONCE)
            outputs += self._batch(case["prompts"][batch], case["max_tokens"][batch], case)
        return outputs

    def _batch(self, prompts: list, max_tokens: list, case: dict) -> list[list[int]]:
        import torch

        n, width, longest = case["num_samples"], max(map(len, prompts)), max(max_tokens)
        ids, mask = torch.zeros(2, len(prompts), width, dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        with torch.inference_mode():
            out = self.model.generate(
                ids,
                attention_mask=mask,
                min_new_tokens=longest,
                max_new_tokens=longest,
                do_sample=n > 1,
                num_return_sequences=n,
                pad_token_id=0,
            )
        counts = [count for count in max_tokens for _ in range(n)]
        return [row[:k] for row, k in zip(out[:, width:].tolist(), counts, strict=True)]


class TransformersBatching(Transformers):
    """The same library's continuous batching: pages, a queue, and no padding."""

    def run(self, case: dict) -> list[list[int]]:
        from transformers import GenerationConfig  # type: ignore[import-not-found]
        from transformers.generation.configuration_utils import (  # type: ignore[import-not-found]
            ContinuousBatchingConfig,
        )

        n = case["num_samples"]
        pool = ContinuousBatchingConfig(
            page_size=BLOCK_SIZE,
            num_blocks=(case["pool_tokens"] or ROOMY) // BLOCK_SIZE,
            max_batch_tokens=BUDGET,
            max_requests_per_batch=MOST_AT_ONCE,
        )
        how = GenerationConfig(do_sample=n > 1, num_return_sequences=n, pad_token_id=0)
        answers: dict[str, list[int]] = {}
        end = time.monotonic() + PATIENCE
        with self.model.continuous_batching_context_manager(
            generation_config=how, continuous_batching_config=pool
        ) as manager:
            names = [
                manager.add_request(list(prompt), max_new_tokens=count, eos_token_id=-1)
                for prompt, count in zip(case["prompts"], case["max_tokens"], strict=True)
            ]
            while len(answers) < n * len(names):
                if time.monotonic() > end:
                    manager.stop(hard_stop=True)  # else it computes to the end
                    raise TimeoutError(f"it had not ended after {PATIENCE} seconds")
                done = manager.get_result(timeout=1)
                if done is None and not manager.is_running():
                    raise RuntimeError("its batching ended before all answers were there")
                if done is not None and done.is_finished():
                    if done.error:
                        raise RuntimeError(done.error)
                    answers[done.request_id] = done.generated_tokens
        children = [f"__child#{i}" for i in range(n - 1)]
        return [answers[name + child] for name in names for child in ("", *children)]


class VLLM:
    """vLLM; its CPU build runs here. Loaded anew where a case changes the pool."""

    eager = True

    def __init__(self, path: str, dtype: str):
        # One process: the worker is one already. 60,000 tokens of keys and values are 1.4 GB.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "3")
        import vllm  # type: ignore[import-not-found]

        self.path, self.dtype = path, dtype
        self.llm: Any = None
        self._load(None)
        self.version = {"vllm": vllm.__version__}

    def _load(self, pool_tokens: int | None) -> None:
        import vllm  # type: ignore[import-not-found]

        self.llm, self.pool_tokens = None, pool_tokens
        block_size = 2 * BLOCK_SIZE  # the least that its attention for CPUs takes
        num_blocks = -(-(pool_tokens or ROOMY) // block_size)
        self.llm = vllm.LLM(
            self.path,
            dtype=self.dtype,
            enforce_eager=self.eager,
            skip_tokenizer_init=True,
            max_model_len=min(LONGEST, num_blocks * block_size),  # it refuses a shorter pool
            max_num_seqs=MOST_AT_ONCE,
            max_num_batched_tokens=LONGEST,  # its least, for this longest request
            block_size=block_size,
            num_gpu_blocks_override=num_blocks + 1,  # its block 0 never holds a token
            disable_log_stats=True,
        )

    def run(self, case: dict) -> list[list[int]]:
        from vllm import SamplingParams  # type: ignore[import-not-found]

        if case["pool_tokens"] != self.pool_tokens:
            self._load(case["pool_tokens"])
        self.llm.reset_prefix_cache()
        n = case["num_samples"]
        params = [
            SamplingParams(
                n=n,
                temperature=float(n > 1),
                seed=0,
                max_tokens=count,
                min_tokens=count,
                ignore_eos=True,
                detokenize=False,
            )
            for count in case["max_tokens"]
        ]
        prompts = [{"prompt_token_ids": list(p)} for p in case["prompts"]]
        done = self.llm.generate(prompts, params, use_tqdm=False)
        return [list(sample.token_ids) for request in done for sample in request.outputs]


class CompiledVLLM(VLLM):
    """The same with its compiled model."""

    eager = False


class LlamaCpp:
    """llama.cpp through its Python binding, on the 4-bit weights of the file as they are."""

    def __init__(self, path: str, dtype: str):
        import llama_cpp  # type: ignore[import-not-found]

        if not path.endswith(".gguf"):
            raise ValueError("llama.cpp reads a GGUF file")
        self.llm = llama_cpp.Llama(
            path,
            n_ctx=LONGEST,
            n_threads=int(os.environ["OMP_NUM_THREADS"]),
            n_threads_batch=int(os.environ["OMP_NUM_THREADS"]),
            verbose=False,
        )
        self.version = {"llama_cpp": llama_cpp.__version__}

    def run(self, case: dict) -> list[list[int]]:
        if case["pool_tokens"] or case["num_samples"] > 1 or len(case["prompts"]) > 1:
            raise NotImplementedError("the binding serves one request at a time")
        self.llm.reset()
        stream = self.llm.generate(list(case["prompts"][0]), temp=0.0)
        return [[next(stream) for _ in range(case["max_tokens"][0])]]


class LinearLayers:
    """The bound: the linear layers alone, on as many rows as an engine has to push through them.

    Prompts in steps of the budget, then one step a token with the rows that are still running. No
    attention, no norms, no sampling, no scheduling.
    """

    def __init__(self, path: str, dtype: str):
        import torch

        from course.engine import load_model

        self.model, _ = load_model(path, getattr(torch, dtype))
        self.version = {"torch": torch.__version__}

    def run(self, case: dict) -> list[list[int]]:
        import torch

        lengths = [n for n in case["max_tokens"] for _ in range(case["num_samples"])]
        with torch.inference_mode():
            todo = sum(map(len, case["prompts"]))
            while todo > 0:
                self._pass(min(todo, BUDGET), len(case["prompts"]))
                todo -= BUDGET
            for step in range(1, max(lengths)):
                rows = sum(n > step for n in lengths)
                self._pass(rows, rows)
        return [[0] * n for n in lengths]

    def _pass(self, rows: int, num_samples: int) -> None:
        import torch

        model, config = self.model, self.model.config
        x = torch.randn(rows, config.hidden_size).to(model.dtype)
        heads = torch.randn(rows, config.num_heads * config.head_dim).to(model.dtype)
        inner = torch.ones(rows, config.intermediate_size, dtype=model.dtype)
        for layer in model.layers:
            layer.qkv(x)
            layer.o(heads)
            layer.gate_up(x)
            layer.down(inner)
        model.lm_head(x[:num_samples])


class WeightsOnly:
    """The bound of decode: every weight read once a token, and nothing done with it.

    One pass over one tensor of all weights, by the quickest reduction that PyTorch has.
    """

    def __init__(self, path: str, dtype: str):
        import torch

        from course.engine import load_model

        model, _ = load_model(path, getattr(torch, dtype))
        linears = [
            x for layer in model.layers for x in (layer.qkv, layer.o, layer.gate_up, layer.down)
        ]
        weights = [linear.weight.flatten() for linear in (*linears, model.lm_head)]
        self.weights = torch.cat(weights).view(torch.int32)
        self.version = {"torch": torch.__version__}

    def run(self, case: dict) -> list[list[int]]:
        for _ in range(max(case["max_tokens"])):
            self.weights.max()
        return [[0] * n for n in case["max_tokens"] for _ in range(case["num_samples"])]


ENGINES = {
    "ours": Ours,
    "transformers": Transformers,
    "transformers batching": TransformersBatching,
    "vllm": VLLM,
    "vllm compiled": CompiledVLLM,
    "llama.cpp": LlamaCpp,
    "weights only": WeightsOnly,
    "linear layers": LinearLayers,
}
