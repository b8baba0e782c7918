"""Read every stored notebook with every rule, and prove that each rule can fail."""

import copy
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course.authoring import build, rules

NOTEBOOKS = sorted((build.ROOT / "notebooks").glob("*.ipynb"))


def test_there_is_a_notebook_for_every_source_and_no_other():
    assert NOTEBOOKS, "notebooks/ is empty: run `make notebooks`"
    assert [path.stem for path in NOTEBOOKS] == [path.stem for path in build.sources()]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_keeps_every_rule(path):
    book = nbformat.read(path, as_version=4)
    assert rules.broken(book, path.parent, build.ROOT) == []


@pytest.mark.parametrize("path", build.sources(), ids=lambda path: path.stem)
def test_a_rebuild_changes_nothing(path):
    report = build.check_lesson(path)
    assert report.ok, f"{report.failure}\n{report.diff}\n{report.problems}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_enough_to_be_shown(path):
    # Code-hosting sites stop drawing notebooks somewhere above this size.
    assert path.stat().st_size < 2_000_000


# A notebook that keeps every rule; each case below breaks it in one place.

FIGURE = {"text/html": '<img src="data:," alt="Sixteen blocks, five taken">', "text/plain": "five"}
CLOSING = [f"## {title}\n\n- One." for title in rules.CLOSING]


def good() -> nbformat.NotebookNode:
    def cell(code: str, outputs, count: int, **extra):
        return new_code_cell(code, outputs=outputs, execution_count=count, **extra)

    number = new_markdown_cell("There are 16 blocks.", id="prose")
    number.metadata["course"] = {"numbers": [{"at": 10, "text": "16", "computed": "n"}]}
    top = new_markdown_cell(
        f"# Title\n\n*5 minutes*\n\n{rules.OBJECTIVES}\n\n- read", id="top",
        metadata={"course": {"generated": True}},
    )  # fmt: skip
    return new_notebook(
        cells=[
            top,
            number,
            cell("n = 16", [new_output("stream", text="taken\n")], 1, id="code"),
            cell("show(n)", [new_output("display_data", data=FIGURE)], 2, id="figure"),
            new_markdown_cell("## Check yourself", id="check"),
            cell("\n".join(["check_yourself('a?')"] * 4), [], 3, id="questions"),
            *(new_markdown_cell(text, id=text[3:6].strip()) for text in CLOSING),
            cell("print('n =', n)", [new_output("stream", text="n = 16\n")], 4, id="numbers-again"),
        ]
    )


def test_the_good_notebook_is_good(tmp_path):
    assert rules.broken(good(), tmp_path, tmp_path) == []


def at(book, cell_id):
    return next(cell for cell in book.cells if cell.id == cell_id)


def source(cell_id, text):
    def change(book):
        at(book, cell_id).source = text

    return change


def more(cell_id, text):
    def change(book):
        at(book, cell_id).source += text

    return change


def outputs(cell_id, *new):
    def change(book):
        at(book, cell_id).outputs = list(new)

    return change


def output(**data):
    return new_output("display_data", data={k.replace("_", "/"): v for k, v in data.items()})


def tagged(cell_id, tag):
    def change(book):
        at(book, cell_id).metadata["tags"] = [tag]

    return change


def mark(**new):
    def change(book):
        at(book, "prose").metadata["course"]["numbers"][0].update(new)

    return change


PNG = new_output("display_data", data={"image/png": "aGk=", "text/plain": "<Figure size 9x9>"})
TWIN = new_output("display_data", data={"image/png": "aGk=", "text/plain": "five of sixteen taken"})
IMG = new_output("display_data", data={"text/html": '<img src="x">'})
SVG = new_output("display_data", data={"text/html": '<svg width="9"><rect/></svg>'})
HIDDEN = nbformat.from_dict({"jupyter": {"source_hidden": True}})
ERROR = new_output("error", ename="KeyError", evalue="'A'", traceback=[])


def printed(cell_id, text, name="stdout"):
    return outputs(cell_id, new_output("stream", name=name, text=text))


def long_run(book):
    book.cells[4:4] = [new_markdown_cell("w " * 79) for _ in range(3)]


