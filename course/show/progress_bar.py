"""``progress``: a bar for work of more than two seconds, which leaves nothing behind.

    for request in progress(requests, "replaying"):
        ...

In a notebook the bar is an HTML ``<progress>`` that is taken away at the end; in a terminal it is
one line on stderr. Under ``COURSE_STATIC=1`` and where stderr is no terminal it stays silent, so
that a stored output does not depend on how fast a machine was.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from html import escape
from time import monotonic
from typing import TypeVar

from course.show.display import _shell

T = TypeVar("T")


def progress(
    items: Iterable[T], label: str = "working", total: int | None = None, delay: float = 2.0
) -> Iterator[T]:
    """Give the items on one by one; show a bar once ``delay`` seconds have passed.

    total: how many there will be, if ``len(items)`` does not tell; without it the bar only counts.
    """
    if total is None and hasattr(items, "__len__"):
        total = len(items)  # type: ignore[arg-type]
    bar, last = None, monotonic()
    start = last
    try:
        for done, item in enumerate(items):
            now = monotonic()
            if now - start >= delay and (bar is None or now - last >= 0.25):
                bar = bar or _bar(label)
                bar.update(done, total)
                last = now
            yield item
    finally:
        if bar is not None:
            bar.close()


class _Silent:
    def __init__(self, label: str):
        self.label = label

    def update(self, done: int, total: int | None) -> None:
        pass

    def close(self) -> None:
        pass

    def words(self, done: int, total: int | None) -> str:
        return f"{self.label}: {done:,} of {total:,}" if total else f"{self.label}: {done:,}"


class _InPage(_Silent):
    handle = None

    def update(self, done: int, total: int | None) -> None:
        from IPython.display import display

        where = f' value="{done}" max="{total}"' if total else ""
        words = escape(self.words(done, total))
        html = f'<label>{words} <progress{where} aria-label="{words}"></progress></label>'
        bundle = {"text/html": html, "text/plain": self.words(done, total)}
        if self.handle is None:
            self.handle = display(bundle, raw=True, display_id=True)
        else:
            self.handle.update(bundle, raw=True)

    def close(self) -> None:
        if self.handle is not None:
            self.handle.update({"text/html": "", "text/plain": ""}, raw=True)


class _InTerminal(_Silent):
    def update(self, done: int, total: int | None) -> None:
        print(f"\r\033[K{self.words(done, total)}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def _bar(label: str) -> _Silent:
    if os.environ.get("COURSE_STATIC", "") not in ("", "0"):
        return _Silent(label)
    shell = _shell()
    if shell is not None and hasattr(shell, "kernel"):
        return _InPage(label)
    return _InTerminal(label) if sys.stderr.isatty() else _Silent(label)
