"""The real model: what it answers, and how close it is to an independent implementation."""

import pytest
import torch

from course.engine.loading.loader import load_model
from course.engine.loading.model_file import MODEL_BYTES, MODEL_SHA256, model_file
from course.engine.model import dense_attend

pytestmark = pytest.mark.model

TEXTS = [
    "The capital of France is",
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "A KV cache keeps the keys and values of every past token, so that they are not computed "
    "again: " * 8,
    "def blocks_needed(num_tokens, block_size):\n    return -(-num_tokens // block_size)\n\n\n" * 3,
    "Rooms are held for every guest's longest possible stay; 512 of 4,096 are slept in.\n",
]


@pytest.fixture(scope="module")
def loaded():
    if model_file() is None:
        pytest.skip("not run: the SmolLM2 file is not installed (make setup)")
    return load_model("smollm2", dtype="float32", device="cpu")


def logits_of(model, ids):
    hidden = model.forward(torch.tensor(ids), torch.arange(len(ids)), dense_attend())
    return model.logits(hidden)


def greedy(model, ids, count, stop=None):
    out = []
    while len(out) < count and (not out or out[-1] != stop):
        out.append(int(logits_of(model, [*ids, *out])[-1].argmax()))
    return out


def test_the_file_is_the_one_that_is_meant(loaded):
    import hashlib

    content = model_file().read_bytes()
    assert len(content) == MODEL_BYTES
    assert hashlib.sha256(content).hexdigest() == MODEL_SHA256


def test_shape(loaded):
    shape = loaded[0].config.shape
    assert (shape.num_layers, shape.num_attention_heads, shape.num_kv_heads) == (30, 9, 3)
    assert (shape.head_dim, shape.max_model_len) == (64, 8192)
    assert loaded[0].config.vocab_size == loaded[1].vocab_size == 49152


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_knows_the_capital_of_france(loaded, dtype):
    model, tokenizer = loaded if dtype == "float32" else load_model("smollm2", dtype, "cpu")
    ids = tokenizer.encode(TEXTS[1])
    answer = greedy(model, ids, 20, stop=tokenizer.eos_token_id)
    assert tokenizer.decode(answer) == "The capital of France is Paris."
    assert answer[-1] == tokenizer.eos_token_id


def test_logits_agree_with_transformers(loaded, monkeypatch):
    reason = "not run: transformers is not installed"
    transformers = pytest.importorskip("transformers", reason=reason)
    pytest.importorskip("accelerate", reason="not run: transformers reads GGUF with accelerate")
    path = model_file()
    other = transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    )
    model, tokenizer = loaded
    errors = []
    for text in TEXTS:
        ids = tokenizer.encode(text)
        with torch.inference_mode():
            expected = other(torch.tensor([ids])).logits[0]
        errors.append((logits_of(model, ids) - expected).abs().max().item())
    print("largest differences of logits:", errors)
    assert max(errors) <= 1e-4
