"""The first hour in a real browser: make lab, a lesson, the widgets, a lab solved and kept.

One server for all of it. COURSE_BROWSER=all goes on with tests/test_browser_round.py.
"""

import re
from dataclasses import dataclass

import pytest
from browsing import (
    ALL,
    KERNEL,
    chromium,  # noqa: F401
    copy_course,
    needs_chromium,
    open_book,
    serving,
    shot,
    until,
    violations,
    write_notebook,
)

pytestmark = [
    needs_chromium,
    pytest.mark.browser,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("browser"),
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory, chromium):  # noqa: F811
    with serving(copy_course(tmp_path_factory.mktemp("hour")), chromium) as found:
        yield found


def test_make_lab_opens_on_the_start_page(lab):
    server, browser = lab
    log = server.log.read_text()
    assert "Self-test of this machine" in log
    page = browser.new_page()
    page.goto(f"{server.address}{server.first}?token={server.token}")
    title = page.locator(".jp-Notebook h1").first
    title.wait_for(timeout=KERNEL)
    assert "Start here" in title.inner_text()
    assert page.locator(".lm-TabBar-tab.lm-mod-current", has_text="00_start_here.ipynb").count()
    # Nothing stands in the way of the first page: no question about news, no menu for teachers.
    shown = page.locator(".lm-MenuBar-content").first.inner_text()
    assert "Nbgrader" not in shown
    assert page.get_by_text("Jupyter news").count() == 0
    shot(page, "start_page")
    page.close()


def test_a_lesson_runs_and_its_links_lead_on(lab):
    """A quick one; the others run in the whole round."""
    book = open_book(*lab, "notebooks/04_block_tables.ipynb")
    book.run_all()
    assert book.faults() == []
    book.page.locator(".jp-RenderedMarkdown a", has_text="05 Paged attention").first.click()
    book.page.locator(".lm-TabBar-tabLabel", has_text="05_paged_attention.ipynb").wait_for()
    book.page.context.close()


@dataclass
class Piece:
    """A widget: the code that makes it, and moves that each change its picture or its words.

    A move is (role, name) of a control; for a box, a third is what is typed. ``quiet`` moves come
    before the move that shows what they did.
    """

    code: str
    moves: list
    quiet: tuple = ()


