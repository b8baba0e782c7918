"""Run a notebook top to bottom in a fresh kernel."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType

from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode


class CellFailed(RuntimeError):
    """A cell raised, ran too long or killed its kernel: says which and how."""


def execute(
    notebook: NotebookNode,
    folder: Path,
    timeout: int = 120,
    on_cell: Callable[[int], None] = lambda index: None,
    env: Mapping[str, str] = MappingProxyType({}),
) -> NotebookNode:
    """Return an executed copy. ``folder``: the kernel's working directory; ``timeout``: s a cell;
    ``env``: environment variables of the kernel, beside this process's.

    A cell tagged ``raises-exception`` may raise. The user's own IPython settings are not read, and
    widgets show their static twins only.
    """
    before = notebook.metadata
    notebook = deepcopy(notebook)
    # The kernel may die before it says which cell it began, so the sender keeps the count.
    running = 0

    def begins(cell_index: int, **_) -> None:
        nonlocal running
        running = cell_index

    client = NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        record_timing=False,
        store_widget_state=False,
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
        on_cell_execute=begins,
        on_cell_complete=lambda cell_index, **_: on_cell(cell_index),
    )
    with tempfile.TemporaryDirectory() as home:
        try:
            client.execute(env={**os.environ, "IPYTHONDIR": home, "COURSE_STATIC": "1", **env})
        except CellExecutionError as error:
            raise CellFailed(
                _message(notebook.cells[running], f"{error.ename}: {error.evalue}")
            ) from error
        except CellTimeoutError as error:
            raise CellFailed(
                _message(notebook.cells[running], f"ran longer than {timeout} s")
            ) from error
        except DeadKernelError as error:
            raise CellFailed(_message(notebook.cells[running], "the kernel died")) from error
    notebook.metadata = before  # the client writes this machine's Python version into it
    return notebook


def _message(failed: NotebookNode, what: str) -> str:
    """What to tell of the cell that was running: its id, its code and the last frames."""
    frames = "\n".join(
        line for o in failed.get("outputs", []) if o.output_type == "error" for line in o.traceback
    )
    return f"cell {failed.id!r}: {what}\n\n{failed.source}\n\n{frames}".rstrip()
