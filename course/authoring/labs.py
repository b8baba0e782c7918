"""One source a lab to two notebooks: exercises/ with stubs, solutions/ whole and run.

A lab's source is prose and given code, with a markdown cell ``# %% [markdown] exercise="4.3"``
where an exercise stands: its words are the task. Title line, stub, check, hints and, in the
solutions, the why and a wrong version come from the exercise itself (course/practice).
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from hashlib import sha256
from pathlib import Path
from textwrap import dedent

import jupytext
import nbformat
import yaml
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from course.authoring import outputs, rules
from course.authoring.bare_numbers import bare_numbers, numbers_in_code
from course.authoring.blank import BlankError, num_lines, stub
from course.authoring.build import ROOT, Report, carry, compare, text, tidy, write
from course.authoring.execute import CellFailed, execute
from course.authoring.source import HEADER, HEADING, TAGS, SourceError, slug
from course.practice import keep, registry
from course.practice.exercise import Exercise
from course.practice.source import (
    NoSource,
    clean,
    cut_method,
    prelude,
    reference_text,
    variant_text,
    without_docstrings,
)

HINTS = ("a question", "I see an error", "the shape of the answer")
PASSED = re.compile(r": (all \d+ behaviours hold|both behaviours hold|it holds)\b")
LONG = 60  # lines: of a longer wrong version only the surroundings of its changes are shown
FIELDS = {"title": str, "uses": list, "needs": str}


@dataclass
class Part:
    """A cell of a lab's source; ``exercise``: the one whose task it is."""

    id: str
    kind: str
    text: str
    tags: list[str] = field(default_factory=list)
    exercise: Exercise | None = None


@dataclass
class Lab:
    """One source. ``uses``: names of earlier pieces that the notebook brings in."""

    path: Path
    number: int
    title: str
    parts: list[Part]
    digest: str
    uses: list[str] = field(default_factory=list)
    needs: str = "CPU is enough"

    @property
    def exercises(self) -> list[Exercise]:
        return [part.exercise for part in self.parts if part.exercise]


def sources(root: Path = ROOT, only: tuple[str, ...] = ()) -> list[Path]:
    """The lab sources, in order; ``only``: starts of file names."""
    found = sorted((root / "course" / "labs").glob("[0-9][0-9]_*.py"))
    return [path for path in found if not only or path.stem.startswith(only)]


def orphans(root: Path = ROOT) -> list[Path]:
    """Lab notebooks that no source gives."""
    known = {path.stem for path in sources(root)}
    found = [p for name in ("exercises", "solutions") for p in (root / name).glob("*.ipynb")]
    return sorted(p for p in found if re.sub(r"\.new\d*$", "", p.stem) not in known)


# ---- Reading ------------------------------------------------------------------------------------


def read_lab(path: Path) -> Lab:
    """Read and check one source; SourceError says what is wrong with it."""
    if not re.fullmatch(r"\d\d_[a-z0-9_]+", path.stem):
        raise SourceError(f"{path.name}: a lab is named NN_topic.py, like its lesson.")
    whole = path.read_text(encoding="utf-8")
    match = HEADER.match(whole)
    if not match:
        raise SourceError(f"{path.name}: starts without a header ('# ---', fields, '# ---').")
    fields = yaml.safe_load(re.sub(r"^# ?", "", match["yaml"], flags=re.MULTILINE))
    if not isinstance(fields, dict) or "title" not in fields:
        raise SourceError(f"{path.name}: the header needs 'title:'.")
    for name, value in fields.items():
        if name not in FIELDS or type(value) is not FIELDS[name]:
            raise SourceError(f"{path.name}: header field {name!r}; known: {', '.join(FIELDS)}.")
    number = int(path.stem[:2])
    raw = jupytext.reads(HEADER.sub("", whole).lstrip(), fmt="py:percent").cells
    lab = Lab(path, number, parts=_parts(path, raw), digest=_sha(whole), **fields)
    wanted = [e.id for e in registry.lab(number)]
    got = [e.id for e in lab.exercises]
    if wanted != got:
        raise SourceError(f"{path.name}: has the exercises {got}, its bank has {wanted}.")
    return lab