FILM = """
from course.show import pool_film
from course.show.recording import Frame, Recording
recording = Recording("AB")
recording.final, recording.num_blocks, recording.block_size = {"A": 9, "B": 5}, 8, 4
recording.frames = [
    Frame({}, {}, ("A", "B"), ()), Frame({"A": [7, 1]}, {"A": 7}, ("B",), ()),
    Frame({"A": [7, 1], "B": [3]}, {"A": 8, "B": 3}, (), ()), Frame({}, {}, (), ("A", "B")),
]
pool_film(recording, step=0)
"""
DIAL = """
from course.show import limit_dial
from course.workload import make_requests, mix
limit_dial(make_requests(mix("azure_conv_2023").sample(200, seed=1)), 32_768, (1024, 2048, 4096))
"""
STEPS = [("button", "Next"), ("button", "Back"), ("spinbutton", "Step", "2")]
PIECES = {
    "memory_map": Piece("from course.show import memory_map\nmemory_map()", STEPS),
    "waste_ledger": Piece(
        "from course.memory.ledger import Ledger\nfrom course.show import waste_ledger\n"
        "waste_ledger([Ledger(i, 10 - i, 2, 0, 4) for i in range(11)])",
        STEPS,
    ),
    "kv_calculator": Piece(
        "from course.show import kv_calculator\nkv_calculator()",
        [("combobox", "Model"), ("combobox", "Tokens each"), ("spinbutton", "Requests", "40"),
         ("combobox", "Values"), ("spinbutton", "Memory, GiB", "24")],
    ),
    "arena_playground": Piece(
        "from course.memory import example\nfrom course.show import arena_playground\n"
        "arena_playground(example.ARENA_TRACE[:3])",
        [("spinbutton", "Slots", "5"), ("button", "Allocate"), ("combobox", "Request"),
         ("button", "Free"), ("button", "Compact"), ("combobox", "Fit"),
         ("button", "Start afresh")],
        quiet=("Slots", "Request", "Fit", "Compact"),
    ),
    "limit_dial": Piece(DIAL, [("button", "2,048"), ("button", "4,096")]),
    "boundary_clinic": Piece(
        "from course.show import boundary_clinic\nboundary_clinic()",
        [("button", "Guess: new block"), ("button", "Guess: no block"), *STEPS],
    ),
    "address_microscope": Piece(
        "from course.show import address_microscope\naddress_microscope()",
        [("combobox", "Request"), ("spinbutton", "Token", "1"), ("spinbutton", "KV head", "0")],
    ),
    "scheduler_timeline": Piece(
        "from course.show import scheduler_timeline\nscheduler_timeline()",
        [("combobox", "Show"), ("button", "Next"), ("spinbutton", "Moment", "9")],
    ),
    "pool_film": Piece(FILM, STEPS),
    "predict_choice": Piece(
        "from course.show import predict\nblock = predict('A new block?', ['yes', 'no'])",
        [("button", "yes"), ("button", "no")],
    ),
    "predict_number": Piece(
        "slots = predict('How many slots?', unit='slots')",
        [("textbox", "A number, in slots", "12")],
    ),
}  # fmt: skip
STILL = {
    "check_yourself": "from course.show import check_yourself\n"
    "check_yourself('Is `8` in it?', {'yes': 'It is.', 'no': 'Look again.'}, right='yes')",
    "prediction_record": "from course.show import prediction_record\nprediction_record()",
    "roofline": "from course.show import roofline\nroofline({'decode': 1.0}, 1e12, 1e11, 'a GPU')",
    "block_table_figure": "from course.show import block_table_figure\n"
    "block_table_figure({'A': [7, 1, 3], 'B': [10]}, {'A': 9, 'B': 3})",
    "measured": "block.measured('no'); slots.measured(15)",
}


def look_of(output):
    """What is seen and said: the picture's words and drawing, or the line under a guess."""
    live = output.locator(".course-live")
    return "\n".join(live.locator("figure, [role=status]").all_inner_texts()) + "\n".join(
        live.locator("svg").evaluate_all("all => all.map(e => e.outerHTML)")
    )


def control(output, role, name):
    name = re.compile(rf"^(\u2713 )?{re.escape(name)}( \(|$)")
    return output.locator(".course-live").get_by_role(role, name=name)


def by_mouse(page, part, role, typed):
    if role == "combobox":
        # The list of a native menu is the system's own window: the choice stands for the click.
        part.click()
        other = part.locator("option:not(:checked)").first.inner_text()
        page.keyboard.press("Escape")
        part.select_option(label=other)
    elif typed:
        part.click(click_count=3)
        page.keyboard.type(typed[0])
        page.locator(".jp-Notebook h1").first.click()
    else:
        part.click()


def by_keyboard(page, part, role, typed):
    reach(page, part)
    if role == "combobox":
        # JupyterLab takes an arrow for itself while the list is closed. Space opens it.
        first = part.evaluate("e => e.selectedIndex === 0")
        for key in ("Space", "ArrowDown" if first else "ArrowUp", "Enter"):
            page.keyboard.press(key)
    elif role == "spinbutton":
        before = part.input_value()
        page.keyboard.press("ArrowUp")
        if part.input_value() == before:  # it stood at its upper end
            page.keyboard.press("ArrowDown")
    elif typed:
        page.keyboard.press("Control+a")
        page.keyboard.type(typed[0] + "3")
        page.keyboard.press("Enter")
    else:
        page.keyboard.press("Enter" if part.evaluate("e => e.textContent.length % 2") else "Space")


def reach(page, part):
    """To a control with Tab alone, from its cell's own side."""
    cell = part.locator("xpath=ancestor::div[contains(@class, 'jp-CodeCell')]")
    cell.focus()
    for _ in range(30):
        page.keyboard.press("Tab")
        if part.evaluate("e => e === document.activeElement"):
            return
    raise AssertionError(f"Tab does not reach {part}")


