"""Pages: what students read holds nothing hidden, and nothing that a student wrote runs."""

import re
from html.parser import HTMLParser

import pytest
from graded_class import SECRET, exercise, nasty, of, submission

from course.grading.exports import class_page, feedback, similarity
from course.practice import registry
from course.practice.source import reference_text

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """A page that is well formed, stands alone and can be used without eyes on it."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.levels, self.tags, self.words = [], [], [], []
        self.headless = []
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        told = dict(attrs)
        self.tags.append(tag)
        assert tag not in ("script", "iframe", "object", "embed", "link", "img", "form", "base")
        for name, value in told.items():
            assert not name.startswith("on"), f"{tag} {name}"
            assert name not in ("src", "href", "background"), f"{tag} {name}={value}"
        if tag == "html":
            assert told.get("lang")
        if tag == "th":
            assert told.get("scope") in ("col", "row")
        if re.fullmatch("h[1-6]", tag):
            self.levels.append(int(tag[1]))
        if tag == "table":
            self.headless.append(tag)
        if tag == "caption":
            self.headless.pop()
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open, tag
        assert self.open.pop() == tag, f"{tag} closes another element"

    def handle_data(self, data):
        self.words.append(data)

    def check(self):
        assert self.levels[0] == 1
        assert self.levels.count(1) == 1
        for before, after in zip(self.levels, self.levels[1:], strict=False):
            assert after <= before + 1, f"a heading of level {after} below one of {before}"
        assert not self.headless, "a table without a caption"
        return "".join(self.words)


def check(text):
    assert 'http-equiv="Content-Security-Policy"' in text
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"url\(|@import|https?://", text.partition("<body>")[0])
    return Page(text).check()


def test_the_checker_itself_sees_what_it_should():
    good = "<html lang=en><main><h1>x</h1><h2>y</h2></main></html>"
    Page(good).check()
    for bad in ("<script>1</script>", "<p onclick=x>a</p>", "<a href=x>a</a>", "<table></table>",
                "<th>a</th>", "<h1>a</h1>", "<h4>a</h4>", "<p>"):  # fmt: skip
        with pytest.raises(AssertionError):
            Page(good.replace("</main>", f"{bad}</main>")).check()


def test_the_class_page_shows_states_mistakes_and_who_deserves_a_look():
    results = nasty()
    results.submissions.append(
        submission(99, "Wrong Lab", [], state="wrong lab", of=6, repairs=["x.ipynb: is lab 05"])
    )
    results.missing = ["<late>"]
    words = check(class_page.html(results))
    assert "the next block is taken" in words
    assert "x.ipynb: is lab 05" in words
    assert "<late>" in words
    assert "<script>alert(1)</script>" in words or "alert" not in words
    assert f"{len(results.submissions)} submissions" in words


def test_an_empty_class_has_a_page_too():
    assert "0 submissions" in check(class_page.html(of([])))
    nothing = of([submission(1, "x", [], state="no notebook", lab=0, of=0)])
    check(class_page.html(nothing))
    check(feedback.html(nothing.submissions[0]))


def test_points_and_states_are_counted_right():
    made = [exercise("4.1"), exercise("4.1", "wrong", 0.0), exercise("4.1", "missing", 0.0)]
    page = class_page.html(of([submission(n, f"s{n}", [e]) for n, e in enumerate(made)]))
    row = re.search(r"<th scope=\"row\">4.1 Exercise 4.1</th>(.*?)</tr>", page, re.DOTALL)[1]
    cells = re.findall(r"<td[^>]*>([^<]*)", row)
    assert cells[:7] == ["1", "0", "1", "0", "1", "0", "33 %"]


def test_feedback_says_what_helps_and_nothing_hidden():
    results = nasty()
    for s in results.submissions:
        for text in (feedback.html(s), feedback.markdown(s)):
            assert SECRET not in text
            assert "Traceback" not in text
        words = check(feedback.html(s))
        wrong = s.exercises[1].state != "right"
        assert ("This is what comes out when the next block is taken. Ask the table." in words) == (
            wrong
        )
        assert ("got '<b>&=1+1' from ![x](http://y)" in words) == wrong
        assert "Not written yet" in words


def test_markdown_of_a_student_stays_text():
    from markdown_it import MarkdownIt  # what JupyterLab's converter of notebooks brings along

    reader = MarkdownIt("commonmark", {"html": True})
    for s in nasty().submissions:
        tokens = reader.parse(feedback.markdown(s))
        inner = [child for token in tokens for child in token.children or []]
        kinds = {token.type for token in [*tokens, *inner]}
        assert not kinds & {"html_block", "html_inline", "image", "link_open", "code_block"}, kinds
        shown = "".join(child.content for child in inner if child.type == "text")
        assert s.exercises[1].state == "right" or "![x](http://y)" in shown


@pytest.mark.parametrize(
    "words",
    ["1. one", "1) one", "- a", "+ a", "# a", "> a", "= a", "a *b* _c_ `d` ~~e~~", "[a](b)",
     "![a](b)", "<b>a</b>", "&lt;b&gt;", "$x$", "a | b", "\\", "<http://a.b>", "http://a.b",
     "www.a.b", "me@a.b", "a\n\n# b", "[a]: http://b"],
)  # fmt: skip
def test_markdown_shows_any_words_as_they_are(words):
    from markdown_it import MarkdownIt

    reader = MarkdownIt("commonmark", {"html": True})
    for before in ("", "- "):
        tokens = reader.parse(before + feedback.escaped(words))
        kinds = {t.type for t in tokens} - {"bullet_list_open", "bullet_list_close",
                                           "list_item_open", "list_item_close"}  # fmt: skip
        assert kinds == {"paragraph_open", "inline", "paragraph_close"}
        assert sum(t.type == "bullet_list_open" for t in tokens) == len(before) // 2
        inner = [child for t in tokens for child in t.children or []]
        assert {child.type for child in inner} <= {"text", "text_special"}
        assert "".join(child.content for child in inner) == " ".join(words.split())
    raw = feedback.escaped(words)  # what GitHub's kind makes links of without any sign
    assert not re.search(r"https?://|www\.|\w@\w", raw)


def test_a_grader_that_failed_shows_students_no_path():
    s = submission(1, "x", [], state="not graded", repairs=["see /home/teacher/out/job-1.log"])
    for text in (feedback.html(s), feedback.markdown(s)):
        assert "/home/teacher" not in text
        assert "not yours" in text


# ---- resemblances -------------------------------------------------------------------------------

OWN = """
def find(pool, tables):
    # walk backwards, because the newest are at the end
    counts = {}
    for owner, blocks in sorted(tables.items(), reverse=True):
        for position, block in enumerate(blocks):
            if block in counts and position % 2 == 0:
                return f"{owner} holds {block} twice at {position}"
            counts[block] = counts.get(block, 0) + position * 3
    return None if sum(counts.values()) > 7 else "nothing"
