"""How many blocks the pool of an engine gets."""

import torch

from course.sizing import ModelShape, kv_bytes_per_token

DEFAULT_CPU_BYTES = 256 * 2**20  # small enough for any laptop, 11,000 tokens of SmolLM2 in bf16
DEFAULT_CUDA_SHARE = 0.8  # of what is free once the weights are there; the rest is for activations


def choose_num_blocks(
    shape: ModelShape,
    block_size: int,
    num_blocks: int | None,
    kv_cache_bytes: int | None,
    dtype: torch.dtype,
    device: torch.device,
) -> int:
    """Blocks for the pool, from a count, from a size in bytes, or from what the device has free.

    Raises ValueError when both are given or when not even one block fits.
    """
    if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1:
        raise ValueError(f"block_size={block_size!r} must be a whole number of tokens, 1 or more")
    block_bytes = kv_bytes_per_token(shape, dtype.itemsize) * block_size
    if num_blocks is not None:
        if kv_cache_bytes is not None:
            raise ValueError(
                f"num_blocks={num_blocks} and kv_cache_bytes={kv_cache_bytes} both size the pool;"
                " give one of them"
            )
        if isinstance(num_blocks, bool) or not isinstance(num_blocks, int) or num_blocks < 1:
            raise ValueError(f"num_blocks={num_blocks!r} must be a whole number, 1 or more")
        return num_blocks
    if kv_cache_bytes is None:
        kv_cache_bytes = DEFAULT_CPU_BYTES
        if device.type == "cuda":
            kv_cache_bytes = int(torch.cuda.mem_get_info(device)[0] * DEFAULT_CUDA_SHARE)
    if kv_cache_bytes < block_bytes:
        raise ValueError(
            f"kv_cache_bytes={kv_cache_bytes} holds no block: one block of {block_size} tokens of"
            f" {shape.name} takes {block_bytes} bytes"
        )
    return int(kv_cache_bytes // block_bytes)
