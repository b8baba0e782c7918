"""The engine: requests in, completions out, and every piece of the earlier lessons at work."""

import warnings
from collections.abc import Iterator, Sequence

from course.engine.block_pool import BlockPool
from course.engine.completion import Completion, Piece, as_prompts, pair_params
from course.engine.core import EngineCore, Job
from course.engine.interrupts import interrupts_held
from course.engine.kv_cache import PagedKVCache
from course.engine.kv_manager import KVManager
from course.engine.loading.loader import load_model
from course.engine.native.runner import use_native
from course.engine.pool_size import choose_num_blocks
from course.engine.request import Request
from course.engine.sampling_params import SamplingParams
from course.engine.scheduler import RequestRefused, Scheduler, SchedulerConfig
from course.engine.slab import SlabKVManager
from course.engine.stats import Stats

__all__ = ["LLM", "Completion", "RequestRefused", "SamplingParams"]


class LLM:
    """A language model behind a paged KV cache, a prefix cache and a continuous batch.

    `model` is "smollm2", "tiny", a .gguf file, a Hugging Face folder, or a (model, tokenizer) pair
    that is loaded already. The pool is sized by `num_blocks` or by `kv_cache_bytes`, not both.
    `kv_policy="slab"` reserves `max_model_len` tokens in one piece for each request instead, on the
    same pool, which is what pages are measured against. `block_order` says in which order fresh
    blocks are handed out, for a worked example whose ids should not be 0, 1, 2, ...
    """

    def __init__(
        self,
        model="smollm2",
        *,
        block_size: int = 16,
        num_blocks: int | None = None,
        kv_cache_bytes: int | None = None,
        dtype=None,
        device=None,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 1024,
        max_model_len: int | None = None,
        prefix_caching: bool = True,
        chunked_prefill: bool = True,
        watermark: float = 0.01,
        attention_backend: str = "auto",
        kv_policy: str = "paged",
        block_order: Sequence[int] | None = None,
    ):
        loaded = model if isinstance(model, tuple) else load_model(model, dtype, device)
        self.model, self.tokenizer = loaded
        shape = self.model.config.shape
        limit = shape.max_model_len if max_model_len is None else max_model_len
        if not 1 <= limit <= shape.max_model_len:
            raise ValueError(
                f"max_model_len={limit} is outside 1..{shape.max_model_len}, the range of the model"
            )
        num_blocks = choose_num_blocks(
            shape, block_size, num_blocks, kv_cache_bytes, self.model.dtype, self.model.device
        )
        # The tensors first: a pool that does not fit fails here, before its blocks are listed.
        self.cache = PagedKVCache(
            shape, num_blocks, block_size, dtype=self.model.dtype, device=self.model.device
        )
        if kv_policy == "paged":
            manager = KVManager(
                num_blocks,
                block_size,
                prefix_caching=prefix_caching,
                watermark=watermark,
                sliding_window=shape.sliding_window,
                pool=None if block_order is None else BlockPool(num_blocks, order=block_order),
            )
        elif kv_policy == "slab":
            manager = SlabKVManager(num_blocks, block_size, limit)
        else:
            raise ValueError(f'kv_policy={kv_policy!r} is unknown; choose "paged" or "slab"')
        config = SchedulerConfig(
            max_num_seqs, max_num_batched_tokens, chunked_prefill, max_model_len=limit
        )
        self.kv_manager = manager
        self.scheduler = Scheduler(config, manager)
        self.core = EngineCore(
            self.model, self.tokenizer, self.cache, self.scheduler, attention_backend
        )
        use_native(self.core)

    def generate(
        self, prompts, params=None, *, extra_key: str | bytes | None = None, on_step=None
    ) -> list[Completion]:
        """Complete every prompt; the answers come in the order of the prompts.

        `prompts` is one prompt or a list: text, or token ids. `params` is one SamplingParams for
        all or one each. `extra_key` (a tenant's salt, an adapter's name): blocks are shared only
        among prompts with the same one. `on_step(llm)` is called after every step.

        A prompt that this engine can never serve is refused with its reason: alone, by raising
        RequestRefused; in a batch, by a Completion with finish_reason "refused" and `.error`, while
        the others go on. Wrong types and token ids outside the vocabulary raise before any work.
        """
        batch = as_prompts(prompts, self.tokenizer)
        asked = list(zip(batch, pair_params(params, len(batch)), strict=True))
        with interrupts_held() as interrupted:
            jobs = self._serve(asked, extra_key, on_step, interrupted)
        return [Completion.of(prompt, group) for prompt, group in zip(batch, jobs, strict=True)]

    def _serve(self, asked, extra_key, on_step, interrupted) -> list[list[Job] | RequestRefused]:
        jobs: list[list[Job] | RequestRefused] = []
        try:
            for prompt, params in asked:
                try:
                    jobs.append(self.core.submit(prompt, params, extra_key))
                except RequestRefused as refused:
                    jobs.append(refused)
            refusals = [job for job in jobs if isinstance(job, RequestRefused)]
            if refusals and len(jobs) == 1:
                raise refusals[0]
            for refused in refusals:
                warnings.warn(f"a prompt was refused: {refused}", stacklevel=3)
            wanted = [job.request for group in jobs if isinstance(group, list) for job in group]
            while not interrupted() and any(r.finish_reason is None for r in wanted):
                self.core.step()
                if on_step is not None:
                    on_step(self)
        finally:  # after an error or an interrupt nothing of this call may stay behind
            for group in jobs:
                self.core.drop(group if isinstance(group, list) else [])
        return jobs

    def stream(
        self, prompt, params=None, *, extra_key: str | bytes | None = None
    ) -> Iterator[Piece]:
        """Yield the answer to one prompt as it grows: pieces of text, each a `str`.

        Joined they are the text that `generate` gives. Closing the iterator early aborts the
        request. Other streams and calls may run between two pieces; all share one batch.
        """
        (ids,) = as_prompts(prompt, self.tokenizer, one=True)
        (one_params,) = pair_params(params, 1)
        if one_params.n != 1:
            raise ValueError(f"stream follows one sample, got n={one_params.n}; use generate")
        with interrupts_held():
            pieces = self._pieces(self.core.submit(ids, one_params, extra_key))
            next(
                pieces
            )  # once started, a generator that is dropped unread still runs its `finally`
        return pieces

    def chat(self, messages: Sequence[dict], params=None) -> Completion:
        """Answer a conversation: [{"role": "user", "content": "..."}, ...]."""
        text = self.tokenizer.apply_chat_template(messages)
        return self.generate(text, params)[0]

    def _pieces(self, jobs: list[Job]) -> Iterator[Piece]:
        (job,) = jobs
        try:
            yield Piece("", job.request)
            while job.request.finish_reason is None:
                self.core.step()
                if job.request.finish_reason is None and (text := job.take_text()):
                    yield Piece(text, job.request)
            yield Piece(job.take_text(), job.request)  # the last piece says why it ended
        finally:
            self.core.drop(jobs)

    def step(self) -> list[Request]:
        """Run one step of the engine; return the requests that finished in it."""
        return self.core.step()

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    @property
    def stats(self) -> Stats:
        """Counters since the engine was made, and how the pool stands now."""
        return self.core.stats

    def check_invariants(self) -> None:
        """Raise if the books do not agree: owners and ref counts, free and used, hashes, queues."""
        self.core.check_invariants()
