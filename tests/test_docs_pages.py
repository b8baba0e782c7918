"""README.md and docs/ say what is so: lessons, settings, paths, commands, code that they show."""

import ast
import re
import sys
from pathlib import Path

import pytest
from slow_server import slow_steps

from course.authoring.source import read_header
from course.memory import make_policy, simulate, steps
from course.pins import ROOT
from course.practice.registry import every
from course.workload import make_requests

README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
HEADERS = {path.stem: read_header(path) for path in sorted(ROOT.glob("course/lessons/[0-9]*.py"))}


def code_of(page: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


# --- README ---------------------------------------------------------------------------------------


def test_the_lessons_are_listed_as_they_call_themselves():
    rows = re.findall(r"^\| \[(\d\d) (.*?)\]\(notebooks/(.*?)\.ipynb\) \| (.*) \| (\d+) \|$",
                      README, re.MULTILINE)  # fmt: skip
    told = [
        (stem[:2], header["title"], stem, header["summary"], str(header["minutes"]))
        for stem, header in HEADERS.items()
    ]
    assert rows == told
    assert len(rows) == 10


def test_labs_take_about_twice_as_long_as_lessons():
    lessons = sum(header["minutes"] for header in HEADERS.values())
    ours = sum(exercise.minutes for exercise in every())
    assert "The labs take about twice as long in all" in README
    assert 1.7 < ours / lessons < 2.3


def read_settings() -> set[str]:
    """Names of the environment variables that the course itself reads."""
    found = set()
    for path in ROOT.glob("course/**/*.py"):
        text = path.read_text(encoding="utf-8")
        if "environ" not in text and "getenv" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            asked = isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
                ("environ.get", "getenv")
            )
            if asked and node.args and isinstance(node.args[0], ast.Constant):
                found.add(node.args[0].value)
            elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
                found |= {node.slice.value} if isinstance(node.slice, ast.Constant) else set()
    return {name for name in found if name.startswith("COURSE_")}


def test_every_setting_is_in_the_table_and_no_other():
    table = README.split("## Settings")[1].split("\n## ")[0]
    told = set(re.findall(r"^\| `(COURSE_[A-Z_]+)=", table, re.MULTILINE))
    assert told | {"COURSE_BENCH_PYTHON"} == read_settings()  # that one: course bench --help


# --- every page -----------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_files_and_commands_that_are_named_exist(page):
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:course|docs|tests|notebooks|exercises)/[\w./-]+)`", text):
        if "NN" not in name and name != "docs/benchmarks/gpu.json":  # made by a run on a GPU
            assert (ROOT / name).exists(), f"{page.name} names {name}"
    commands = {path.stem.replace("_", "-") for path in ROOT.glob("course/commands/[a-z]*.py")}
    for name in re.findall(r"`?python -m course ([a-z][\w-]*)", text):
        assert name in commands, f"{page.name} names the command {name}"
    for name in re.findall(r"python -m (course\.[a-z_.]+[a-z])", text):
        path = ROOT / name.replace(".", "/")
        assert path.with_suffix(".py").exists() or path.is_dir(), f"{page.name} names {name}"


def test_tests_that_are_named_exist():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"`(test_\w+)`", text):
            places = ROOT.glob("tests/test_*.py")
            assert any(f"def {name}(" in path.read_text("utf-8") for path in places), name


# --- docs/architecture.md -------------------------------------------------------------------------


def test_a_step_of_the_engine_goes_as_it_is_told():
    """The functions of the list are called in its order: one grows, one comes, one ends."""
    from course.engine import LLM, SamplingParams

    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    told = re.findall(r"^\d\. (.*?)(?=^\d\. |^\n)", text, re.MULTILINE | re.DOTALL)
    names = [
        name
        for item in told
        for name in re.findall(r"`([A-Za-z_.]+)`", item)
        if not name.endswith(".py")
    ]
    assert len(names) == 19
    llm = LLM("tiny", num_blocks=16, block_size=4, attention_backend="torch")
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    llm.core.submit([1, 2, 3], params)
    llm.core.step()
    llm.core.submit([4, 5, 6], params)  # comes in while the first gets its last token
    called: list[str] = []

    def watch(frame, event, _):
        code = frame.f_code
        if event == "call" and "/course/engine/" in code.co_filename.replace("\\", "/"):
            called.append(code.co_qualname)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        llm.core.step()
    finally:
        sys.setprofile(before)
    rest = iter(called)
    for name in names:
        assert name in rest, f"{name} is not called after what stands before it in the list"