def _parts(path: Path, raw_cells: list) -> list[Part]:
    parts: list[Part] = []
    section, counts = "start", {}
    for place, raw in enumerate(raw_cells, start=1):
        where = f"{path.name}, cell {place}"
        if not raw.source.strip():
            raise SourceError(f"{where}: is empty.")
        if "{{" in raw.source and raw.cell_type == "markdown":
            raise SourceError(f"{where}: a lab has no computed numbers; print them in a cell.")
        if unknown := set(raw.metadata.get("tags", [])) - TAGS:
            raise SourceError(f"{where}: unknown tag {sorted(unknown)}. Known: {sorted(TAGS)}.")
        exercise = None
        if which := raw.metadata.get("exercise"):
            if raw.cell_type != "markdown":
                raise SourceError(f'{where}: write # %% [markdown] exercise="{which}".')
            exercise = registry.find(str(which))
            section = exercise.key
        elif heading := (raw.cell_type == "markdown" and HEADING.search(raw.source)):
            section = slug(heading[1])
        kind = "text" if raw.cell_type == "markdown" else "code"
        if exercise:
            cell_id = f"{exercise.key}-task"
        else:
            counts[section, kind] = counts.get((section, kind), 0) + 1
            cell_id = raw.metadata.get("id") or f"{section}-{kind}-{counts[section, kind]}"
        if any(part.id == cell_id for part in parts):
            raise SourceError(f"{where}: a second cell with the id {cell_id!r}.")
        tags = list(raw.metadata.get("tags", []))
        parts.append(Part(cell_id, raw.cell_type, raw.source.rstrip(), tags, exercise))
    return parts


def _sha(words: str) -> str:
    return sha256(words.encode()).hexdigest()


# ---- Making the notebooks -----------------------------------------------------------------------


def assemble(lab: Lab, solved: bool, root: Path = ROOT) -> NotebookNode:
    """The notebook, not run: with stubs, or solved."""
    cells = [_generated("top", top(lab, solved, root), locked=True)]
    cells.append(_locked(new_code_cell(setup(lab, solved), id="setup"), "setup"))
    for part in lab.parts:
        if part.exercise:
            cells += exercise_cells(part.exercise, part.text, solved)
        else:
            make = new_markdown_cell if part.kind == "markdown" else new_code_cell
            cells.append(make(part.text, id=part.id, metadata=_tags(part.tags)))
    if not solved:
        shown = "from course.practice import progress\n\nprogress()"
        cells.append(_generated("where-you-are", "## Where you are"))
        cells.append(new_code_cell(shown, id="progress", metadata=_tags(["nbval-ignore-output"])))
    cells.append(_generated("end", end(lab, solved, root)))
    book = new_notebook(cells=cells)
    book.metadata = NotebookNode(
        {
            "kernelspec": outputs.KERNEL,
            "language_info": outputs.LANGUAGE,
            "course": {
                "lab": lab.number,
                "source": f"course/labs/{lab.path.name}",
                "source_sha256": lab.digest,
                "release": keep.fingerprint(book),
            },
        }
    )
    return book


def top(lab: Lab, solved: bool, root: Path) -> str:
    exercises = lab.exercises
    minutes = sum(e.minutes for e in exercises)
    points = sum(e.points for e in exercises)
    facts = [
        f"Lab {lab.number:02d}",
        f"{len(exercises)} exercises",
        f"{minutes} minutes",
        f"{points} points",
        lab.needs.rstrip("."),
    ]
    lesson = _beside(root, "notebooks", lab.path.stem)
    if lesson:
        facts.append(f"Its lesson: [{lab.number:02d} {lab.title}]({lesson})")
    rows = "\n".join(f"| {e.id} | {e.title} | {e.minutes} | {e.points} |" for e in exercises)
    table = f"| | you do | minutes | points |\n| --- | --- | ---: | ---: |\n{rows}"
    how = (
        "Here every exercise is solved, with the reason and a wrong version that many write. "
        "Nothing is saved from this notebook."
        if solved
        else "Write your code where a cell says `raise NotImplementedError`, run the cell, then "
        "run the check under it: it says what holds, and what to look at next. Hints unfold one "
        "by one. What passes is saved to your own engine in `my_engine/`."
    )
    title = f"Lab {lab.number:02d}: {lab.title}" + (", solved" if solved else "")
    return f"# {title}\n\n*{'. '.join(facts)}.*\n\n{how}\n\n{table}"