def work(page, output, piece, move):
    """Every move of a piece, each seen or heard. Gives what did not answer."""
    dead = []
    for role, name, *typed in piece.moves:
        part = control(output, role, name)
        if part.count() != 1:
            dead.append(f"{part.count()} are a {role} named {name!r}")
            continue
        before = look_of(output)
        move(page, part, role, typed)
        if name in piece.quiet:
            continue
        try:
            until(lambda b=before: look_of(output) != b, 30, "")
        except AssertionError:
            dead.append(f"{move.__name__}: {role} {name!r} changed nothing")
    return dead


@pytest.fixture(scope="module")
def widgets(lab):
    """A notebook with every widget, run."""
    server, browser = lab
    codes = {name: piece.code for name, piece in PIECES.items()} | STILL
    write_notebook(server.folder / "widgets.ipynb", [f"# {n}:\n{c}" for n, c in codes.items()])
    book = open_book(server, browser, "widgets.ipynb")
    book.run_all()
    assert book.faults() == []
    yield book
    book.page.context.close()


def output_of(book, name):
    cell = book.cell(f"# {name}:")
    cell.scroll_into_view_if_needed()
    return cell.locator(".jp-Cell-outputArea")


@pytest.mark.parametrize("move", [by_mouse, by_keyboard])
def test_every_widget_moves(widgets, move):
    dead = {}
    for name, piece in PIECES.items():
        output = output_of(widgets, name)
        output.locator(".course-live").wait_for()
        assert output.locator(".course-twin").is_hidden(), f"{name}: its static twin shows, too"
        found = work(widgets.page, output, piece, move)
        if found:
            dead[name] = found
    assert dead == {}


def test_a_question_answers_to_a_click_and_to_enter(widgets):
    output = output_of(widgets, "check_yourself")
    choices = output.locator("details")
    choices.first.locator("summary").click()
    assert "Right." in choices.first.inner_text()
    reach(widgets.page, choices.nth(1).locator("summary"))
    widgets.page.keyboard.press("Enter")
    assert "Not this one." in choices.nth(1).inner_text()


def test_the_player_plays_and_stops(widgets):
    output = output_of(widgets, "memory_map")
    step = control(output, "spinbutton", "Step")
    step.fill("0")
    step.press("Enter")
    control(output, "button", "Play").click()
    until(lambda: int(step.input_value()) >= 2, 60, "it does not play")
    control(output, "button", "Pause").click()
    control(output, "button", "Play").wait_for()


def test_the_focus_is_not_lost_at_the_end(widgets):
    """A button that goes off hands the focus on: who works by keyboard stays where they are."""
    output = output_of(widgets, "pool_film")
    step = control(output, "spinbutton", "Step")
    step.fill("2")
    step.press("Enter")
    until(lambda: "After step 2" in look_of(output), 30, "not at step 2")
    control(output, "button", "Next").press("Enter")
    focused = "() => document.activeElement.textContent.trim()"
    until(lambda: widgets.page.evaluate(focused) == "Back", 30, "the focus is lost")


def test_an_open_table_stays_open(widgets):
    output = output_of(widgets, "pool_film")
    control(output, "button", "Show the values as a table").click()
    rows = output.locator(".course-live table")
    rows.wait_for()
    before = look_of(output)
    control(output, "button", "Back").click()
    until(lambda: look_of(output) != before, 30, "it does not move")
    assert rows.is_visible()


ALL_LOOKS = [("JupyterLab Light", (1280, 768)), ("JupyterLab Dark", (1280, 768))]
LOOKS = ALL_LOOKS if ALL else [("JupyterLab Light", (1280,)), ("JupyterLab Dark", (768,))]


