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

    client = NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        record_timing=False,
        store_widget_state=False,
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
        on_cell_complete=lambda cell_index, **_: on_cell(cell_index),
    )
    with tempfile.TemporaryDirectory() as home:
        try:
            client.execute(env={**os.environ, "IPYTHONDIR": home, "COURSE_STATIC": "1", **env})
        except CellExecutionError as error:
            raise CellFailed(_message(notebook, f"{error.ename}: {error.evalue}")) from error
        except CellTimeoutError as error:
            raise CellFailed(_message(notebook, f"ran longer than {timeout} s")) from error
        except DeadKernelError as error:
            raise CellFailed(_message(notebook, "the kernel died")) from error
    notebook.metadata = before  # the client writes this machine's Python version into it
    return notebook


def _message(notebook: NotebookNode, what: str) -> str:
    """The failing cell is the last that started: show its id, its code and the last frames."""
    started = [c for c in notebook.cells if c.cell_type == "code" and c.execution_count]
    failed = next(
        (
            c
            for c in notebook.cells
            for o in c.get("outputs", [])
            if o.output_type == "error" and "raises-exception" not in c.metadata.get("tags", [])
        ),
        started[-1] if started else notebook.cells[0],
    )
    frames = "\n".join(
        line for o in failed.get("outputs", []) if o.output_type == "error" for line in o.traceback
    )
    return f"cell {failed.id!r}: {what}\n\n{failed.source}\n\n{frames}".rstrip()
