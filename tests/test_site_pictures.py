"""The pictures of the README and of docs/: drawn from the code, up to date, still where wanted."""

import re
from pathlib import Path

import pytest
from site_build import chromium, needs_chromium  # noqa: F401
from test_architecture import FLOORS, imports, modules

from course.pins import ROOT
from course.show import memory_map
from course.site import pictures

FOLDER = ROOT / pictures.FOLDER


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_what_is_stored_is_what_is_drawn(name):
    stored = (FOLDER / name).read_text(encoding="utf-8")
    assert stored == pictures.PICTURES[name](), "python -m course.site.pictures"
    assert len(stored) < 400_000


def test_the_film_shows_every_step_with_every_part():
    film = (FOLDER / "memory.svg").read_text(encoding="utf-8")
    parts = dict(re.findall(r'<g id="(p\d+)">(.*?)</g>', film))
    shots = re.findall(r'<g class="shot[^"]*" style="[^"]*">(.*?)</g>', film)
    steps = memory_map(show=False).frames("step")
    assert len(shots) == len(steps)
    for shot, (_, picture) in zip(shots, steps, strict=True):
        drawn = "".join(parts[part] for part in re.findall(r'href="#(p\d+)"', shot))
        words = re.findall(r"<text[^>]*>([^<]*)</text>", str(picture.data))
        assert re.findall(r"<text[^>]*>([^<]*)</text>", drawn) == words
        assert drawn.count("<rect") == str(picture.data).count("<rect") - 1  # the card
    assert set(re.findall(r"url\(#(\w+)\)", film)) == set(re.findall(r'<pattern id="(\w+)"', film))
    assert film.count('class="shot still"') == 1


def test_parts_are_joined_only_where_they_always_stand_together():
    steps = [["a", "b", "c", "d"], ["a", "b", "d"], ["c", "x", "a", "b"]]
    joined = pictures.joined(steps)
    assert joined == [["ab", "c", "d"], ["ab", "d"], ["c", "x", "ab"]]
    assert ["".join(step) for step in joined] == ["".join(step) for step in steps]


def test_the_house_has_the_floors_that_are_kept():
    for level, floor in enumerate(pictures.HOUSE):
        assert {FLOORS[f"course.{name}"] for name in floor} == {level}
    known = modules(ROOT)
    drawn = pictures.parts_of(ROOT)
    for name, uses in drawn.items():
        if name == "practice":
            continue  # as long as all the others together
        there = set()
        for module, path in known.items():
            if (module + ".").startswith(f"course.{name}."):
                found = {other for other, _ in imports(module, path, set(known))}
                there |= {other.split(".")[1] for other in found if other.count(".")}
        assert uses == (there & set(drawn)) - {name}, name


def test_arrows_leave_out_only_what_follows_from_others():
    parts = {"top": {"middle", "low"}, "middle": {"low"}, "low": set(), "side": {"low"}}
    assert pictures.arrows(parts) == {("top", "middle"), ("middle", "low"), ("side", "low")}


@needs_chromium
@pytest.mark.browser
def test_it_moves_and_stands_still_for_those_who_want_no_motion(chromium, tmp_path):  # noqa: F811
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"<picture>.*?</picture>", readme, re.DOTALL)
    assert found
    page = tmp_path / "page.html"
    page.write_text(found[0].replace("docs/pictures/", f"{FOLDER.as_uri()}/"), encoding="utf-8")
    for motion, name in (("reduce", "memory-still.svg"), ("no-preference", "memory.svg")):
        context = chromium.new_context(reduced_motion=motion)
        tab = context.new_page()
        tab.goto(page.as_uri())
        assert Path(tab.evaluate("document.querySelector('img').currentSrc")).name == name
        tab.goto((FOLDER / "memory.svg").as_uri())
        running = tab.evaluate("document.getAnimations().length")
        seen = "[...document.querySelectorAll('.shot')].filter(s => getComputedStyle(s).visibility"
        shown = tab.evaluate(f"{seen} === 'visible').length")
        assert shown == 1
        assert bool(running) == (motion == "no-preference")
        context.close()