"""
RENAMED = '''
def find(p, t):
    """My very own work."""
    seen = {}
    for who, ids in sorted(t.items(), reverse=True):  # loop
        for n, b in enumerate(ids):
            if b in seen and n % 2 == 0:
                return f"{who} has {b} two times, {n}"
            seen[b] = seen.get(b, 0) + n * 3

    return None if sum(seen.values()) > 7 else "-"
'''
OTHER = """
def find(pool, tables):
    everything = [block for blocks in tables.values() for block in blocks]
    unique = set(everything)
    while everything:
        current = everything.pop()
        if current not in unique or pool.ref_count(current) < 1:
            return str(current)
    return None
"""


def test_renaming_comments_and_layout_do_not_hide_a_copy():
    (pair,) = similarity.compare([("a", OWN), ("b", RENAMED), ("c", OTHER)], "4.6")
    assert {pair.one, pair.other} == {"a", "b"}
    assert pair.share > 0.9
    assert pair.comments == 0
    (pair,) = similarity.compare([("a", OWN), ("b", OWN.replace("counts", "seen"))])
    assert pair.comments == 1


def test_what_was_handed_out_or_what_many_have_gives_no_hint():
    assert similarity.compare([("a", OWN), ("b", RENAMED)], given=OWN) == []
    assert similarity.compare([(str(n), OWN) for n in range(20)]) == []
    assert similarity.compare([("a", "def x(:"), ("b", "\0"), ("c", "")]) == []


def test_right_answers_to_short_tasks_give_no_hint():
    e = registry.find("blocks_needed")
    text = reference_text(e)
    made = [submission(n, f"s{n}", [exercise("4.2", answer=text)]) for n in range(2)]
    for s in made:
        s.exercises[0].key = e.key
    assert similarity.of_class(of(made)) == []


def test_the_page_of_resemblances_is_a_hint_and_says_so():
    made = []
    for n, text in enumerate((OWN, RENAMED, OTHER)):
        s = submission(n, f"<b>{n}</b>", [exercise("4.6", answer=text)])
        s.exercises[0].key = "04-find_fault"
        made.append(s)
    pairs = similarity.of_class(of(made))
    assert [p.exercise for p in pairs] == ["4.6"]
    words = check(class_page.similarity(pairs))
    assert "A hint only." in words
    assert "<b>0</b>" in words
    check(class_page.similarity([]))


def test_two_hundred_answers_are_compared_in_seconds():
    import time

    made = [(str(n), OWN.replace("7", str(n)).replace("* 3", f"* {n % 9} + {n}"))
            for n in range(200)]  # fmt: skip
    began = time.perf_counter()
    similarity.compare(made)
    assert time.perf_counter() - began < 20
