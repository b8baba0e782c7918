"""Each rule about a built page can fail."""

import pytest

from course.site import check

GOOD = """<!DOCTYPE html><html lang="en"><head><title>Block tables</title>
<link rel="icon" href="data:,"><link rel="stylesheet" href="a.css"></head>
<body><a href="#main">Skip to the text</a><main id="main"><h1>Title</h1><h2 id="two">Two</h2>
<p><a href="b.html#there">other</a> <a href="https://example.org">away</a></p>
<img src="data:," alt="Sixteen blocks, five taken"><svg aria-label="Five of sixteen blocks"></svg>
<label for="q">Search</label><input id="q"></main></body></html>"""
OTHER = GOOD.replace("Block tables", "Another page").replace('id="two"', 'id="there"').replace(
    "b.html#there", "a.html"
)  # fmt: skip


def problems(folder, change=lambda page: page, sheet=""):
    (folder / "a.html").write_text(change(GOOD), encoding="utf-8")
    (folder / "b.html").write_text(OTHER, encoding="utf-8")
    (folder / "a.css").write_text(sheet, encoding="utf-8")
    return check.broken(folder)


def test_a_good_page_is_good(tmp_path):
    assert problems(tmp_path) == []


def test_an_empty_folder_is_no_site(tmp_path):
    assert check.broken(tmp_path)


BREAKS = {
    "no language": (' lang="en"', "", "language"),
    "no title": ("Block tables", "", "the title ''"),
    "same title": ("Block tables", "Another page", "2 pages have the title"),
    "no main": ("main", "div", "0 <main>"),
    "two h1": ("</main>", "<h1>More</h1></main>", "2 first-level"),
    "skipped level": ('<h2 id="two">Two</h2>', '<h3 id="two">Two</h3>', "skips from level 1 to 3"),
    "empty heading": (">Two<", "><", "empty heading"),
    "same id": ('id="two"', 'id="main"', "'main' 2 times"),
    "not closed": ("</p>", "", "</main> closes"),
    "no skip link": ('<a href="#main">Skip to the text</a>', "", "skips to the text"),
    "no alt": ('alt="Sixteen blocks, five taken"', "", "<img> with alt"),
    "empty alt": ("Sixteen blocks, five taken", "", "<img> with alt"),
    "silent svg": (' aria-label="Five of sixteen blocks"', "", "<svg> without"),
    "link without words": (">other<", "><", "has no words"),
    "field without label": ("<label for", "<label id", "no label"),
    "dead link": ("b.html#there", "gone.html", "leads nowhere"),
    "dead part": ("b.html#there", "b.html#gone", "no part"),
    "dead part here": ("#main", "#gone", "no part"),
    "link from the root": ("b.html#there", "/b.html", "not relative"),
    "link elsewhere": ("b.html#there", "ftp://b.html", "not relative"),
    "link out": ("b.html#there", "../../etc/hosts", "leads nowhere"),
    "outside script": ("</main>", '<script src="https://x.org/a.js"></script></main>', "outside"),
    "outside font": ("a.css", "//fonts.example.org/a.css", "outside"),
    "outside picture": ('src="data:,"', 'src="http://x.org/a.png"', "outside"),
    "lost other picture": (
        "</main>",
        '<picture><source srcset="a.svg 2x, b.html"></picture></main>',
        "a.svg, which is not there",
    ),
    "lost script": ("</main>", '<script src="a.js"></script></main>', "not there"),
    "style in the page": (
        "</main>",
        "<style>p{background:url(http://x.org)}</style></main>",
        "http",
    ),
    "style of a tag": ("<p>", '<p style="background:url(//x.org/a.png)">', "//x.org"),
}


@pytest.mark.parametrize(("old", "new", "says"), BREAKS.values(), ids=BREAKS)
def test_a_broken_rule_is_found(old, new, says, tmp_path):
    assert old in GOOD
    found = problems(tmp_path, lambda page: page.replace(old, new))
    assert any(says in problem for problem in found), found


@pytest.mark.parametrize("sheet", ["@import 'x.css';", "p { background: url('https://x.org/f') }"])
def test_style_sheets_load_nothing(sheet, tmp_path):
    assert any("a.css loads" in problem for problem in problems(tmp_path, sheet=sheet))
    assert problems(tmp_path, sheet="p { background: url(data:image/png;base64,xx) }") == []
