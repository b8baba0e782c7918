"""One graph for each batch size, padded to a power of two, and the runner that replays them.

A graph repeats the kernels that it recorded: the same grids, the same addresses, the same numbers
in their arguments. What changes from step to step must therefore lie in memory, in buffers that
stay where they are. Token ids, positions, slots, block tables and context lengths do; nothing that
the host computes from them may be recorded. The number of splits is such a number: it is chosen
once, for the longest context that may ever come, and is right for every shorter one.
"""

from collections.abc import Callable
from typing import Any

import torch

from course.engine.block_table import blocks_needed
from course.engine.kv_cache import CheckedSlots, PagedKVCache
from course.engine.paged_attention import BackendUnavailable
from course.engine.runner import Runner, StepInputs


class Buffers:
    """Where a graph of `size` rows finds its step. A row that nobody uses has no slot and no
    context: it writes nothing, reads nothing, and what comes out of it is not looked at."""

    def __init__(self, size: int, width: int, device):
        def zeros(*shape: int, dtype=torch.int64):
            return torch.zeros(shape, dtype=dtype, device=device)

        self.token_ids, self.positions = zeros(size), zeros(size)
        self.slots = zeros(size).fill_(-1)
        self.block_tables = zeros(size, width, dtype=torch.int32)
        self.context_lens = zeros(size, dtype=torch.int32)

    def load(self, inputs: StepInputs) -> None:
        """Put a step into the first rows and take away what an earlier one left in the others."""
        count, width = inputs.block_tables.shape
        for name in ("token_ids", "positions", "slots", "context_lens"):
            getattr(self, name)[:count].copy_(getattr(inputs, name), non_blocking=True)
        self.block_tables[:count, :width].copy_(inputs.block_tables, non_blocking=True)
        self.slots[count:].fill_(-1)
        self.context_lens[count:].fill_(0)


class CudaGraph:
    """Records `work()` at once; `replay()` runs it again and returns the tensor that it gave.

    Graphs of one engine share a memory pool. They never run side by side, and each keeps its result
    alive, so no other can take that memory.
    """

    pool: Any = None

    def __init__(self, work: Callable[[], torch.Tensor]):
        if CudaGraph.pool is None:
            CudaGraph.pool = torch.cuda.graph_pool_handle()
        # Run it outside first: kernels are compiled and libraries take their memory, which a
        # recording must not do.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                work()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=CudaGraph.pool):
            self._result = work()

    def replay(self) -> torch.Tensor:
        self._graph.replay()
        return self._result


def triton_attention(buffers: Buffers, block_size: int, sliding_window: int | None):
    """The Triton kernels over the buffers: they read lengths and tables on the device."""
    from course.engine.triton_attention import TritonAttention

    # With no bound given, splits are chosen for as many tokens as the tables can name.
    return TritonAttention(
        buffers.block_tables, buffers.context_lens, None, block_size, sliding_window
    )


