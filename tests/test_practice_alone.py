"""What is saved runs by itself, and an answer may use whatever its notebook's first cell gives."""

import os

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from course.practice import registry
from course.practice.plain import literal, plain
from course.practice.run import loaded
from course.practice.source import load, reference, reference_text, setup_imports

DATA = [exercise for exercise in registry.every() if exercise.kind == "data"]

# 5.5 with what 5.2 and 5.4 need: inf, np, math and, of an earlier lab, slot_mapping.
MERGE = """
def merge_attention_states(out_a, lse_a, out_b, lse_b):
    assert slot_mapping([7], [0], 4) == [28] and math.isinf(inf) and np.isinf(-inf)
    larger = torch.maximum(lse_a, lse_b)
    safe = torch.where(larger == -inf, 0.0, larger)
    a, b = torch.exp(lse_a - safe), torch.exp(lse_b - safe)
    out = torch.zeros_like(out_a, dtype=torch.float32)
    for part, weight in ((out_a, a), (out_b, b)):
        share = (weight / (a + b))[..., None]
        out += torch.where(weight[..., None] > 0, part.float() * share, 0.0)
    return out.to(out_a.dtype), safe + torch.log(a + b)
"""


def run(cells, folder):
    notebook = new_notebook(cells=list(map(new_code_cell, cells)))
    env = {**os.environ, "COURSE_MY_ENGINE": str(folder)}
    NotebookClient(notebook, timeout=240, kernel_name="python3").execute(env=env)
    return [
        " ".join(o.get("data", {}).get("text/plain", o.get("text", "")) for o in cell.outputs)
        for cell in notebook.cells
    ]


def setup_of(lab):
    from course.pins import ROOT

    (path,) = (ROOT / "exercises").glob(f"{lab:02d}_*.ipynb")
    book = nbformat.read(path, as_version=4)
    return next(cell.source for cell in book.cells if cell.id == "setup")


def test_names_of_the_first_cell_are_there_when_checked_and_when_saved(tmp_path):
    told = run([setup_of(5), MERGE, "check(merge_attention_states)"], tmp_path)
    assert "all 8 behaviours hold" in told[-1], told
    assert "Saved to your engine." in told[-1]
    merge = registry.find("5.5")
    saved = (tmp_path / f"{merge.key}.py").read_text(encoding="utf-8")
    for line in ("from math import inf", "import math", "import numpy as np", "slot_mapping"):
        assert line in saved
    assert "triton" not in saved
    space = {}
    exec(saved, space)
    assert "merge_attention_states" in space


def test_a_grader_gives_the_same_names(tmp_path):
    from course.grading.answers import _definitions
    from course.grading.notebook import Cell

    merge = registry.find("5.5")
    fields = dict.fromkeys(Cell.__dataclass_fields__, 0) | {"text": MERGE}
    text, _ = _definitions(Cell(**fields), merge)
    assert "from math import inf" in text


@pytest.mark.parametrize("exercise", registry.every(), ids=lambda e: e.id)
def test_the_right_answer_needs_nothing_of_it(exercise):
    assert setup_imports(exercise, reference_text(exercise)) == []


def test_a_value_made_of_other_cells_is_saved_as_a_value(tmp_path):
    """And said so; a grader has the answer's cell alone."""
    cells = ["from course.practice import check, registry\nfrom course.practice.source import *"]
    for exercise in DATA:
        cells.append(f"right = reference(registry.find({exercise.id!r}))")
        cells.append(f"{exercise.name} = right")
        cells.append(f"check({exercise.name}, {exercise.id!r})")
    told = run(cells, tmp_path)
    for exercise, said in zip(DATA, told[3::3], strict=True):
        said = " ".join(said.split())
        assert "Saved. It is the value that is kept." in said, said
        assert "takes right from another cell, which a grader lacks" in said
        text = (tmp_path / f"{exercise.key}.py").read_text(encoding="utf-8")
        value, problem = loaded(exercise, text)
        assert not problem
        assert plain(value) == plain(reference(exercise))


def test_a_value_that_was_changed_afterwards_is_saved_as_it_is(tmp_path):
    cells = [
        "from course.practice import check",
        "predicted_ratio = 1\npredicted_ratio += 5.54",
        'check(predicted_ratio, "8.6")',
        "predicted_ratio = 2 * 3.27",
        'check(predicted_ratio, "8.6")',
    ]
    told = run(cells, tmp_path)
    assert "Saved. It is the value that is kept." in told[2]
    assert "value that is kept" not in told[4]
    text = (tmp_path / f"{registry.find('8.6').key}.py").read_text(encoding="utf-8")
    assert text.rstrip().endswith("predicted_ratio = 2 * 3.27")


@pytest.mark.parametrize(
    "value",
    [3, -0.5, True, None, "x'\n", float("inf"), [1, (2,), ()], {"a": [1.5]}, {16: 1, None: (1, 2)}],
)
def test_a_literal_is_the_value_again(value):
    exercise = registry.find("8.6")
    made = load(exercise, f"predicted_ratio = {literal(plain(value))}")
    assert made == value
    assert type(made) is type(value)


def test_what_has_no_literal():
    with pytest.raises(ValueError, match="object"):
        literal(plain([object()]))
