"""Ctrl-C, and the stop button of a notebook, wait until the engine's books are straight.

An interrupt may arrive between any two lines. Between "block taken" and "block noted" it would
leave a block that nobody owns. So the engine holds it back for the length of a step at most.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_held() -> Iterator[Callable[[], bool]]:
    """Hold back an interrupt until the end of the block; gives a function: has one come?

    A second interrupt is let through at once, for whoever will not wait. Only the main thread gets
    interrupts, so elsewhere this does nothing; nor does it where the program ignores them.
    """
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield lambda: False
        return
    came: list[tuple] = []

    def hold(*signal_and_frame) -> None:
        came.append(signal_and_frame)
        if len(came) > 1:
            usual(*signal_and_frame)

    signal.signal(signal.SIGINT, hold)
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGINT, usual)
        if came:
            usual(*came[0])
