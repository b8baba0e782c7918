"""Markdown to HTML: markdown-it renders, with the site's links, heading ids and code colours."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from course.authoring.glossary import anchor

# (href or src as written) -> as the page needs it; None: there is no such page, keep the words.
Resolve = Callable[[str], str | None]


# A place named by hand above a heading, for readers that name headings by another rule.
MARK = re.compile(r'^<a id="(?P<id>[^"]+)"></a>\n\n(?P<heading>#+ (?P<words>.+))$', re.MULTILINE)


def _unless_same(found: re.Match) -> str:
    """The heading without the place: here it has that name anyway."""
    return found["heading"] if anchor(found["words"]) == found["id"] else found[0]


def coloured(code: str, language: str = "python") -> str:
    """Code as spans with Pygments' classes."""
    try:
        lexer = get_lexer_by_name(language or "text", stripnl=False)
    except ClassNotFound:
        lexer = get_lexer_by_name("text")
    return str(highlight(code, lexer, HtmlFormatter(nowrap=True))).rstrip("\n")


class Renderer:
    """Renders the markdown of one page: headings get ids that are unique on it, as on code hosts.

    ``headings``: (level, id, HTML of the words), filled while rendering.
    """

    def __init__(self, resolve: Resolve):
        self.resolve = resolve
        self.headings: list[tuple[int, str, str]] = []
        self._ids: dict[str, int] = {}
        self._md = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
        for name in ("fence", "code_block"):
            self._md.add_render_rule(name, _code)

    def render(self, text: str) -> str:
        tokens = self._md.parse(MARK.sub(_unless_same, text))
        for place, token in enumerate(tokens):
            if token.type == "heading_open":
                token.attrs["id"] = self._id(tokens[place + 1].content)
            self._links([token, *(token.children or [])])
        for place, token in enumerate(tokens):
            if token.type == "heading_open":
                words = str(self._md.renderer.render([tokens[place + 1]], self._md.options, {}))
                plain = re.sub(r"</?a\b[^>]*>", "", words)
                self.headings.append((int(token.tag[1]), str(token.attrs["id"]), plain))
        html = str(self._md.renderer.render(tokens, self._md.options, {}))
        # A corner without a word is no header.
        html = re.sub(r"<th([^>]*)></th>", r"<td\1></td>", html)
        # Wide tables scroll by themselves and leave the page as wide as it is.
        html = html.replace("<table>", '<div class="scroll"><table>')
        return html.replace("</table>", "</table></div>")

    def _id(self, words: str) -> str:
        name = anchor(re.sub(r"[`*]|\]\([^)]*\)", "", words)) or "part"
        count = self._ids.get(name, 0)
        self._ids[name] = count + 1
        return f"{name}-{count}" if count else name

    def _links(self, tokens: list[Token]) -> None:
        dropped = 0
        for token in tokens:
            name = "src" if token.type == "image" else "href"
            if token.type in ("link_open", "image"):
                target = self.resolve(str(token.attrs[name]))
                if target is None:
                    dropped += 1
                    token.tag, token.attrs = "span", {"class": "no-link"}
                else:
                    token.attrs[name] = target
            elif token.type in ("html_block", "html_inline"):
                token.content = re.sub(
                    r"""(?<=\s)(href|src|srcset)=(["'])([^"']*)\2""",
                    lambda found: f'{found[1]}="{self.resolve(found[3]) or "#"}"',
                    token.content,
                )
            elif token.type == "link_close" and dropped:
                dropped -= 1
                token.tag = "span"


def _code(self, tokens: Sequence[Token], place: int, options, env) -> str:
    token = tokens[place]
    language = token.info.strip().split()[0] if token.info.strip() else "text"
    return f"<pre><code>{coloured(token.content, language)}</code></pre>\n"