class DecodeGraphs:
    """The graphs of one model and cache, recorded when their size is first needed.

    `make_graph(work)` gives an object with `replay()`; `make_attention(buffers, block_size,
    sliding_window)` an attention `(q, *layer of the cache, scale=...) -> (out, lse)` that reads the
    buffers anew each time. Both have substitutes in the tests.
    """

    def __init__(
        self,
        model,
        cache: PagedKVCache,
        max_num_seqs: int,
        max_model_len: int,
        make_graph: Callable = CudaGraph,
        make_attention: Callable = triton_attention,
    ):
        self.model, self.cache = model, cache
        self.max_num_seqs, self.max_model_len = max_num_seqs, max_model_len
        self.make_graph, self.make_attention = make_graph, make_attention
        self.graphs: dict[int, tuple[Buffers, Any]] = {}

    def fits(self, inputs: StepInputs) -> bool:
        """Is this a step of single tokens that a graph has room for? If not, it runs without."""
        count, width = inputs.block_tables.shape
        return (
            len(inputs.token_ids) == count <= self.max_num_seqs
            and width <= self._width
            and int(inputs.context_lens.max()) <= self.max_model_len
            and int(inputs.query_start_loc.diff().max()) == 1
        )

    @torch.inference_mode()
    def replay(self, inputs: StepInputs) -> torch.Tensor:
        """Hidden states of a step that `fits`: ``[num_tokens, hidden_size]``, as the model's
        `forward`. They stay as they are until the next replay of the same size."""
        count = len(inputs.token_ids)
        size = 1 << (count - 1).bit_length()
        if size not in self.graphs:
            self.graphs[size] = self._record(size)
        buffers, graph = self.graphs[size]
        buffers.load(inputs)
        return graph.replay()[:count]

    @property
    def _width(self) -> int:
        return blocks_needed(self.max_model_len, self.cache.block_size)

    def _record(self, size: int) -> tuple[Buffers, Any]:
        """Made while all rows are unused, so that running the work writes nothing."""
        buffers = Buffers(size, self._width, self.model.device)
        window = self.model.config.shape.sliding_window
        attention = self.make_attention(buffers, self.cache.block_size, window)
        slots = CheckedSlots(size, buffers.slots, None)  # the kernel leaves out slots of -1

        def attend(layer, q, k, v):
            self.cache.write(layer, k, v, slots)
            out, _ = attention(q, *self.cache.layer(layer), scale=q.shape[-1] ** -0.5)
            return out

        def work() -> torch.Tensor:
            return self.model.forward(buffers.token_ids, buffers.positions, attend)

        return buffers, self.make_graph(work)


class GraphRunner(Runner):
    """A runner whose steps of single tokens are replayed; all others run as they always did.

    `Runner.run` stays as it is. It plans the attention of each step and then calls the model: here
    the plan of a step that fits a graph is to replay it, and the model's `forward` does so.
    """

    def __init__(self, model, cache, tables, backend: str, graphs: DecodeGraphs):
        super().__init__(model, cache, tables, backend)
        self.graphs = graphs
        self.model = _ReplayingModel(model, graphs)

    def _plan(self, inputs: StepInputs):
        self.model.inputs = inputs if self.graphs.fits(inputs) else None
        return None if self.model.inputs is not None else super()._plan(inputs)


class _ReplayingModel:
    """The model as the runner sees it."""

    def __init__(self, model, graphs: DecodeGraphs):
        self.model, self.graphs = model, graphs
        self.inputs: StepInputs | None = None  # of the coming forward, if it is to be replayed

    def __getattr__(self, name: str):
        return getattr(self.model, name)

    def forward(self, token_ids, positions, attend) -> torch.Tensor:
        inputs, self.inputs = self.inputs, None
        if inputs is None:
            return self.model.forward(token_ids, positions, attend)
        return self.graphs.replay(inputs)


def use_graphs(llm, **substitutes) -> DecodeGraphs:
    """From now on this LLM decodes with graphs. BackendUnavailable says why it cannot.

    RuntimeError while requests are being served. `substitutes`: see `DecodeGraphs`.
    """
    core, runner = llm.core, llm.core.runner
    if isinstance(runner, GraphRunner):
        return runner.graphs
    if llm.has_work:
        raise RuntimeError("requests are being served: use graphs before the first, or after all")
    if not substitutes and (core.cache.device.type != "cuda" or runner.backend != "triton"):
        raise BackendUnavailable(
            f"CUDA graphs need an NVIDIA GPU and the triton backend; this engine runs on "
            f"{core.cache.device} with {runner.backend!r}: leave graphs off here"
        )
    if not substitutes and core.cache.write_backend != "triton":
        raise BackendUnavailable(
            f"the cache writes with {core.cache.write_backend!r}, which cannot leave out the rows "
            "of a graph that nobody uses: make it with write_backend='triton' or 'auto'"
        )
    config = llm.scheduler.config
    graphs = DecodeGraphs(
        llm.model, core.cache, config.max_num_seqs, config.max_model_len, **substitutes
    )
    core.runner = GraphRunner(llm.model, core.cache, runner.tables, runner.backend, graphs)
    return graphs
