"""How large the kernels' tiles are, and how many programs share a long context.

The sizes follow from what one processor of a GPU has (A100, H100, B200): 65,536 registers and 160
KiB or more of shared memory. ``python -m course.kernel_report`` shows what each size costs.
"""

import torch

from course.engine.triton_support import triton_status

PROGRAMS_PER_PROCESSOR = 8  # so many that the last to finish do not leave a GPU idle
TOKENS_PER_SPLIT = 256  # a shorter share would cost more to merge than it saves
INTERPRETER_TILE = 256  # there, an iteration costs the same whatever the tile


def choose_num_splits(programs: int, max_context_len: int, device: torch.device) -> int:
    """How many splits fill the GPU's processors, each with enough tokens to be worth it."""
    if device.type != "cuda":
        return 1
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    to_fill = -(-PROGRAMS_PER_PROCESSOR * processors // max(programs, 1))
    return max(1, min(to_fill, max_context_len // TOKENS_PER_SPLIT))


def decode_config(head_dim: int, group: int, dtype: torch.dtype) -> dict[str, int]:
    """Tiles of the decode kernel: 16 KiB of keys and as much of values, by four warps.

    That is about 40 KiB and up to 168 registers a thread, so three or four programs run side by
    side on a processor, and while one waits for its keys the others compute.
    """
    padded = next_power_of_two(head_dim)
    # fp32 products do not run on tensor cores; they keep their operands in registers.
    bytes_of_keys = 16_384 if dtype.itemsize <= 2 else 8_192
    tile = max(16, min(128, bytes_of_keys // (padded * dtype.itemsize)))
    return {
        "DIM_PADDED": padded,
        "GROUP_PADDED": next_power_of_two(group),
        "TILE": INTERPRETER_TILE if triton_status().mode == "interpreter" else tile,
        "num_warps": 4,
        "num_stages": 3,  # block ids of the next tile are on their way while this one is computed
    }


def prefill_config(head_dim: int, group: int, dtype: torch.dtype) -> dict[str, int]:
    """Tiles of the prefill kernel: 64 rows of queries against 16 KiB of keys."""
    padded = next_power_of_two(head_dim)
    is_fp32 = dtype.itemsize > 2
    tile = 16 if is_fp32 else max(16, min(64, 8_192 // padded))
    return {
        "DIM_PADDED": padded,
        "ROWS": max(16 if is_fp32 else 64, next_power_of_two(group)),
        "TILE": INTERPRETER_TILE if triton_status().mode == "interpreter" else tile,
        "num_warps": 4 if padded <= 64 or is_fp32 else 8,
        "num_stages": 3 if padded > 128 else 2,
    }


def next_power_of_two(number: int) -> int:
    """The power of two that holds ``number``, and at least 16: what a tensor core multiplies."""
    return max(16, 1 << (number - 1).bit_length())