def setup(lab: Lab, solved: bool) -> str:
    """The imports of all answers, the check, and the pieces of earlier labs.

    Names that the lab itself asks for are not imported: they are for the learner to give.
    """
    lines: list[str] = []
    for exercise in lab.exercises:
        lines += [line for line in prelude(exercise).splitlines() if line not in lines]
    lines = [_kernel_import(line) for line in lines]
    names = ["check_only as check", "see_mistake"] if solved else ["check"]
    if lab.uses and not solved:
        names.append("resume")
    used = [registry.find(name) for name in lab.uses]
    brought = {e.name for e in [*used, *lab.exercises]}
    lines = [kept for line in lines if (kept := _without(line, brought))]
    lines.append(f"from course.practice import {', '.join(names)}")
    if solved:
        lines += [f"from {e.symbol.replace(':', ' import ')}" for e in used]
    made = _merged(lines)
    if used and not solved:
        made += "\n\n_ = resume(" + ", ".join(f'"{e.name}"' for e in used) + ")"
    return made


def _kernel_import(line: str) -> str:
    """The import of a kernel's names from where they are also given without Triton or a GPU."""
    kernels = "from course.practice.kernels import "
    if line == "import triton":
        return kernels + "triton"
    if line == "import triton.language as tl":
        return kernels + "tl"
    if line.startswith("from course.engine.triton_decode import "):
        return kernels + line.partition(" import ")[2]
    return line


def _without(line: str, names: set[str]) -> str:
    """An import line without the names that come another way."""
    head, _, tail = line.partition(" import ")
    kept = [name for name in tail.split(", ") if name not in names]
    return (
        f"{head} import {', '.join(kept)}"
        if head.startswith("from") and kept
        else ("" if head.startswith("from") else line)
    )


def _merged(lines: list[str]) -> str:
    """One import statement a module, in the usual order."""
    whole: set[str] = set()
    parts: dict[str, set[str]] = {}
    for line in lines:
        head, _, tail = line.partition(" import ")
        if head.startswith("from "):
            parts.setdefault(head[5:], set()).update(tail.split(", "))
        else:
            whole.add(line)
    found = sorted(whole) + [
        f"from {module} import {', '.join(sorted(names))}"
        for module, names in sorted(parts.items())
    ]
    ours = [line for line in found if line.split()[1].startswith("course")]
    others = [line for line in found if line not in ours]
    return "\n\n".join("\n".join(group) for group in (others, ours) if group)


def exercise_cells(exercise: Exercise, task: str, solved: bool) -> list[NotebookNode]:
    """All cells of one exercise, in order."""
    key = exercise.key
    answer = reference_text(exercise) if solved else stub(exercise)
    call = f"check({exercise.name})"
    if exercise.kind == "data":
        call = f'check({exercise.name}, "{exercise.id}")'
    cells = [
        _generated(f"{key}-title", title(exercise), locked=True),
        _locked(new_markdown_cell(task, id=f"{key}-task"), f"{key}-task"),
        new_code_cell(answer, id=f"{key}-answer", metadata=answer_metadata(exercise)),
        new_code_cell(call, id=f"{key}-check", metadata=check_metadata(exercise)),
        _generated(f"{key}-hints", hints(exercise)),
    ]
    if solved:
        cells.append(_generated(f"{key}-why", why(exercise)))
        if exercise.answers.shown:
            call = f'see_mistake("{exercise.id}", {json.dumps(exercise.answers.shown)})'
            call = "_ = " + _fitted(call)
            wrong = new_code_cell(call, id=f"{key}-wrong")
            cells.append(wrong)
    return cells


def _fitted(call: str) -> str:
    if len(call) <= 90:
        return call
    name, _, rest = call.partition("(")
    first, _, second = rest[:-1].partition(", ")
    return f"{name}(\n    {first},\n    {second},\n)"


def title(exercise: Exercise) -> str:
    marks = "●" * exercise.difficulty + "○" * (3 - exercise.difficulty)
    count = num_lines(exercise)
    facts = [
        f"About {count} line{'' if count == 1 else 's'}",
        f"{exercise.minutes} minutes",
        f"difficulty {marks} {exercise.difficulty} of 3",
        f"{exercise.points} point{'' if exercise.points == 1 else 's'}",
    ]
    return f"## {exercise.id} {exercise.title}\n\n*{' · '.join(facts)}*"


