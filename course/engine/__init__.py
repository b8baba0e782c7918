"""The reference engine, one room a piece, in the order of the lessons.

Names are looked up on first use, so that the pool, the tables, the prefix cache and the scheduler
can be imported where torch cannot be installed.
"""

from importlib import import_module

_HOME = {
    "FreeList": "free_list",
    "BlockPool": "block_pool",
    "OutOfBlocks": "block_pool",
    "DoubleFree": "block_pool",
    "blocks_needed": "block_table",
    "slot_mapping": "block_table",
    "PagedKVCache": "kv_cache",
    "QuantizedPagedKVCache": "quantized_kv",
    # paged_attention itself shares its module's name, and a module wins here: import it from there.
    "AttentionPlan": "attention_plan",
    "merge_attention_states": "paged_attention",
    "available_backends": "paged_attention",
    "hash_blocks": "prefix_cache",
    "PrefixCache": "prefix_cache",
    "SamplingParams": "sampling_params",
    "Request": "request",
    "RequestStatus": "request",
    "KVManager": "kv_manager",
    "HitStats": "hit_stats",
    "InvariantError": "invariants",
    "SlabKVManager": "slab",
    "Scheduler": "scheduler",
    "SchedulerConfig": "scheduler",
    "Step": "scheduler",
    "RequestRefused": "scheduler",
    "LlamaModel": "model",
    "load_model": "loading.loader",
    "LLM": "llm",
    "Completion": "llm",
}

__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"course.engine has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__():
    return __all__
