"""Lab 01: what is right there is what the engine and the model without a cache give."""

import pytest
import torch

from course.engine.loading.loader import tiny_model
from course.engine.model import dense_attend
from course.engine.paged_attention import paged_attention
from course.practice.answers.lab_01 import decode_attention, generate, predicted_saving
from course.practice.bank import lab_01


@pytest.mark.parametrize(
    ("prompt", "count"), [([84, 101, 108], 12), ([7], 5), (list(range(30)), 8)]
)
def test_generation_with_a_cache_gives_what_the_model_gives_without(prompt, count):
    model, ids = tiny_model(), list(prompt)
    for _ in range(count):
        hidden = model.forward(torch.tensor(ids), torch.arange(len(ids)), dense_attend())
        ids.append(int(model.logits(hidden[-1:]).argmax()))
    cache = lab_01.RoomyCache(room=64)
    assert generate(lab_01.RecordingModel(), cache, prompt, count) == ids[len(prompt) :]
    assert cache.length == len(ids) - 1


def test_the_example_of_generate_is_what_comes_out():
    got = generate(lab_01.RecordingModel(), lab_01.RoomyCache(room=8), [84, 101, 108], 2)
    assert f"\n    {got}\n" in generate.__doc__


def test_decode_attention_is_paged_attention_with_one_block():
    inputs = lab_01._attention(6, 2, 16, 9, 12)
    q, keys, values = lab_01._attention_inputs(inputs)
    table, lens = torch.zeros(1, 1, dtype=torch.int32), torch.tensor([9], dtype=torch.int32)
    paged = paged_attention(q[None], keys[None], values[None], table, lens, backend="reference")
    assert torch.allclose(decode_attention(q, keys, values, 9), paged[0], atol=1e-6)


def test_the_prediction_is_the_formula():
    for (prompt, output), saving in predicted_saving.items():
        counted = [lab_01.tokens_computed(prompt, output, cached) for cached in (False, True)]
        assert counted[0] / counted[1] == pytest.approx(saving, rel=0.01)
        assert counted[1] == prompt + output - 1