@pytest.mark.parametrize(("theme", "widths"), LOOKS)
def test_axe_finds_nothing_in_what_is_ours(widgets, theme, widths):
    page = widgets.page
    widgets.theme(theme)
    faults = []
    for width in widths:
        page.set_viewport_size({"width": width, "height": 900})
        widgets.sidebar(width > 1000)
        faults += [f"{theme} {width}: {fault}" for fault in violations(widgets)]
        for name in [*PIECES, *STILL]:
            output = output_of(widgets, name)
            look = f"{theme.split()[-1].lower()}_{width}_{name}"
            shot(output, f"widgets/{look}")
            wide = output.evaluate(
                "e => Math.max(...[...e.querySelectorAll('.jp-OutputArea-output')]"
                ".map(o => o.scrollWidth - o.clientWidth))"
            )
            if wide > 1:
                faults.append(f"{look}: {wide} pixels are cut off")
    page.set_viewport_size({"width": 1280, "height": 900})
    assert faults == []
    assert widgets.contrasts > 50, "axe saw hardly any text: nothing was tested"


def test_axe_would_find_something(widgets):
    page, output = widgets.page, output_of(widgets, "measured")
    pale = (
        "<p class=planted style='color:#bbb;background:#fff'>pale</p>"
        "<img class=planted src='data:,'>"
    )
    output.locator("p").first.evaluate("(e, html) => e.insertAdjacentHTML('afterend', html)", pale)
    found = "\n".join(violations(widgets))
    assert "color-contrast" in found
    assert "image-alt" in found
    page.evaluate("document.querySelectorAll('.planted').forEach(e => e.remove())")


WRONG = """def blocks_needed(num_tokens: int, block_size: int) -> int:
    if num_tokens < 0 or block_size < 1:
        raise ValueError(f"{num_tokens} tokens in blocks of {block_size}")
    return num_tokens // block_size + 1"""
RIGHT = WRONG.replace("num_tokens // block_size + 1", "-(-num_tokens // block_size)")


def test_a_lab_is_solved_saved_and_there_after_a_restart(tmp_path, chromium):  # noqa: F811
    folder = copy_course(tmp_path)
    with serving(folder, chromium, "lab") as found:
        an_evening_of_work(*found)
    mine = folder / "my_engine" / "04-blocks_needed.py"
    assert "-(-num_tokens // block_size)" in mine.read_text()
    # The day after: another server, another kernel, the same folder.
    with serving(folder, chromium, "lab") as found:
        the_next_day(*found)


def an_evening_of_work(server, browser):
    book = open_book(server, browser, "exercises/04_block_tables.ipynb")
    book.run(book.cell("from course.practice import check"))

    def answer(code):
        book.run(book.cell("def blocks_needed"), code)
        return book.run(book.cell(re.compile(r"^check\(blocks_needed\)")))

    untouched = answer(None)
    assert "4.2 blocks_needed" in untouched
    assert "Traceback" not in untouched
    said = answer(WRONG)
    shot(book.page, "lab_04_wrong")
    assert "expected" in said
    assert re.search(r"\d of \d+ behaviours hold", said)
    hints = book.page.locator(".jp-MarkdownCell details", has_text="Hint 2")
    hint = hints.filter(has_text="blocks_needed(8, 4)").first
    hint.locator("summary").click()
    assert "exactly full" in hint.inner_text()
    shot(book.page, "lab_04_hint")
    said = answer(RIGHT)
    assert "4.2 blocks_needed: all" in said
    assert "Saved to your engine" in said
    shot(book.page, "lab_04_right")
    book.save()
    book.page.context.close()


def the_next_day(server, browser):
    book = open_book(server, browser, "exercises/04_block_tables.ipynb")
    code = book.cell("def blocks_needed").locator(".cm-content")
    assert "-(-num_tokens // block_size)" in code.text_content()
    more = "from course.practice import progress, resume\nresume('blocks_needed')\nprogress()"
    told = book.run(book.cell("from course.practice import progress"), more)
    shot(book.page, "lab_04_next_day")
    assert "Yours: blocks_needed" in told
    assert re.search(r"4\.2\b.*passed", told)
    book.page.context.close()