BREAKS = {
    "two titles": (more("check", "\n\n# Another"), "2 first-level"),
    "no title": (source("top", f"*5 minutes* {rules.OBJECTIVES}\n\n- a"), "0 first-level"),
    "title not first": (lambda b: b.cells.insert(0, new_markdown_cell("## A")), "not with its"),
    "skipped level": (more("prose", "\n\n#### Deep"), "skips from level 1 to 4"),
    "no objectives": (source("top", "# Title\n\n5 minutes"), "no objectives"),
    "no minutes": (source("top", f"# Title\n\n{rules.OBJECTIVES}\n\n- a"), "how many minutes"),
    "no mistakes": (source("Com", "## Other\n\n- One."), "'## Common mistakes' is there 0"),
    "section twice": (more("Com", "\n\n## Key takeaways"), "'## Key takeaways' is there 2"),
    "empty section": (source("Key", "## Key takeaways"), "has no text"),
    "wrong order": (lambda b: b.cells.insert(1, b.cells.pop(7)), "sections come as"),
    "figure without words": (outputs("figure", PNG), "without a text twin"),
    "img without alt": (outputs("figure", IMG), "<img> whose alt"),
    "svg without title": (outputs("figure", SVG), "<svg> without"),
    "markdown picture": (more("check", "\n\n![](x.png)"), "without alternative text"),
    "long code": (more("code", "\n#" * 15), "16 lines of code"),
    "hidden by its author": (
        lambda b: at(b, "code").update(source="#\n" * 16, metadata=HIDDEN),
        "16 lines of code",
    ),
    "long prose": (more("prose", " word" * 77), "81 words of prose"),
    "long list": (more("Com", " word" * 220), "221 words of prose"),
    "long run": (long_run, "words since"),
    "dead link": (more("check", "\n\n[x](gone.ipynb)"), "leads nowhere"),
    "link out": (more("check", "\n\n[x](../../../etc/hosts)"), "out of the course"),
    "dead part": (more("check", "\n\n[x](#gone)"), "names no heading"),
    "dead html link": (more("check", '\n\n<a href="gone.md">x</a>'), "leads nowhere"),
    "number moved": (source("prose", "There are now 16 blocks."), "stands where '16' was set"),
    "number changed": (mark(text="17"), "stands where"),
    "stale number": (printed("numbers-again", "n = 17\n"), "does not print '16'"),
    "number without name": (mark(computed="m"), "does not print"),
    "unused number": (printed("numbers-again", "n = 16\nm = 1\n"), "prints 2 numbers"),
    "no last cell": (lambda b: b.cells.pop(), "does not print"),
    "never set in": (more("prose", " {{ n }}"), "never set in"),
    "bare number": (more("prose", " And 17 more."), "17 in prose"),
    "raised": (outputs("code", ERROR), "raised KeyError"),
    "did not raise": (tagged("code", "raises-exception"), "raised nothing"),
    "warning": (printed("code", "x.py:1: FutureWarning: y", "stderr"), "a warning"),
    "traceback": (printed("code", "Traceback (most recent call last):\n"), "a traceback"),
    "address": (outputs("code", output(text_plain="<list at 0x7f00aa11bb22>")), "memory address"),
    "counts": (lambda b: at(b, "figure").update(execution_count=9), "counts are [1, 9"),
    "not run": (lambda b: at(b, "code").update(execution_count=None), "counts are [None"),
    "path printed": (printed("code", "in /home/me/course\n"), "/home/me"),
    "path in html": (outputs("code", output(text_html="<p>C:\\Users</p>")), "C:"),
    "path in prose": (more("prose", " See /tmp/out."), "/tmp/out"),
    "three questions": (
        source("questions", "\n".join(["check_yourself('a?')"] * 3)),
        "3 check_yourself",
    ),
}


@pytest.mark.parametrize(("change", "says"), BREAKS.values(), ids=BREAKS)
def test_a_broken_rule_is_found(change, says, tmp_path):
    book = copy.deepcopy(good())
    change(book)
    found = rules.broken(book, tmp_path, tmp_path)
    assert any(says in problem for problem in found), found


def test_what_is_allowed(tmp_path):
    book = good()
    (tmp_path / "there.md").touch()
    more("check", "\n\n[a](there.md), [b](#check-yourself), [c](https://example.org/16)")(book)
    outputs("figure", TWIN, output(text_html='<svg role="img" aria-label="blocks"></svg>'))(book)
    tagged("code", "raises-exception")(book)
    outputs("code", ERROR)(book)
    at(book, "questions").update(source="check_yourself('a?')\n" * 40, metadata=HIDDEN)
    again = at(book, "numbers-again")
    again.source = "\n".join([again.source] * 20)
    again.metadata.update(course={"generated": True}, jupyter={"source_hidden": True})
    assert rules.broken(book, tmp_path, tmp_path) == []


def test_every_rule_is_broken_by_some_case():
    """No rule was added without a case that it catches."""
    names = [name for name, value in vars(rules).items() if callable(value) and _is_rule(value)]
    assert len(names) >= 11
    silent = set(names)
    for change, _ in BREAKS.values():
        book = copy.deepcopy(good())
        change(book)
        for name in list(silent):
            args = (book, Path(), Path()) if name == "links" else (book,)
            if list(getattr(rules, name)(*args)):
                silent.discard(name)
    assert silent == set()


def _is_rule(value) -> bool:
    return getattr(value, "__annotations__", {}).get("return") == "Iterator[str]" and (
        value.__name__ not in ("_silent_html",)
    )