# --- docs/adding_policies.md ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def rounded():
    """The policy of the page."""
    names: dict = {}
    exec(compile(code_of("adding_policies.md")[0], "adding_policies.md", "exec"), names)
    return names["Rounded"]


def test_the_policy_of_the_page_can_be_simulated(rounded, capsys):
    definition, trial = code_of("adding_policies.md")
    exec(compile(definition + trial, "adding_policies.md", "exec"), {})
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("first-fit ")
    assert second.startswith("rounded ")
    requests = make_requests([(5, 9), (3, 1), (12, 20), (1, 40), (7, 7)], [0, 0, 1, 2, 9])
    fast = list(steps(requests, rounded(128, 64, 16)))
    assert fast == list(slow_steps(requests, rounded(128, 64, 16)))


def test_the_policy_of_the_page_keeps_the_interface(rounded):
    policy = rounded(128, 64, 16)
    assert policy.asks(5, 9) == 16
    assert policy.admit("A", 12, 6)
    assert policy.held("A") == 32
    assert policy.num_free == 96
    assert policy.grow("A", 18)
    assert not policy.grow("A", 40)
    policy.release("A")
    assert policy.num_free == 128


def test_a_policy_that_grows_in_its_own_way_is_refused(rounded):
    class Growing(rounded):
        def asks(self, prompt, output):
            return prompt

    with pytest.raises(ValueError, match="'rounded' gave 5 slots to a request that writes 14"):
        simulate(make_requests([(5, 9)]), Growing(128, 64))


def test_the_policies_of_the_page_are_there():
    assert make_policy("first-fit", 64, 32).name == "first-fit"


# --- docs/adding_models.md ------------------------------------------------------------------------


def test_the_names_of_the_model_page_are_there():
    text = (ROOT / "docs/adding_models.md").read_text(encoding="utf-8")
    loader = (ROOT / "course/engine/loading/weights_hf.py").read_text(encoding="utf-8")
    for name in ("_FAMILIES", "_config", "_NAMES", "_LAYER_NAMES", "unsupported"):
        assert f"`{name}`" in text
        assert re.search(rf"\b{name}\b", loader)
    sizes = Path(ROOT, "course/sizing.py").read_text(encoding="utf-8")
    assert all(re.search(rf"^{name}:", sizes, re.MULTILINE) for name in ("MODELS", "MODEL_CHECKS"))


# --- what errors say ------------------------------------------------------------------------------


def vague_errors(source: str) -> list[str]:
    """`raise` statements with words of their own, but too few to be searched for."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
            continue
        if ast.unparse(node.exc.func).endswith("Exit"):
            continue
        parts = [
            part.value
            for argument in node.exc.args
            for part in ast.walk(argument)
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        ]
        words = re.findall(r"[A-Za-z_]{2,}", " ".join(parts))
        names = {n.id for a in node.exc.args for n in ast.walk(a) if isinstance(n, ast.Name)}
        passed_on = (
            bool(names & {"problem", "message", "error"})
            or not parts
            or not any(part.strip(" :;().") for part in parts)
        )
        if not passed_on and len(words) < 2:
            found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


def test_errors_have_words_that_can_be_searched_for():
    apart = {"grading", "labs", "lessons", "bank", "answers"}  # not raised to a learner; exercises
    faults, seen = [], 0
    for path in sorted(ROOT.glob("course/**/*.py")):
        if not apart & set(path.parts):
            text = path.read_text(encoding="utf-8")
            seen += text.count("raise ")
            faults += [f"{path.name}:{fault}" for fault in vague_errors(text)]
    assert seen > 300
    assert faults == []


def test_a_vague_error_is_seen():
    source = "raise ValueError('bad')\nraise ValueError(f'{x}: no')\nraise ValueError(f'{a}: {b}')"
    source += "\nraise ValueError(f'{x} is not a block size')\nraise ValueError(message)"
    assert [fault[0] for fault in vague_errors(source)] == ["1", "2"]
