"""Calculator, playground and microscope: their numbers are those of the code they show."""

import numpy as np
import pytest

from course.engine.block_table import slot_mapping
from course.memory import example
from course.show import address_microscope, arena_playground, kv_calculator
from course.sizing import GIB, MODELS, kv_bytes


def test_the_worked_case_of_the_calculator():
    calculator = kv_calculator("Llama-2-7B", tokens=4096, batch=8, memory_gib=16, show=False)
    assert calculator.total == 16 * GIB
    assert calculator.picture.table["bytes a token"] == 512 * 1024
    assert "8 requests of 4,096 tokens: 16 GiB, 100 % of 16 GiB. 8 of them would fit." in (
        calculator.picture.caption
    )
    calculator.set("batch", 9)
    assert "Too many; 8 would fit." in calculator.picture.caption
    calculator.set("memory", 1)
    assert "Not even one would fit." in calculator.picture.caption


@pytest.mark.parametrize("model", sorted(MODELS))
def test_every_model_adds_up(model):
    calculator = kv_calculator(model, tokens=8192, batch=3, bytes_per_value=1, show=False)
    assert calculator.total == 3 * kv_bytes(MODELS[model], 8192, 1)
    product = 1
    for value, _ in calculator.factors():
        product *= eval(value)
    assert product == calculator.picture.table["bytes a token"]
    assert model in calculator.picture.alt


def test_a_latent_is_not_doubled_and_windows_stop():
    deep = kv_calculator("DeepSeek-V3 671B", show=False)
    assert "(512 + 64) x 61 x 2 = 70,272 bytes a token" in deep.picture.alt
    windowed = kv_calculator("Gemma-3-27B", show=False)
    assert "window layers stopped growing" in windowed.picture.data
    assert "itself stops at" in kv_calculator("Llama-2-7B", tokens=8192, show=False).picture.caption


@pytest.mark.parametrize(
    "arguments",
    [{"model": "GPT-9"}, {"tokens": 100}, {"batch": 0}, {"bytes_per_value": 3}, {"memory_gib": 0}],
)
def test_the_calculator_refuses(arguments):
    with pytest.raises(ValueError, match="must be"):
        kv_calculator(**arguments)


def test_the_playground_refuses_c_as_the_arena_does():
    play = arena_playground(example.ARENA_TRACE, show=False)
    assert play.said == (
        "Refused: C needs 8 in one piece. 9 slots are free, but the longest hole has 5."
    )
    assert play.picture.table["refused with room"] == 1
    assert play.picture.words == "." * 5 + "A" * 28 + "." * 4 + "B" * 27
    play.press("compact")
    assert play.said.startswith("Compacted: 55 slots were copied.")
    play.press("allocate")
    assert play.runs == {"A": (0, 28), "B": (28, 27), "C": (55, 8)}
    play.arena.check_invariants()


def test_the_playground_by_hand():
    play = arena_playground(size=16, show=False)
    for size in (6, 4, 6):
        play.set("size", size)
        play.press("allocate")
    play.press("allocate")
    assert "The arena is full" in play.said
    play.set("who", "B")
    play.press("free")
    assert play.said == "B gives 4 slots back."
    assert play.state["who"] in ("A", "C")
    play.set("fit", "best")
    assert play.arena.fit == "best"
    play.press("reset")
    assert play.runs == {}
    assert play.arena.fit == "best"
    play.press("free")
    assert play.said == "There is nobody to free."


def test_first_and_best_fit_part():
    trace = [("allocate", n, s) for n, s in (("A", 6), ("B", 2), ("C", 3), ("D", 5))]
    trace += [("free", "A", 0), ("free", "C", 0)]
    offsets = {}
    for fit in ("first", "best"):
        play = arena_playground([*trace, ("allocate", "E", 3)], size=16, fit=fit, show=False)
        offsets[fit] = play.runs["E"][0]
    assert offsets == {"first": 0, "best": 8}


@pytest.mark.parametrize(
    ("operations", "words"),
    [
        ([("allocate", "A", 3), ("allocate", "A", 3)], "in the arena already"),
        ([("free", "A", 0)], "not in the arena"),
        ([("move", "A", 0)], "the action is 'move'"),
        ([("allocate", "A", 0)], "at least 1"),
    ],
)
def test_operations_that_make_no_sense(operations, words):
    with pytest.raises(ValueError, match=words):
        arena_playground(operations)


def test_an_arena_must_fit_the_picture():
    with pytest.raises(ValueError, match="take 8 to 256"):
        arena_playground(size=1000)


@pytest.mark.parametrize("name", ["small", "SmolLM2-135M"])
def test_the_microscope_finds_the_element_that_numpy_finds(name):
    microscope = address_microscope(show=False)
    if name != "small":
        microscope = address_microscope(shape=MODELS[name], show=False)
    shape = microscope.shape
    layer = np.arange(16 * 4 * shape.num_kv_heads * shape.head_dim).reshape(
        16, 4, shape.num_kv_heads, shape.head_dim
    )
    for request, table in microscope.tables.items():
        microscope.set("request", request)
        for token in range(microscope.num_tokens[request]):
            microscope.set("token", token)
            for head in range(shape.num_kv_heads):
                microscope.set("head", head)
                a = microscope.address()
                found = layer[a["physical block"], a["row in block"], head, 0]
                assert a["first element"] == found
                assert a["first byte"] == found * 2
                assert a["slot"] == slot_mapping(table, [token], 4)[0]
                assert f"slot {a['slot']}" in microscope.picture.alt
                assert f"= {a['first byte']:,}." in microscope.picture.caption


def test_the_microscope_names_the_program():
    microscope = address_microscope("C", token=5, head=1, num_splits=2, show=False)
    assert "program sequence 2, KV head 1, split 1, turn 0 of its loop" in microscope.picture.alt
    assert "paged_decode_kernel (2, 1, 1)" in microscope.picture.data
    assert "query heads 3 to 5 of C" in microscope.picture.data
    microscope.set("request", "B")  # B has fewer tokens: the place moves with it
    assert microscope.state["token"] == 4


def test_the_microscope_deals_out_a_context_as_the_kernel_does():
    """9 tokens in tiles of 2 are 5 tiles; two splits take 3 and 2 of them."""
    microscope = address_microscope(num_splits=2, tile=2, show=False)
    seen = []
    for token in range(9):
        microscope.set("token", token)
        a = microscope.address()
        seen.append((a["split"], a["turn of its loop"]))
    assert seen == [(0, 0), (0, 0), (0, 1), (0, 1), (0, 2), (0, 2), (1, 0), (1, 0), (1, 1)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"token": 9}, "Token must be 0 to 8, got 9"),
        ({"head": 2}, "KV head must be 0 to 1"),
        ({"request": "Z"}, "Request must be one of"),
        ({"num_splits": 0}, "must be 1 or more"),
        ({"tile": 0}, "must be 1 or more"),
        ({"tables": {"A": [7]}, "num_tokens": {"A": 9}}, "A has 9 tokens and 1 blocks"),
    ],
)
def test_the_microscope_refuses(arguments, words):
    with pytest.raises(ValueError, match=words):
        address_microscope(**arguments)
