"""Small random checkpoints in both formats, and a slow model in numpy to hold them against.

The model here shares no line with the engine: float64, loops over tokens and heads, and rotary
positions as multiplication by a complex number.
"""

import json

import gguf
import numpy as np
from safetensors.numpy import save_file

from course.engine.loading.tokenizer import byte_alphabet, byte_tokenizer

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 260,
    "max_position_embeddings": 128,
    "rope_theta": 5000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


def random_weights(settings, seed=0, qkv_bias=False):
    """Weights by their Hugging Face names, float32, wide enough for every part to matter."""
    random = np.random.default_rng(seed)
    hidden, wide, d = settings["hidden_size"], settings["intermediate_size"], settings["head_dim"]
    heads, kv_heads = settings["num_attention_heads"], settings["num_key_value_heads"]
    weights = {}

    def matrix(name, rows, columns, scale=1.2):
        values = random.standard_normal((rows, columns)) * scale / columns**0.5
        weights[name + ".weight"] = values.astype(np.float32)

    def vector(name, size, centre):
        weights[name] = (centre + 0.3 * random.standard_normal(size)).astype(np.float32)

    matrix("model.embed_tokens", settings["vocab_size"], hidden, scale=hidden**0.5)
    vector("model.norm.weight", hidden, 1)
    if not settings["tie_word_embeddings"]:
        matrix("lm_head", settings["vocab_size"], hidden)
    for i in range(settings["num_hidden_layers"]):
        at = f"model.layers.{i}."
        vector(at + "input_layernorm.weight", hidden, 1)
        vector(at + "post_attention_layernorm.weight", hidden, 1)
        matrix(at + "self_attn.q_proj", heads * d, hidden)
        matrix(at + "self_attn.k_proj", kv_heads * d, hidden)
        matrix(at + "self_attn.v_proj", kv_heads * d, hidden)
        matrix(at + "self_attn.o_proj", hidden, heads * d)
        matrix(at + "mlp.gate_proj", wide, hidden)
        matrix(at + "mlp.up_proj", wide, hidden)
        matrix(at + "mlp.down_proj", hidden, wide)
        if qkv_bias:
            vector(at + "self_attn.q_proj.bias", heads * d, 0)
            vector(at + "self_attn.k_proj.bias", kv_heads * d, 0)
            vector(at + "self_attn.v_proj.bias", kv_heads * d, 0)
    return weights


