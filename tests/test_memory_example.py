"""course/memory/example.py: the numbers that every lesson tells its story with."""

from course.memory import example
from course.memory.arena import Arena
from course.memory.slab import SlabAllocator
from course.memory.trace import play


def blocks(tokens):
    return -(-tokens // example.BLOCK_SIZE)


def test_sizes():
    assert [(r.prompt_tokens, r.total_tokens) for r in example.REQUESTS] == [
        (7, 28),
        (3, 27),
        (6, 8),
    ]
    assert (example.BLOCK_SIZE, example.NUM_BLOCKS, example.POOL_TOKENS) == (4, 16, 64)


def test_block_order_is_a_permutation_and_not_the_identity():
    assert sorted(example.BLOCK_ORDER) == list(range(example.NUM_BLOCKS))
    at_home = [block for place, block in enumerate(example.BLOCK_ORDER) if block == place]
    assert len(at_home) <= 1
    steps = [b - a for a, b in zip(example.BLOCK_ORDER, example.BLOCK_ORDER[1:], strict=False)]
    assert 1 not in steps, "neighbours in the order are never neighbours in memory"


def test_tables_follow_from_the_order():
    order = list(example.BLOCK_ORDER)
    for request in example.REQUESTS:
        table = [order.pop(0) for _ in range(blocks(request.prompt_tokens))]
        assert table == example.TABLES[request.name]
    # step by step all three grow; A's 9th token comes in the step of B's 5th and of C's 8th
    tables = {name: list(table) for name, table in example.TABLES.items()}
    for step in (1, 2):
        for request in example.REQUESTS:
            while blocks(request.prompt_tokens + step) > len(tables[request.name]):
                tables[request.name].append(order.pop(0))
    assert tables["A"] == example.TABLE_OF_A_AT_9_TOKENS


def test_slabs_leave_c_waiting():
    slabs = SlabAllocator(example.POOL_TOKENS, example.MAX_MODEL_LEN)
    assert [slabs.reserve(r.name) for r in example.REQUESTS] == [0, 32, None]


def test_the_arena_refuses_c_with_nine_slots_free():
    *earlier, last = play(Arena(example.POOL_TOKENS), example.ARENA_TRACE)
    assert not any(outcome.refused_with_room for outcome in earlier)
    assert last.name == "C"
    assert last.refused_with_room
    assert (last.num_free, last.largest_hole, last.size) == (9, 5, 8)


def test_blocks_hold_all_three_to_their_ends():
    assert [blocks(r.total_tokens) for r in example.REQUESTS] == [7, 7, 2]
    assert sum(blocks(r.total_tokens) for r in example.REQUESTS) == example.NUM_BLOCKS
