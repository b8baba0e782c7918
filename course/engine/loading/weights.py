"""Weights that are read one by one, checked on the way, from a checkpoint of any format."""

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import torch

from course.engine.loading.model_file import DamagedModelFile, UnsupportedModel
from course.engine.model_config import ModelConfig


class CheckpointWeights(Mapping[str, torch.Tensor]):
    """The weights of `config.weight_shapes()`, by the engine's names, from a file's tensors.

    `file_names` says what the file calls each of them, `present` what the file holds, and
    `read(file_name)` reads one tensor. A tensor that is missing, has another shape or holds NaN
    or infinity is a DamagedModelFile. One that the model would not use is an UnsupportedModel:
    computing without it would give wrong answers in silence.
    """

    def __init__(
        self,
        path: Path,
        config: ModelConfig,
        file_names: dict[str, str],
        present: Collection[str],
        read: Callable[[str], torch.Tensor],
    ):
        self.path, self.file_names, self.read = path, file_names, read
        self.shapes = config.weight_shapes()
        wanted = {file_names[name]: name for name in self.shapes}
        missing = [name for name in wanted if name not in present]
        if missing:
            raise DamagedModelFile(f"{path} lacks {_listed(missing)}. Get the model again")
        extra = [name for name in present if name not in wanted]
        if extra:
            raise UnsupportedModel(
                f"{path} holds {_listed(extra)}, which this engine does not compute"
            )

    def __getitem__(self, name: str) -> torch.Tensor:
        file_name = self.file_names[name]
        tensor = self.read(file_name)
        if tuple(tensor.shape) != self.shapes[name]:
            raise DamagedModelFile(
                f"{self.path}: tensor {file_name} is {tuple(tensor.shape)}, but the model's "
                f"configuration asks for {self.shapes[name]}"
            )
        if not tensor.is_floating_point():
            raise UnsupportedModel(f"{self.path}: tensor {file_name} is stored as {tensor.dtype}")
        # A sum is ten times as quick as a look at every value, and no NaN or infinity hides in it.
        if not tensor.sum().isfinite() and not tensor.isfinite().all():
            raise DamagedModelFile(
                f"{self.path}: tensor {file_name} holds NaN or infinity. Get the model again"
            )
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{len(names)} tensor(s): " + ", ".join(names[:3]) + more


def check_layers(path: Path, num_layers: int, present: Collection[str]) -> None:
    """Refuse a damaged number of layers before so many names are made."""
    if num_layers > len(present):
        raise DamagedModelFile(
            f"{path}: its configuration says {num_layers} layers, but it holds only "
            f"{len(present)} tensors. Get the model again"
        )
