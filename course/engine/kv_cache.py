"""The paged KV cache: two big tensors, cut into blocks of equal size.

Slot ``s`` is row ``s % block_size`` of block ``s // block_size``. The cache knows nothing of
requests: it writes where it is told to write and reads where it is told to read.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import index

import torch

from course.engine.block_table import blocks_needed, slot_mapping
from course.engine.native.attention import can_copy, copy_to_slots
from course.engine.triton_support import choose_backend
from course.sizing import ModelShape


@dataclass(frozen=True)
class CheckedSlots:
    """The slots of one step, looked at once and then used by every layer (see `check_slots`)."""

    num_tokens: int
    slots: torch.Tensor  # int64, on the cache's device
    rows: torch.Tensor | None  # which tokens have a slot; None: all of them


class PagedKVCache:
    """Keys and values of all layers.

    ``keys`` and ``values``: ``[num_layers, num_blocks, block_size, num_kv_heads, head_dim]``.
    Invariant: a slot changes only through `write`, `write_blocks` or as a destination of
    `copy_blocks`. Slots that were never written hold anything, NaN included; nobody may read them.

    ``write_backend``: "torch", "native", "triton" or "auto" (the quickest that runs here).
    """

    def __init__(
        self,
        shape: ModelShape,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        write_backend: str = "auto",
    ):
        for name, value in (("num_blocks", num_blocks), ("block_size", block_size)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r}: a cache needs at least 1; give an int >= 1")
        if shape.kv_lora_rank is not None:
            raise ValueError(
                f"{shape.name} keeps one latent of rank {shape.kv_lora_rank} a token, not keys and "
                "values per head: size it with course.sizing, but this cache cannot hold it"
            )
        size = (shape.num_layers, num_blocks, block_size, shape.num_kv_heads, shape.head_dim)
        self.shape, self.num_blocks, self.block_size = shape, num_blocks, block_size
        self.dtype = dtype
        # empty, not zeros: the operating system hands out a page when it is first written.
        try:
            self.keys = torch.empty(size, dtype=dtype, device=device)
            self.values = torch.empty(size, dtype=dtype, device=device)
        except (RuntimeError, TypeError, OverflowError) as error:  # what torch raises, by size
            raise RuntimeError(
                f"no memory on {device} for keys and values of {num_blocks} blocks of {block_size} "
                f"tokens ({2 * math.prod(size) * dtype.itemsize} bytes): make the pool smaller"
            ) from error
        self.device = self.keys.device
        self.write_backend = choose_backend(write_backend, self.device)
        self._tensors = [self.keys, self.values]  # everything that moves when a block moves

    @property
    def num_slots(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def num_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self._tensors)

    def layer(self, layer: int) -> tuple[torch.Tensor, ...]:
        """What attention reads of one layer: ``plan.attend(q, *cache.layer(i))``."""
        return tuple(t[layer] for t in self._tensors)

    def check_slots(self, slots: Sequence[int] | torch.Tensor) -> CheckedSlots:
        """Check the slots of a step, once for all layers; -1 means "do not write this token".

        Slots on a GPU are not looked at (that would stop the GPU): the kernel masks them instead.
        """
        if isinstance(slots, CheckedSlots):
            return slots
        slots = torch.as_tensor(slots)
        if slots.numel() == 0:
            slots = slots.long()
        if slots.dim() != 1 or slots.dtype not in (torch.int64, torch.int32):
            raise ValueError(
                f"slots are {slots.dtype} of shape {tuple(slots.shape)}; "
                "give one integer for each token, -1 for a token that is not to be written"
            )
        slots, num_tokens, rows = slots.long(), slots.numel(), None
        if slots.device.type == "cpu" and num_tokens:
            low, high = map(int, slots.aminmax())
            if low < -1 or high >= self.num_slots:
                raise ValueError(
                    f"slot {low if low < -1 else high} is outside the cache: "
                    f"slots are 0 to {self.num_slots - 1}, or -1 for a token that is not written"
                )
            if low == -1:  # as an index, -1 would be the last slot of the cache
                rows = (slots >= 0).nonzero().flatten().to(self.device)
                slots = slots[slots >= 0]
        elif slots.is_cuda and self.write_backend != "triton":
            rows = (slots >= 0).nonzero().flatten()  # no kernel will mask them: they are counted
            slots = slots[rows]
        return CheckedSlots(num_tokens, slots.to(self.device), rows)

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor, slots) -> None:
        """Store k and v ``[num_tokens, num_kv_heads, head_dim]`` in their slots, in place.

        ``slots``: a list, a tensor or the result of `check_slots`. Values are cast to the cache's
        dtype. ValueError, before anything is written, for other shapes or slots outside the cache.

        A's nine tokens, blocks 7, 1, 3 of 4 slots: token 4 of k goes to slot 4, which is
        ``keys[layer, 1, 0]``; token 8 to slot 12. With -1 in its place a token goes nowhere.
        """
        if not 0 <= layer < self.shape.num_layers:  # -1 would quietly be the last one
            raise ValueError(f"layer {layer} is outside 0..{self.shape.num_layers - 1}")
        checked = self.check_slots(slots)
        expected = (checked.num_tokens, *self.keys.shape[3:])
        for name, tensor in (("k", k), ("v", v)):
            if tuple(tensor.shape) != expected:
                raise ValueError(
                    f"{name} has shape {tuple(tensor.shape)}, expected {expected} "
                    "(one slot a token; use slot -1 for a token that is not to be written)"
                )
        rows, slots = checked.rows, checked.slots
        if rows is not None:
            k, v = k.index_select(0, rows), v.index_select(0, rows)
        self._store(layer, k, v, slots)

    def _store(self, layer: int, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        if self.write_backend == "triton":
            from course.engine.triton_write import write_to_slots

            write_to_slots(self.keys[layer], self.values[layer], k, v, slots)
            return
        if self.write_backend == "native" and can_copy(self.keys, k, v):
            copy_to_slots(self.keys, self.values, layer, k, v, slots)
            return
        self.keys[layer].flatten(0, 1).index_copy_(0, slots, k.to(self.dtype))
        self.values[layer].flatten(0, 1).index_copy_(0, slots, v.to(self.dtype))

    def gather(self, layer: int, block_ids, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A copy of the first ``num_tokens`` keys and values of a table, in order.

        Each ``[num_tokens, num_kv_heads, head_dim]``. Only those slots are read, and only the
        table entries that hold them are looked at. ValueError for a table that is too short.

        ``gather(0, [7, 1, 3], 9)`` reads slots 28 to 31, 4 to 7 and 12; not 13, where nothing is
        written yet.
        """
        slots = self._slots_of(block_ids, num_tokens)
        keys, values = self.keys[layer].flatten(0, 1), self.values[layer].flatten(0, 1)
        return keys.index_select(0, slots), values.index_select(0, slots)

    def _slots_of(self, block_ids, num_tokens: int) -> torch.Tensor:
        block_ids = block_ids.tolist() if isinstance(block_ids, torch.Tensor) else list(block_ids)
        used = block_ids[: blocks_needed(num_tokens, self.block_size)]
        self._check_blocks(used)
        slots = slot_mapping(used, range(num_tokens), self.block_size)
        return torch.tensor(slots, dtype=torch.int64, device=self.device)

    def copy_blocks(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy blocks (source, destination) in all layers; all sources are read first.

        So ``[(1, 2), (2, 3)]`` puts the old block 2 into block 3. ValueError, before anything is
        copied, for ids outside the cache or a destination named twice.
        """
        pairs = [(index(source), index(destination)) for source, destination in pairs]
        if not pairs:
            return
        sources, destinations = map(list, zip(*pairs, strict=True))
        self._check_blocks(sources + destinations)
        if len(set(destinations)) < len(destinations):
            raise ValueError(f"copies {pairs} write one block twice; each destination once")
        for tensor in self._tensors:
            tensor[:, destinations] = tensor[:, sources]  # the right side is a copy: read in full

    def read_blocks(self, block_ids: Sequence[int]) -> list[torch.Tensor]:
        """Swap out: copies, in host memory, of these blocks in all layers."""
        self._check_blocks(block_ids)
        return [tensor[:, list(block_ids)].cpu() for tensor in self._tensors]

    def write_blocks(self, block_ids: Sequence[int], data: Sequence[torch.Tensor]) -> None:
        """Swap in: put what `read_blocks` gave into these blocks, which may be other ones."""
        self._check_blocks(block_ids)
        for tensor, part in zip(self._tensors, data, strict=True):
            expected = (tensor.shape[0], len(block_ids), *tensor.shape[2:])
            if tuple(part.shape) != expected:
                raise ValueError(f"data of shape {tuple(part.shape)}, expected {expected}")
        for tensor, part in zip(self._tensors, data, strict=True):
            tensor[:, list(block_ids)] = part.to(self.device)

    def _check_blocks(self, block_ids: Sequence[int]) -> None:
        for block_id in block_ids:
            if not 0 <= block_id < self.num_blocks:
                raise ValueError(
                    f"block {block_id} is outside the cache: blocks are 0 to {self.num_blocks - 1}"
                )