def slow_logits(settings, weights, token_ids, first_position=0, window=None):
    """Logits [num_tokens, vocab_size] of one sequence, float64, in plain loops."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    heads, kv_heads = settings["num_attention_heads"], settings["num_key_value_heads"]
    d = settings["head_dim"]
    half = d // 2

    def norm(x, gain):
        return x / np.sqrt((x * x).mean() + settings["rms_norm_eps"]) * gain

    def project(name, x):
        y = w[name + ".weight"] @ x
        return y + w[name + ".bias"] if name + ".bias" in w else y

    def turn(head, position):
        z = head[:half] + 1j * head[half:]
        for j in range(half):
            z[j] *= np.exp(1j * position / settings["rope_theta"] ** (2 * j / d))
        return np.concatenate([z.real, z.imag])

    stream = [w["model.embed_tokens.weight"][t].copy() for t in token_ids]
    for i in range(settings["num_hidden_layers"]):
        at = f"model.layers.{i}."
        queries, keys, values = [], [], []
        for n, x in enumerate(stream):
            x = norm(x, w[at + "input_layernorm.weight"])
            q, k, v = (project(at + f"self_attn.{name}_proj", x) for name in "qkv")
            queries.append([turn(h, first_position + n) for h in q.reshape(heads, d)])
            keys.append([turn(h, first_position + n) for h in k.reshape(kv_heads, d)])
            values.append(v.reshape(kv_heads, d))
        for n in range(len(stream)):
            seen = range(0 if window is None else max(0, n - window + 1), n + 1)
            out = []
            for h in range(heads):
                g = h * kv_heads // heads
                scores = np.array([queries[n][h] @ keys[m][g] for m in seen]) / d**0.5
                share = np.exp(scores - scores.max())
                share /= share.sum()
                out.append(sum(p * values[m][g] for p, m in zip(share, seen, strict=True)))
            stream[n] = stream[n] + project(at + "self_attn.o_proj", np.concatenate(out))
            x = norm(stream[n], w[at + "post_attention_layernorm.weight"])
            gate, up = project(at + "mlp.gate_proj", x), project(at + "mlp.up_proj", x)
            gate = gate / (1 + np.exp(-gate))
            stream[n] = stream[n] + project(at + "mlp.down_proj", gate * up)
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return np.stack([head @ norm(x, w["model.norm.weight"]) for x in stream])


def write_folder(folder, settings, weights, shards=1, **more):
    """A Hugging Face folder; `more` goes into config.json."""
    folder.mkdir(exist_ok=True)
    content = {"model_type": "llama", "eos_token_id": 257} | settings | more
    (folder / "config.json").write_text(json.dumps(content))
    byte_tokenizer().backend.save(str(folder / "tokenizer.json"))
    if shards == 1:
        save_file(weights, folder / "model.safetensors")
        return folder
    home = {name: f"model-{i % shards}.safetensors" for i, name in enumerate(weights)}
    for shard in set(home.values()):
        part = {name: value for name, value in weights.items() if home[name] == shard}
        save_file(part, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": home}))
    return folder


GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def interleaved(rows, num_heads):
    """The row order of llama.cpp, spelled out: new rows 2j and 2j + 1 are old j and j + half."""
    d = len(rows) // num_heads
    order = []
    for head in range(num_heads):
        for j in range(d // 2):
            order += [head * d + j, head * d + j + d // 2]
    return rows[order]


def write_gguf(path, settings, weights, kind="F32", **overrides):
    """A GGUF file with its matrices stored as `kind`; returns the weights that it then holds.

    `overrides` replaces or (None) leaves out metadata, by key with dots as double underscores.
    """
    kind = gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(path, arch="llama")
    metadata = {
        "llama.context_length": settings["max_position_embeddings"],
        "llama.embedding_length": settings["hidden_size"],
        "llama.feed_forward_length": settings["intermediate_size"],
        "llama.block_count": settings["num_hidden_layers"],
        "llama.attention.head_count": settings["num_attention_heads"],
        "llama.attention.head_count_kv": settings["num_key_value_heads"],
        "llama.attention.key_length": settings["head_dim"],
        "llama.attention.value_length": settings["head_dim"],
        "llama.rope.freq_base": settings["rope_theta"],
        "llama.attention.layer_norm_rms_epsilon": settings["rms_norm_eps"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": [*byte_alphabet(), "<|a|>", "<|b|>", "<|c|>", "ab"],
        "tokenizer.ggml.token_type": [1] * 256 + [3] * 3 + [1],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": 257,
    } | {key.replace("__", "."): value for key, value in overrides.items()}
    for key, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif value is not None:
            {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}[
                type(value)
            ](key, value)
    held = {}
    for name, value in weights.items():
        stem, suffix = name.rsplit(".", 1)
        if stem.startswith("model.layers."):
            _, _, layer, part = stem.split(".", 3)
            target = f"blk.{layer}.{GGUF_NAMES[part]}.{suffix}"
        else:
            target = f"{GGUF_NAMES[stem]}.{suffix}"
        stored = value
        for part, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if part in name:
                stored = interleaved(value, settings[heads])
        if value.ndim == 1:
            writer.add_tensor(target, stored)
            held[name] = value
        else:
            raw = gguf.quants.quantize(stored, kind)
            writer.add_tensor(target, raw, raw_dtype=kind)
            held[name] = gguf.quants.dequantize(gguf.quants.quantize(value, kind), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held