def hints(exercise: Exercise) -> str:
    folds = [
        f"<details><summary>Hint {number}: {what}</summary>\n\n{hint}\n\n</details>"
        for number, (what, hint) in enumerate(zip(HINTS, exercise.hints, strict=True), start=1)
    ]
    return "\n".join(folds)


def why(exercise: Exercise) -> str:
    answers = exercise.answers
    found = f"**Why**\n\n{clean(answers.why)}"
    if not answers.shown:
        return found
    mistake = answers.mistake(answers.shown)
    wrong = without_docstrings(variant_text(exercise, mistake)).rstrip()
    if answers.shown_part:
        wrong = cut_method(wrong, answers.shown_part)
    elif mistake.edit and len(wrong.splitlines()) > LONG:
        wrong = _around_changes(without_docstrings(reference_text(exercise)).rstrip(), wrong)
    return (
        f"{found}\n\n**A wrong version that many write:** {mistake.name}.\n\n"
        f"```python\n{wrong}\n```\n\nThis is what its check says:"
    )


def _around_changes(right: str, wrong: str) -> str:
    """The wrong version's lines near those that are changed; the rest as in the right one."""
    before, after = right.splitlines(), wrong.splitlines()
    kept: list[str] = []
    reached = 0
    for group in SequenceMatcher(None, before, after, autojunk=False).get_grouped_opcodes(4):
        start, reached_now = group[0][3], group[-1][4]
        if start > reached:
            margin = after[start][: len(after[start]) - len(after[start].lstrip())]
            kept.append(f"{margin}# ... as above")
        kept += after[start:reached_now]
        reached = reached_now
    return dedent("\n".join(kept)).strip("\n")


def end(lab: Lab, solved: bool, root: Path) -> str:
    rows = []
    if not solved:
        rows.append(f"**Solved:** [the same lab, with reasons](../solutions/{lab.path.stem}.ipynb)")
    else:
        rows.append(f"**To do it yourself:** [lab](../exercises/{lab.path.stem}.ipynb)")
    following = next(iter((root / "course" / "lessons").glob(f"{lab.number + 1:02d}_*.py")), None)
    if following and (root / "notebooks" / f"{following.stem}.ipynb").exists():
        rows.append(f"**Next:** [lesson {lab.number + 1:02d}](../notebooks/{following.stem}.ipynb)")
    return "---\n\n" + " · ".join(rows)


def _beside(root: Path, folder: str, stem: str) -> str:
    path = root / folder / f"{stem}.ipynb"
    return f"../{folder}/{stem}.ipynb" if path.exists() else ""


# nbgrader's metadata, schema version 3: nbgrader/nbgraderformat/v3.json.


def _nbgrader(grade_id: str, **more: object) -> dict:
    return {
        "nbgrader": {
            "schema_version": 3,
            "grade_id": grade_id,
            "grade": False,
            "solution": False,
            "locked": False,
            "task": False,
            **more,
        }
    }


def answer_metadata(exercise: Exercise) -> dict:
    return {"deletable": False, **_nbgrader(f"{exercise.key}-answer", solution=True)}


def check_metadata(exercise: Exercise) -> dict:
    told = _nbgrader(f"{exercise.key}-check", grade=True, locked=True, points=exercise.points)
    found: dict = {"deletable": False, "editable": False, **told}
    if any(probe.tolerance for probe in exercise.probes):  # it prints an error of this machine
        found["tags"] = ["nbval-ignore-output"]
    return found


def _locked(cell: NotebookNode, cell_id: str) -> NotebookNode:
    cell.metadata.update(_nbgrader(cell_id, locked=True))
    return cell


def _generated(cell_id: str, words: str, locked: bool = False) -> NotebookNode:
    cell = new_markdown_cell(words, id=cell_id, metadata={"course": {"generated": True}})
    return _locked(cell, cell_id) if locked else cell


def _tags(tags: list[str]) -> dict:
    return {"tags": tags} if tags else {}


# ---- Building -----------------------------------------------------------------------------------


