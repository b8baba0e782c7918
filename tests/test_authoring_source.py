"""Reading a lesson source: header, cells, ids, and messages that name what is wrong."""

from pathlib import Path

import pytest

from course.authoring.source import SourceError, read_lesson

HEADER = """# ---
# title: Sample
# summary: What a cell is
# minutes: 5
# objectives: [run a cell, see a number]
# ---
"""


def lesson(tmp_path: Path, body: str, header: str = HEADER, name: str = "03_sample.py"):
    path = tmp_path / name
    path.write_text(header + body, encoding="utf-8")
    return read_lesson(path)


def ids(read) -> list[str]:
    return [cell.id for cell in read.cells]


def test_header_and_defaults(tmp_path):
    read = lesson(tmp_path, "\n# %%\n1\n")
    assert (read.number, read.title, read.minutes) == (3, "Sample", 5)
    assert read.after == [2]
    assert read.needs == "CPU is enough"
    assert read.label == "03 Sample"
    assert lesson(tmp_path, "\n# %%\n1\n", name="00_first.py").after == []


BODY = """
# %% [markdown]
# Opening.

# %%
a = 1

# %% [markdown]
# ## The block boundary
# Words.

# %%
b = 2

# %% id="kept" tags=["nbval-ignore-output"]
c = 3

# %%
d = 4
"""


def test_ids_name_section_kind_and_place(tmp_path):
    read = lesson(tmp_path, BODY)
    assert ids(read) == [
        "start-text-1",
        "start-code-1",
        "the-block-boundary-text-1",
        "the-block-boundary-code-1",
        "kept",
        "the-block-boundary-code-3",
    ]
    assert read.cells[4].tags == ["nbval-ignore-output"]


def test_ids_outlive_edits_of_text_and_of_other_sections(tmp_path):
    before = ids(lesson(tmp_path, BODY))
    assert (
        ids(lesson(tmp_path, BODY.replace("Words.", "Other words.").replace("b = 2", "b = 5")))
        == before
    )
    longer = BODY.replace("a = 1", "a = 1\n\n# %%\nextra = 0")
    assert ids(lesson(tmp_path, longer))[3:] == before[2:]


@pytest.mark.parametrize(
    ("body", "header", "name", "says"),
    [
        ("\n# %%\n1\n", "", "03_a.py", "without a header"),
        ("\n# %%\n1\n", HEADER.replace("minutes: 5", "minutes: soon"), "03_a.py", "not a int"),
        ("\n# %%\n1\n", HEADER.replace("minutes: 5", "minutes: true"), "03_a.py", "not a int"),
        ("\n# %%\n1\n", HEADER.replace("# minutes: 5\n", ""), "03_a.py", "needs 'minutes:'"),
        (
            "\n# %%\n1\n",
            HEADER.replace("title", "titel"),
            "03_a.py",
            "unknown header field 'titel'",
        ),
        ("\n# %%\n1\n", HEADER.replace("minutes: 5", "minutes: 'a"), "03_a.py", "not YAML"),
        (
            "\n# %%\n1\n",
            HEADER.replace("[run a cell, see a number]", "[a]"),
            "03_a.py",
            "1 objectives",
        ),
        ("\n# %%\n1\n", HEADER, "3_a.py", "NN_topic.py"),
        ('\n# %% tags=["nbval-ignore-ouput"]\n1\n', HEADER, "03_a.py", "unknown tag"),
        ('\n# %% id="a b"\n1\n', HEADER, "03_a.py", "id 'a b'"),
        ('\n# %% id="x"\n1\n\n# %% id="x"\n2\n', HEADER, "03_a.py", "a second cell"),
        ("\n# %%\n1\n\n# %% [markdown]\n\n# %%\n2\n", HEADER, "03_a.py", "is empty"),
        ("\n# %% [raw]\n# x\n", HEADER, "03_a.py", "a raw cell"),
    ],
)
def test_a_source_that_cannot_be_built_says_why(tmp_path, body, header, name, says):
    with pytest.raises(SourceError, match="(?s)" + says.replace("(", r"\(")) as error:
        lesson(tmp_path, body, header, name)
    assert name in str(error.value)
