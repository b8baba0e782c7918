"""What a notebook cell gets: once, in the right form, with and without live widgets."""

import pytest

from course.show.display import WIDGET_VIEW

pytest.importorskip("ipywidgets")
IPython = pytest.importorskip("IPython")


@pytest.fixture
def run():
    """Run a cell in an IPython of its own; gives the mimebundles that it displayed."""
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()

    def cell(code):
        with capture_output() as captured:
            result = shell.run_cell(code, store_history=True)
        result.raise_error()
        assert captured.stdout.replace(f"Out[{shell.execution_count - 1}]: ", "") == ""
        return [output.data for output in captured.outputs]

    yield cell
    InteractiveShell.clear_instance()


CELLS = [
    "from course.show import memory_map\nmemory_map()",
    "from course.show import memory_map\nmemory_map();",
    "from course.show import memory_map\nmap_ = memory_map()",
    "from course.show import block_grid\nblock_grid({'A': [7, 1]})",
    "from course.show import block_grid\nkept = block_grid({'A': [7, 1]})",
    "from course.show import table\ntable({'a': 1})",
    "from course.show import check_yourself\ncheck_yourself('?', {'a': 'x', 'b': 'y'}, right='b')",
    "from course.show import predict\nguess = predict('static?', ['yes', 'no'])",
    "from course.show import prediction_record\nprediction_record()",
]


@pytest.mark.parametrize("code", CELLS)
def test_a_cell_shows_it_once_and_only_its_twin(run, code, monkeypatch):
    monkeypatch.setenv("COURSE_STATIC", "1")
    (bundle,) = run(code)
    assert set(bundle) == {"text/html", "text/plain"}
    assert bundle["text/plain"].strip()


@pytest.mark.parametrize("code", [CELLS[0], CELLS[1], CELLS[7]])
def test_live_the_twin_comes_first_and_then_the_widget(run, code, monkeypatch):
    monkeypatch.delenv("COURSE_STATIC", raising=False)
    twin, live = run(code)
    assert set(twin) == {"text/html", "text/plain"}
    assert set(live) == {WIDGET_VIEW}


def test_it_can_be_shown_again_in_a_later_cell(run, monkeypatch):
    monkeypatch.setenv("COURSE_STATIC", "1")
    assert len(run("from course.show import block_grid\ngrid = block_grid({'A': [7, 1]})")) == 1
    assert len(run("grid")) == 1
    assert len(run("block_grid({'A': [7]}, show=False);")) == 0


def test_the_twin_that_is_stored_is_the_state_at_the_call(run, monkeypatch):
    monkeypatch.setenv("COURSE_STATIC", "1")
    (first,) = run("from course.show import memory_map\nm = memory_map(step=2)")
    assert "Step 2 of 29" in first["text/plain"]
    run("m.set('step', 9)")
    (second,) = run("m")
    assert "Step 9 of 29" in second["text/plain"]


def test_a_live_view_hides_just_its_own_twin(run, monkeypatch):
    monkeypatch.delenv("COURSE_STATIC", raising=False)
    twin, _ = run("from course.show import memory_map\nm = memory_map(step=2)")
    from IPython import get_ipython

    widget = get_ipython().user_ns["m"]
    name = widget.twin_class()
    assert f'class="course-twin {name}"' in twin["text/html"]
    assert f".{name} {{ display: none }}" in widget.live.box.children[0].value
