"""The site in a real browser: it can be read by everybody, works by keyboard, and prints.

A few pages of each kind are looked at; COURSE_SITE_ALL=1 looks at all of them, in all four ways.
"""

import os
import re

import pytest
from site_build import chromium, needs_chromium, report, site  # noqa: F401

from course.authoring import build as lessons

pytestmark = [needs_chromium, pytest.mark.browser, pytest.mark.timeout(900)]

LOOKS = [("light", 1280), ("dark", 768), ("dark", 1280), ("light", 768)]
SOME = {
    "index.html": LOOKS[:2],
    "search.html": LOOKS[1:2],
    "notebooks/04_block_tables.html": LOOKS[:2],
    "notebooks/06_continuous_batching.html": LOOKS[3:],
    "labs/04_block_tables.html": LOOKS[1:3],
    "summaries/01_the_kv_cache.html": LOOKS[1:2],
    "docs/glossary.html": LOOKS[2:3],
    "docs/authoring.html": LOOKS[3:],
    "docs/architecture.html": LOOKS[1:2],
    "docs/readme.html": LOOKS[:1],
}
ALL = bool(os.environ.get("COURSE_SITE_ALL"))
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]


@pytest.fixture
def look(chromium, site):  # noqa: F811
    """look(page, scheme, width) -> a browser page. Fails if anything went wrong in one of them."""
    contexts, faults = [], []

    def open_page(name, scheme="light", width=1280, height=900, **settings):
        size = {"width": width, "height": height}
        context = chromium.new_context(viewport=size, color_scheme=scheme, **settings)
        context.set_default_timeout(120_000)  # of a crowded machine
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda told: told.type == "error" and faults.append(told.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on(
            "request",
            lambda asked: asked.url.startswith(("file:", "data:")) or faults.append(asked.url),
        )
        page.goto((site / name).as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


def pages(site):  # noqa: F811
    if not ALL:
        return [(name, look) for name, looks in SOME.items() for look in looks]
    names = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    return [(name, look) for look in LOOKS for name in names]


def overflow(page):
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")


def violations(page):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    # Preloading fetches style sheets, which a page from a disk may not do.
    options = {"runOnly": {"type": "tag", "values": WCAG}, "preload": False}
    found = axe.run(page, options=options).response["violations"]
    return [
        f"{rule['id']} ({rule['impact']}): {node['html'][:120]}"
        for rule in found
        for node in rule["nodes"]
    ]


@pytest.mark.timeout(1800 if ALL else 900)
def test_axe_finds_nothing_and_no_page_is_wider_than_its_window(look, site):  # noqa: F811
    faults, looked = [], 0
    for name, (scheme, width) in pages(site):
        page = look(name, scheme, width)
        looked += 1
        faults += [f"{name} {scheme} {width}: {fault}" for fault in violations(page)]
        if overflow(page) > 0:
            faults.append(f"{name} {scheme} {width}: {overflow(page)} pixels too wide")
        page.context.close()
    assert looked >= 10
    assert faults == []


def test_axe_would_find_something(look):
    page = look("docs/glossary.html")
    page.evaluate("""document.querySelector('main').insertAdjacentHTML('beforeend',
        '<p style="color:#bbb;background:#fff">pale</p><img src="data:,"><a href="#x"></a>')""")
    found = "\n".join(violations(page))
    for rule in ("color-contrast", "image-alt", "link-name"):
        assert rule in found


def test_everything_opened_is_sound_too(look):
    """Folds, a moved figure and search results are read by axe when they are open."""
    page = look("labs/04_block_tables.html", "dark", 768)
    page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
    assert violations(page) == []
    assert overflow(page) <= 0
    page = look("notebooks/04_block_tables.html")
    page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
    page.get_by_role("slider").first.press("ArrowRight")
    assert violations(page) == []
    page = look("search.html", "dark", 768)
    page.get_by_label("Words, or how they begin").fill("block")
    page.wait_for_selector("#found li")
    assert violations(page) == []


@pytest.mark.parametrize("name", ["index.html", "notebooks/04_block_tables.html", "search.html"])
def test_a_page_fits_a_narrow_window(look, name):
    """WCAG 2.1, 1.4.10: nothing is lost at 320 pixels."""
    assert overflow(look(name, width=320)) <= 0


def test_a_figure_moves_by_keyboard_and_by_mouse(look):
    page = look("notebooks/04_block_tables.html")
    place = page.locator(".course-twin.moving").first
    slider = place.get_by_role("slider")
    told = place.locator("figcaption")

    def state():
        return place.locator("figure svg").first.get_attribute("aria-label"), told.inner_text()

    assert place.locator("figure img").count() == 1  # before it is touched: the stored picture
    start = int(slider.input_value())
    before = place.locator("figure img").get_attribute("alt")
    slider.press("ArrowRight")
    moved = state()
    assert int(slider.input_value()) == start + 1
    assert moved[0] != before
    slider.press("Home")
    assert slider.input_value() == "0"
    assert place.get_by_role("button", name="Back").is_disabled()
    first = state()
    place.get_by_role("button", name="Next").click()
    assert slider.input_value() == "1"
    place.get_by_role("button", name="Back").press("Enter")
    assert state() == first
    # The button went off, and the focus did not get lost with it.
    assert page.evaluate("document.activeElement.textContent") == "Next"
    assert re.fullmatch(r"0 of \d+", slider.get_attribute("aria-valuetext"))
    assert len({first, moved}) == 2


def test_an_open_table_stays_open_and_changes_with_the_figure(look):
    page = look("notebooks/05_paged_attention.html")
    place = page.locator(".course-twin.moving").first
    place.locator("details summary").first.click()
    before = place.locator("table").first.inner_text()
    place.get_by_role("slider").press("Home")
    assert place.locator("details").first.get_attribute("open") is not None
    assert place.locator("table").first.inner_text() != before


def test_without_scripts_all_is_there_and_stands_still(look):
    page = look("notebooks/04_block_tables.html", java_script_enabled=False)
    assert page.get_by_role("slider").count() == 0
    assert page.locator(".theme").is_hidden()
    assert page.locator("[data-film] figure img").first.is_visible()
    question = page.locator(".course-question").first
    answer = question.locator("details p").first
    assert answer.is_hidden()
    question.locator("summary").first.press("Enter")
    assert answer.is_visible()
    assert re.match(r"Right\.|Not this one\.", answer.inner_text())


def test_search_finds_words_and_their_beginnings(look):
    page = look("notebooks/00_start_here.html")
    page.get_by_label("Search the course").fill("coalesc")
    page.get_by_label("Search the course").press("Enter")
    page.wait_for_selector("#found li")
    found = page.locator("#found a")
    addresses = [found.nth(i).get_attribute("href") for i in range(found.count())]
    assert "docs/glossary.html#coalescing" in addresses
    assert any("03_fragmentation" in address for address in addresses)
    box = page.get_by_label("Words, or how they begin")
    box.fill("zzzz <b>")
    page.wait_for_function("document.getElementById('count').textContent === '0 places'")
    box.fill("coalescing")
    page.wait_for_selector("#found li")
    page.locator("#found a", has_text="coalescing").first.click()
    page.wait_for_url(lambda address: "search.html" not in address)
    page.wait_for_selector("h1")
    assert page.locator("h1").count() == 1


def test_the_theme_is_chosen_and_stays(look):
    page = look("index.html", "light")

    def ground():
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light = ground()
    page.get_by_role("button", name="Dark theme").click()
    dark = ground()
    assert dark != light
    page.get_by_role("link", name="04 Block tables").first.click()
    page.wait_for_url("**/04_block_tables.html")  # a click does not wait for the page to be whole
    assert ground() == dark
    page.get_by_role("button", name="Light theme").click()
    assert ground() == light


def test_the_first_tab_skips_to_the_text(look):
    page = look("docs/glossary.html")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the text"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_in_a_narrow_window_the_contents_are_folded(look):
    page = look("notebooks/04_block_tables.html", width=768)
    here = page.locator(".contents [aria-current=page]")
    assert here.is_hidden()
    page.locator(".contents summary").press("Enter")
    assert here.inner_text() == "04 Block tables"
    assert here.is_visible()


@pytest.mark.parametrize("path", lessons.sources(), ids=lambda path: path.stem)
def test_a_summary_prints_on_one_sheet(look, path):
    page = look(f"summaries/{path.stem}.html", "dark")
    assert page.locator("main.sheet figure img").count() == 1
    printed = page.pdf(prefer_css_page_size=True)
    assert re.search(rb"/MediaBox\s*\[\s*0 0 59[45][\d.]* 84[12]", printed), "not A4"
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 1


def test_a_lesson_prints_without_what_is_for_screens(look):
    page = look("notebooks/04_block_tables.html", "dark")
    page.emulate_media(media="print", color_scheme="dark")
    for part in (".mover", ".contents", ".top", ".turn"):
        assert page.locator(part).first.is_hidden()
    ink = page.evaluate("getComputedStyle(document.body).color")
    assert sum(map(int, re.findall(r"\d+", ink)[:3])) < 200, "printed in the dark theme's ink"
