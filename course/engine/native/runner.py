"""A runner whose model computes all layers of a step in one call of C."""

import ctypes
from inspect import unwrap
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from course.engine.attention_batch import AttentionBatch
from course.engine.kv_cache import PagedKVCache
from course.engine.native.attention import MOST_HEAD_DIM, MOST_ROWS, NativeAttention
from course.engine.native.library import Layer, Model, load
from course.engine.native.operations import NativeOperations
from course.engine.runner import Runner, StepInputs

# The panels of gate and up are multiplied together, so each must be whole.
WHOLE = 32


class NativeRunner(Runner):
    """`Runner.run` stays as it is: it plans the attention of a step and then calls the model, which
    here has seen the plan, and uses it instead of calling back in every layer."""

    def __init__(self, model, cache: PagedKVCache, tables, backend: str):
        super().__init__(model, cache, tables, backend)
        self.model = _WholeModel(model, cache)

    def _plan(self, inputs: StepInputs):
        plan = _Later(super()._plan, inputs)
        self.model.coming = inputs if self.cache is self.model.cache else None
        return plan


class _Later:
    """The plan of a step, made only if somebody attends with it."""

    def __init__(self, make, inputs: StepInputs):
        self.make, self.inputs, self.made = make, inputs, None

    def attend(self, *args):
        if self.made is None:
            self.made = self.make(self.inputs)
        return self.made.attend(*args)


class _WholeModel:
    """The model as the runner sees it."""

    def __init__(self, model, cache: PagedKVCache):
        self.model, self.cache, self.coming = model, cache, None
        self.layers = (Layer * len(model.layers))(*map(_addresses, model.layers))
        self.whole = Model(
            layers=self.layers,
            final_norm=model.final_norm.data_ptr(),
            num_layers=len(model.layers),
            hidden_size=model.config.hidden_size,
            intermediate_size=model.config.intermediate_size,
            keys=cache.keys.data_ptr(),
            values=cache.values.data_ptr(),
            layer_stride=cache.keys.stride(0),
            eps=model.config.rms_norm_eps,
        )
        self.memory = id(cache.keys), id(cache.values)  # whose addresses these are

    def __getattr__(self, name: str):
        return getattr(self.model, name)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.model.lm_head.floats(hidden)

    def forward(self, token_ids, positions, attend) -> torch.Tensor:
        inputs, self.coming = self.coming, None
        # Somebody may have put a method of his own, or another tensor, in the place of ours.
        is_ours = self.memory == (id(self.cache.keys), id(self.cache.values))
        is_ours = is_ours and "forward" not in vars(self.model) and "write" not in vars(self.cache)
        if inputs is None or not is_ours:
            return self.model.forward(token_ids, positions, attend)
        attention = NativeAttention(self._batch(inputs), self.model.device)
        config, rows = self.model.config, len(token_ids)
        num_heads, num_kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        about = attention.about(num_heads, num_kv_heads, head_dim, head_dim**-0.5)
        cos, sin = self.model.ops.rope_angles(positions, self.model.rope_rate, self.model.dtype)
        hidden = F.embedding(token_ids, self.model.embedding)
        normed = torch.empty_like(hidden)
        qkv = hidden.new_empty(rows, (num_heads + 2 * num_kv_heads) * head_dim)
        out = hidden.new_empty(rows, num_heads * head_dim)  # every row has a context: all is set
        inner = hidden.new_empty(rows, config.intermediate_size)
        load(hidden.dtype).forward(
            ctypes.byref(self.whole),
            ctypes.byref(about),
            hidden.data_ptr(),
            rows,
            cos.data_ptr(),
            sin.data_ptr(),
            inputs.slots.data_ptr(),
            normed.data_ptr(),
            qkv.data_ptr(),
            out.data_ptr(),
            inner.data_ptr(),
        )
        return normed

    def _batch(self, inputs: StepInputs) -> AttentionBatch:
        """As `check_batch` makes it, without asking again what the engine's own tables hold, but
        for the one thing that would read foreign memory."""
        window = self.model.config.shape.sliding_window
        tables, lens, starts = (
            t.numpy().astype(np.int64)
            for t in (inputs.block_tables, inputs.context_lens, inputs.query_start_loc)
        )
        named = int(tables.max()) + 1
        if named > self.cache.num_blocks or (window is None and tables.min() < 0):
            raise ValueError(f"a table names a block outside 0..{self.cache.num_blocks - 1}")
        return AttentionBatch(tables, lens, starts, self.cache.block_size, window, named)


def _addresses(layer) -> Layer:
    tensors = {
        "attention_norm": layer.attention_norm,
        "qkv": layer.qkv.weight,
        "qkv_bias": layer.qkv.bias,
        "o": layer.o.weight,
        "mlp_norm": layer.mlp_norm,
        "gate_up": layer.gate_up.weight,
        "down": layer.down.weight,
    }
    return Layer(**{name: None if t is None else t.data_ptr() for name, t in tensors.items()})


def use_native(core) -> None:
    """From now on this engine computes a step's layers in one call, if its runner and its cache are
    the course's own and everything runs in C here; else nothing changes."""
    runner, cache = core.runner, core.cache
    # Where learners put pieces of their own in the place of ours, theirs must do the work.
    methods = (type(runner).run, "runner.py"), (type(cache).write, "kv_cache.py")
    if not all(_is_ours(method, file) for method, file in methods):
        return
    if runner.backend == "native" and fits(runner.model, cache):
        core.runner = NativeRunner(runner.model, cache, runner.tables, runner.backend)


def _is_ours(function, file: str) -> bool:
    return Path(unwrap(function).__code__.co_filename) == Path(__file__).parents[1] / file


def fits(model, cache: PagedKVCache) -> bool:
    """Whether the C code can do all of the model's layers over this cache."""
    config = model.config
    linears = [x for layer in model.layers for x in (layer.qkv, layer.o, layer.gate_up, layer.down)]
    return (
        isinstance(model.ops, NativeOperations)
        and len(cache._tensors) == 2  # keys and values alone: no scales of an int8 cache
        and cache.write_backend == "native"
        and model.dtype == cache.dtype
        and all(linear.packed for linear in linears)
        and config.intermediate_size % WHOLE == 0
        and config.head_dim <= MOST_HEAD_DIM
        and config.num_heads // config.num_kv_heads <= MOST_ROWS
    )
