"""Numbers in prose: parsing, printing, reading back, setting in, and finding the bare ones."""

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course.authoring import numbers
from course.authoring.bare_numbers import bare_numbers


@pytest.mark.parametrize(
    ("written", "expression", "form"),
    [
        ("n", "n", ""),
        ("n:,", "n", ","),
        ("x[1:2]", "x[1:2]", ""),
        ("x[1:2][0]:.1f", "x[1:2][0]", ".1f"),
        ('d["a:b"]:>4', 'd["a:b"]', ">4"),
        ("100 * a / b:.1f", "100 * a / b", ".1f"),
    ],
)
def test_an_expression_and_its_format(written, expression, form):
    (part,) = [p for p in numbers.parse("{{ " + written + " }}") if not isinstance(p, str)]
    assert (part.expression, part.format) == (expression, form)


@pytest.mark.parametrize(
    "written", ["{{ 16 }}", "{{ 3 * 4:.1f }}", "{{ a b }}", "{{= 5 }}", "{{= | x }}"]
)
def test_a_typed_number_is_refused(written):
    with pytest.raises(numbers.NumberError):
        numbers.parse(written)


def test_what_the_last_cell_prints_comes_back(capsys):
    found = numbers.computed_in(['{{ a }} {{ d["k"]:.1f }}', "{{a}} {{ big:,}} {{ table }}"])
    assert [n.label for n in found] == ["a", 'd["k"]:.1f', "big:,", "table"]
    exec(numbers.last_cell(found), {"a": 3, "d": {"k": 0.25}, "big": 819200, "table": [7, 1]})
    values = numbers.read_values(found, capsys.readouterr().out)
    assert values == {"a": "3", 'd["k"]:.1f': "0.2", "big:,": "819,200", "table": "[7, 1]"}


@pytest.mark.parametrize(
    "printed", ["", "a = 3\nb = 4\n", "b = 3\n", "a = \n", "a = 0.30000000000000004\n"]
)
def test_any_other_print_is_refused(printed):
    with pytest.raises(numbers.NumberError):
        numbers.read_values(numbers.computed_in(["{{ a }}"]), printed)


def test_marks_stand_where_the_values_stand():
    text, marks = numbers.render("{{ a }} of {{= 20.4 | Kwon 2023 }} and {{= 13.3 }}", {"a": "123"})
    assert text == "123 of 20.4 and 13.3\n\n*Source: Kwon 2023.*"
    assert [text[m["at"] : m["at"] + len(m["text"])] for m in marks] == ["123", "20.4", "13.3"]
    assert [m.get("computed") or m["given"] for m in marks] == ["a", "Kwon 2023", "Kwon 2023"]
    assert "Source" not in numbers.render("Kwon 2023 says {{= 5 | Kwon 2023 }}.", {})[0]


def bare(text: str, code: str = "block_size = 16\nprint(x)", marks=()) -> list[str]:
    prose = new_markdown_cell(text, metadata={"course": {"numbers": list(marks)}} if marks else {})
    cell = new_code_cell(code, outputs=[new_output("stream", text="x 73\n")], execution_count=1)
    return list(bare_numbers(new_notebook(cells=[prose, cell])))


@pytest.mark.parametrize(
    "text",
    [
        "wastes 73 % of the pool",
        "16 blocks",
        "about 1.5 on average",
        "819,200 bytes",
        "2 GiB",
        "twice 2.0",
        "its 8th token",
        "1x",
        "2 % of it",
        "a batch of 4 against 16",
        "in 2048 tokens",
        "| a |\n| --- |\n| 5 |",
        "<details><summary>hint</summary>so 7 slots</details>",
        "## A pool of 64 blocks",
        "`num_blocks=17`",
        "```\n17 // 3\n```",
        "$12 \\times n$",
        "10 of lesson 04",
    ],
)
def test_bare_numbers_are_found(text):
    assert bare(text), text


@pytest.mark.parametrize(
    "text",
    [
        "Lesson 04 and lessons 02, 03 and 05 show it",
        "Fig. 2, Table 1, sec. 6.2 and exercise 4.3",
        "Kwon et al. 2023 (arXiv 2309.06180)",
        "Python 3.11 on an A100 with fp16, int8 or 64-bit offsets",
        "SmolLM2-135M and Llama-3-70B",
        "0, 1 or 2 owners",
        "takes 10 minutes",
        "## 3. A third request",
        "1. first\n2. second\n3. third",
        "`block_size=16`, and `73` was printed",
        "[the paper](https://arxiv.org/abs/2309.06180)",
        "three requests",
        "## Further reading\n\n- 17 pages of it, chapter 12",
    ],
)
def test_what_may_stand_bare(text):
    assert bare(text) == [], text


def test_a_number_set_in_is_not_bare():
    assert bare("wastes 73 % of it") != []
    assert bare("wastes 73 % of it", marks=[{"at": 7, "text": "73", "computed": "x"}]) == []
