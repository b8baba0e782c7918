"""A runner whose model computes all layers of a step in one call of C."""

import ctypes
from inspect import unwrap
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from course.engine.attention_batch import AttentionBatch
from course.engine.kv_cache import PagedKVCache
from course.engine.model import LlamaModel
from course.engine.native.attention import MOST_HEAD_DIM, MOST_ROWS, NativeAttention
from course.engine.native.library import Layer, Model, load
from course.engine.native.linear import Linear
from course.engine.native.operations import (
    NativeOperations,
    forget_largest,
    remember_largest,
)
from course.engine.runner import Runner, StepInputs

# The panels of gate and up are multiplied together, so each must be whole.
WHOLE = 32
NUM_OWN = 2  # attributes of NativeOperations: a hook would be one more
# The methods whose work the call in C does, as they are before anybody puts others there.
PLAIN = {name: getattr(LlamaModel, name) for name in ("forward", "logits", "_norm")}
PLAIN |= {name: getattr(PagedKVCache, name) for name in ("write", "_store", "layer")}


class NativeRunner(Runner):
    """`Runner.run` stays as it is: it plans the attention of a step and then calls the model, which
    here has seen the plan, and uses it instead of calling back in every layer."""

    def __init__(self, model, cache: PagedKVCache, tables, backend: str):
        super().__init__(model, cache, tables, backend)
        self.model = _WholeModel(model, cache)

    def run(self, step) -> dict[str, int]:
        # Between the model and the sampler nobody touches the logits, as long as this lasts.
        self.model.in_step = True
        try:
            return super().run(step)
        finally:
            self.model.in_step = False
            forget_largest()

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
        self.model, self.cache = model, cache
        self.coming: StepInputs | None = None
        self.in_step = False
        self.addresses: list[tuple] | None = None  # those that `whole` holds
        self._rate: torch.Tensor | None = None
        self._angles: tuple[torch.Tensor, torch.Tensor] | None = None  # of `_rate`
        # Kept from step to step: to fetch so much memory and to give it back costs more.
        self._logits: torch.Tensor | None = None
        self._work: torch.Tensor | None = None

    def __reduce__(self):  # addresses are of no use to a copy
        return _WholeModel, (self.model, self.cache)

    def __getattr__(self, name: str):
        if name.startswith("__"):  # what copy and pickle ask for
            raise AttributeError(name)
        return getattr(self.model, name)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """As the model's; they stay as they are until the next call."""
        if not _is_plain(self.model, "logits") or not _is_packed(self.model.lm_head):
            return self.model.logits(hidden)
        head, rows = self.model.lm_head, len(hidden)
        kept = self._logits
        if kept is None or len(kept) < rows or kept.shape[1] != head.out_features:
            self._logits = kept = hidden.new_empty(rows, head.out_features, dtype=torch.float32)
        logits, most, places = head.floats_and_largest(hidden, kept[:rows])
        if self.in_step:
            remember_largest(logits, most, places)
        return logits

    def forward(self, token_ids, positions, attend) -> torch.Tensor:
        inputs, self.coming = self.coming, None
        if inputs is None or not self._is_ready():
            return self.model.forward(token_ids, positions, attend)
        attention = NativeAttention(self._batch(inputs), self.model.device)
        config, rows = self.model.config, len(token_ids)
        num_heads, num_kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        about = attention.about(num_heads, num_kv_heads, head_dim, head_dim**-0.5)
        cos, sin = self._turns(int(attention.batch.context_lens.max()))
        hidden = F.embedding(token_ids, self.model.embedding)
        normed = torch.empty_like(hidden)
        qkv_width, out_width = (num_heads + 2 * num_kv_heads) * head_dim, num_heads * head_dim
        count = rows * (qkv_width + out_width + config.intermediate_size)
        if self._work is None or self._work.numel() < count or self._work.dtype != hidden.dtype:
            self._work = hidden.new_empty(count)
        # Every row has a context, so all of this is set before it is read.
        qkv, size = self._work.data_ptr(), self._work.element_size()
        out = qkv + rows * qkv_width * size
        load(hidden.dtype).forward(
            ctypes.byref(self.whole),
            ctypes.byref(about),
            hidden.data_ptr(),
            rows,
            positions.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            inputs.slots.data_ptr(),
            normed.data_ptr(),
            qkv,
            out,
            out + rows * out_width * size,
        )
        return normed

    def _turns(self, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin of at least so many positions, float32 [positions, head_dim / 2]."""
        rate, angles = self.model.rope_rate, self._angles
        is_current = self._rate is not None and np.array_equal(self._rate.numpy(), rate.numpy())
        if angles is None or not is_current or len(angles[0]) < num_positions:
            # Seldom: at a doubling. On the CPU, whatever the user's default is.
            positions = torch.arange(1 << (num_positions - 1).bit_length(), device="cpu")
            angles = self.model.ops.rope_angles(positions, rate, self.model.dtype)
            self._rate, self._angles = rate.clone(), angles
        return angles

    def _is_ready(self) -> bool:
        """Whether C can do this step: somebody may have put a method of his own, or other weights,
        in the place of ours since the last one."""
        model, cache = self.model, self.cache
        if not _methods_are_plain(model, cache):
            return False
        caches = cache.keys.data_ptr(), cache.values.data_ptr()
        addresses = [caches, (model.final_norm.data_ptr(),), *map(_addresses, model.layers)]
        if addresses == self.addresses:
            return True
        if not fits(model, cache):
            return False
        self.addresses = addresses
        self.layers = (Layer * len(model.layers))(*addresses[2:])
        self.whole = Model(
            layers=self.layers,
            final_norm=model.final_norm.data_ptr(),
            num_layers=len(model.layers),
            hidden_size=model.config.hidden_size,
            intermediate_size=model.config.intermediate_size,
            keys=caches[0],
            values=caches[1],
            layer_stride=cache.keys.stride(0),
            eps=model.config.rms_norm_eps,
        )
        return True

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


def _is_packed(linear) -> bool:
    return type(linear) is Linear and linear.packed


def _addresses(layer) -> tuple[int | None, ...]:
    """In the order of `Layer`; none where something else stands in the place of a `Linear`."""
    qkv, o, gate_up, down = layer.qkv, layer.o, layer.gate_up, layer.down
    if not type(qkv) is type(o) is type(gate_up) is type(down) is Linear:
        return ()
    return (
        layer.attention_norm.data_ptr(),
        qkv.weight.data_ptr(),
        None if qkv.bias is None else qkv.bias.data_ptr(),
        o.weight.data_ptr(),
        layer.mlp_norm.data_ptr(),
        gate_up.weight.data_ptr(),
        down.weight.data_ptr(),
    )


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
    """Whether the C code can do all of the model's layers over this cache, and nothing of a step is
    somebody else's: a hook, a subclass, a weight of another shape."""
    config, dtype = model.config, model.dtype
    size, inner = config.hidden_size, config.intermediate_size
    width = config.num_heads * config.head_dim
    qkv_width = width + 2 * config.num_kv_heads * config.head_dim
    shape = (cache.num_blocks, cache.block_size, config.num_kv_heads, config.head_dim)

    def is_whole(tensor, *shape: int) -> bool:
        return tensor.shape == shape and tensor.dtype == dtype and tensor.is_contiguous()

    def is_linear(linear, in_features: int, out_features: int) -> bool:
        if not _is_packed(linear):
            return False
        weight, bias = linear.weight, linear.bias
        return (
            weight.shape[:3] == (-(-out_features // WHOLE), in_features // weight.shape[3], WHOLE)
            and weight.dtype == dtype
            and weight.is_contiguous()
            and (bias is None or (linear is layer.qkv and is_whole(bias, out_features)))
        )

    for layer in model.layers:
        if not (
            is_whole(layer.attention_norm, size)
            and is_linear(layer.qkv, size, qkv_width)
            and is_linear(layer.o, width, size)
            and is_whole(layer.mlp_norm, size)
            and is_linear(layer.gate_up, size, 2 * inner)
            and is_linear(layer.down, inner, size)
        ):
            return False
    return (
        _methods_are_plain(model, cache)
        and model.ops.dtype == dtype
        and cache.write_backend == "native"
        and all(is_whole(t, len(model.layers), *shape) for t in (cache.keys, cache.values))
        and is_whole(model.final_norm, size)
        and inner % WHOLE == 0
        and config.head_dim <= MOST_HEAD_DIM
        and config.num_heads // config.num_kv_heads <= MOST_ROWS
    )


def _methods_are_plain(model, cache) -> bool:
    return (
        type(model.ops) is NativeOperations
        and len(vars(model.ops)) == NUM_OWN
        and all(_is_plain(model, name) for name in ("forward", "_norm"))
        and all(_is_plain(cache, name) for name in ("write", "_store", "layer"))
    )


def _is_plain(owner, name: str) -> bool:
    """Whether this method of a model or a cache is the course's own, and of this object."""
    method = getattr(owner, name)
    plain = PLAIN[name]
    return getattr(method, "__func__", None) is plain and method.__self__ is owner