def build_lab(
    path: Path,
    root: Path = ROOT,
    run: bool = True,
    timeout: int = 120,
    on_cell: Callable[[int, int], None] = lambda done, total: None,
) -> list[Report]:
    """Build both notebooks. Solutions are run and their checks must pass; exercises that somebody
    has worked in are kept, and the new one is put beside."""
    exercises, solutions = Report(f"exercises/{path.stem}"), Report(f"solutions/{path.stem}")
    reports = [exercises, solutions]
    targets = [root / f"{report.name}.ipynb" for report in reports]
    for target in targets:
        target.parent.mkdir(exist_ok=True)
    try:
        lab = read_lab(path)
        untouched = assemble(lab, solved=False, root=root)
        nbformat.validate(untouched)
        placed = keep.put(text(untouched), targets[0])
        exercises.written = placed.state in ("written", "beside")
        if placed.state in ("beside", "kept"):
            beside = f"; the new one is {placed.path.name}" if placed.state == "beside" else ""
            exercises.notes.append(f"{targets[0].name} was worked in and is kept{beside}")
        book = assemble(lab, solved=True, root=root)
        if run:
            total = len(book.cells)
            with tempfile.TemporaryDirectory() as engine:
                book = execute(
                    book,
                    targets[1].parent,
                    timeout,
                    lambda done: on_cell(done + 1, total),
                    env={"COURSE_MY_ENGINE": engine},
                )
            solutions.problems += tidy(book, root)
        elif not targets[1].exists():
            raise SourceError(f"{targets[1].name} was never built; build it with --execute.")
        elif stale := carry(book, nbformat.read(targets[1], as_version=4), root):
            raise SourceError(f"code changed since the last run ({', '.join(stale)}): --execute.")
        _count(book)
        solutions.problems += broken(book, targets[1].parent, root, solved=True)
        solutions.written = write(book, targets[1])
        exercises.problems += broken(untouched, targets[0].parent, root, solved=False)
    except (SourceError, BlankError, NoSource, CellFailed, LookupError, ValueError) as error:
        solutions.failure = str(error)
    return reports


def check_lab(path: Path, root: Path = ROOT) -> list[Report]:
    """Build without running, write nothing, and say where the stored notebooks differ."""
    reports = [Report(f"exercises/{path.stem}"), Report(f"solutions/{path.stem}")]
    for report, solved in zip(reports, (False, True), strict=True):
        target = root / f"{report.name}.ipynb"
        try:
            book = assemble(read_lab(path), solved=solved, root=root)
            if not target.exists():
                raise SourceError(f"{target.name} was never built.")
            stored = nbformat.read(target, as_version=4)
            if solved:
                carry(book, stored, root)
                _count(book)
            report.problems += broken(stored, target.parent, root, solved)
            if text(book) != target.read_text(encoding="utf-8"):
                report.diff = compare(stored, book)
        except (SourceError, BlankError, LookupError, ValueError) as error:
            report.failure = str(error)
    return reports


def _count(book: NotebookNode) -> None:
    for count, cell in enumerate(rules.code(book), start=1):
        cell.execution_count = count
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count


def broken(book: NotebookNode, folder: Path, root: Path, solved: bool) -> list[str]:
    """What breaks a rule of lab notebooks."""
    found = [
        *rules.headings(book),
        *rules.alternative_text(book),
        *rules.links(book, folder, root),
        *stray_numbers(book),
        *rules.clean_outputs(book),
        *rules.machine_paths(book),
        *prose_lengths(book),
    ]
    if solved:
        found += [*rules.executed(book), *solved_checks(book)]
    return [problem for problem in found if problem]


def stray_numbers(book: NotebookNode) -> Iterator[str]:
    """Numbers in prose that no cell of the notebook holds or prints. A task may set its own."""
    known = numbers_in_code(book)
    for problem in bare_numbers(book):
        number = re.search(r": ([\d,.]+)", problem)
        if "-task'" not in problem and (not number or number[1].replace(",", "") not in known):
            yield problem


def prose_lengths(book: NotebookNode) -> Iterator[str]:
    """At most 80 words of an author's prose in a cell."""
    for cell in rules.prose(book):
        count = rules.word_count(cell.source)
        if count > rules.WORDS:
            yield f"cell {cell.id!r}: {count} words of prose; at most {rules.WORDS}"


def solved_checks(book: NotebookNode) -> Iterator[str]:
    """Every check of a solved lab passes."""
    for cell in rules.code(book):
        if cell.id.endswith("-check"):
            shown = [str(o.get("data", {}).get("text/plain", "")) for o in cell.outputs]
            if not any(PASSED.search(words) for words in shown):
                yield f"cell {cell.id!r}: its check does not pass: {' '.join(shown)[:200]!r}"
