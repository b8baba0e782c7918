"""What an answer does besides answering, as Python itself reports it.

A note is a hint for a teacher. An answer that has taken its process over can keep quiet about
anything, so nothing else depends on this.
"""

from __future__ import annotations

import sys
from typing import Any

NOTED = {
    "os.system": "started a program", "os.exec": "started a program",
    "os.posix_spawn": "started a program", "subprocess.Popen": "started a program",
    "os.fork": "started a process", "os.forkpty": "started a process",
    "os.kill": "sent a signal", "os.killpg": "sent a signal",
    "socket.__new__": "tried to open a socket", "socket.connect": "tried to open a socket",
    "socket.getaddrinfo": "tried to look up a host",
    "socket.gethostbyname": "tried to look up a host",
    "ctypes.dlopen": "loaded a C library", "ctypes.dlsym": "loaded a C library",
    "gc.get_objects": "went through all objects in memory",
    "gc.get_referrers": "went through all objects in memory",
    "gc.get_referents": "went through all objects in memory",
    "sys._current_frames": "looked at the frames of its callers",
    "sys.settrace": "watched the interpreter", "sys.setprofile": "watched the interpreter",
    "sys.addaudithook": "watched the interpreter", "pickle.find_class": "loaded a pickle",
    "os.remove": "tried to remove a file", "os.rename": "tried to rename a file",
    "os.truncate": "tried to cut off a file", "os.mkdir": "tried to make a folder",
    "os.symlink": "tried to make a link", "os.listdir": "listed a folder",
    "os.scandir": "listed a folder", "shutil.rmtree": "tried to remove a folder",
    "signal.pthread_kill": "sent a signal",
}  # fmt: skip
AT_ONCE = {"sys._getframe": "looked at the frames of its callers"}  # by its own line, not a library
DEEP = 40


def start(notes: set[str]) -> None:
    """Add to ``notes`` from now on. Cannot be undone."""
    busy = False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal busy
        if busy or not (event in NOTED or event in AT_ONCE or event == "open"):
            return
        busy = True
        try:
            frame = sys._getframe(1)
            if event in AT_ONCE:
                if _is_answer(frame):
                    notes.add(AT_ONCE[event])
                return
            for _ in range(DEEP):
                if frame is None or frame.f_code.co_filename.startswith("<frozen importlib"):
                    return
                if _is_answer(frame):
                    notes.add(_opened(arguments) if event == "open" else NOTED[event])
                    return
                frame = frame.f_back
        finally:
            busy = False

    sys.addaudithook(hook)


def _is_answer(frame: Any) -> bool:
    return frame.f_code.co_filename.startswith("<answer")


def _opened(arguments: tuple[Any, ...]) -> str:
    path, mode, flags = (*arguments, None, None, None)[:3]
    writes = any(letter in str(mode) for letter in "wax+") or bool(int(flags or 0) & 3)
    return f"tried to {'write' if writes else 'read'} a file: {str(path)[:80]}"
