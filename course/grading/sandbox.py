"""How a worker is kept in on this machine, and whether that holds.

Levels, the best first:

bubblewrap  name spaces of its own (files, processes, network, System V), a read-only system in
            which the course's folder does not exist, a temporary folder of its own.
landlock    the kernel's own limits for one process: only the paths on a list can be read. No
            program needs to be installed and no right to be given, so it also works where name
            spaces are forbidden (some distributions, containers).
none        limits of time and memory only.

Both real levels also take away every privilege, the network and other processes by seccomp.
"""

from __future__ import annotations

import os
import shutil
import site
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course.pins import ROOT

if TYPE_CHECKING:
    from course.grading.room import Room
    from course.grading.session import Limits

LEVELS = ("bubblewrap", "landlock", "none")
INSIDE = "/course-room"  # where bubblewrap shows the room
FIRST_USER = 61_184  # as systemd's dynamic users: nobody's
TMP_SIZE = 32 * 2**20
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin", "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "TZ": "UTC",
    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
    "TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": "/tmp/triton", "CUDA_VISIBLE_DEVICES": "",
}  # fmt: skip
OURS = ("course", "paged_attention_course", "__editable__")


def python() -> str:
    """The interpreter itself: a virtual environment's only points to it."""
    return os.path.realpath(sys.executable)


def packages() -> list[str]:
    """Folders of installed packages."""
    found = [sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]]
    found += site.getsitepackages()
    return list(dict.fromkeys(os.path.realpath(p) for p in found if os.path.isdir(p)))


def command(room: Room, level: str, tmp: Path, read: int, write: int) -> list[str]:
    """What starts a worker."""
    place = INSIDE if level == "bubblewrap" else str(room.path)
    worker = [python(), "-I", "-S", "-B", "-X", "utf8"]
    worker += [f"{place}/wall/worker.py", str(read), str(write)]
    return [*_bubblewrap(room), *worker] if level == "bubblewrap" else worker


def _bubblewrap(room: Room) -> list[str]:
    told = ["bwrap", "--die-with-parent", "--unshare-pid", "--unshare-net", "--unshare-ipc"]
    told += ["--unshare-uts", "--unshare-cgroup-try"]
    if os.geteuid() == 0:
        told += ["--cap-drop", "ALL"]
        for name in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):  # to become nobody, then gone
            told += ["--cap-add", name]
    else:
        told += ["--unshare-user", "--uid", "65534", "--gid", "65534"]
    told += ["--proc", "/proc", "--dev", "/dev", "--size", str(TMP_SIZE), "--tmpfs", "/dev/shm"]
    told += ["--size", str(TMP_SIZE), "--perms", "1777", "--tmpfs", "/tmp"]
    shown = ["/usr"]
    for path in ("/lib", "/lib64", "/lib32", "/bin", "/sbin"):
        if os.path.islink(path):
            told += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            shown.append(path)
    shown += ["/etc/ld.so.cache", "/etc/localtime", sys.base_prefix, *packages()]
    for path in dict.fromkeys(shown):
        for folder in reversed(Path(path).parents[:-1]):  # or they would be closed as outside
            told += ["--perms", "0755", "--dir", str(folder)]
        told += ["--ro-bind-try", path, path]
    hidden = [f"{p}/course" for p in packages() if os.path.isdir(f"{p}/course")]
    hidden += [str(ROOT)] if any(_under(str(ROOT), path) for path in shown) else []
    for path in hidden:
        told += ["--tmpfs", path]
    # Packages of an environment inside the course's folder are put back on top of nothing.
    for path in packages():
        if any(_under(path, inner) for inner in hidden):
            told += ["--ro-bind", path, path]
    told += ["--ro-bind", str(room.path), INSIDE, "--chdir", "/tmp", "--remount-ro", "/", "--"]
    return told


def _under(path: str, folder: str) -> bool:
    return os.path.commonpath([path, folder]) == folder


def order(room: Room, level: str, limits: Limits, tmp: Path, slot: int) -> dict[str, Any]:
    """What a worker is told first: how to lock itself in, where packages are, what to import."""
    user: int | None = None
    if os.geteuid() == 0:
        # Without a file system of its own, a stranger must be able to read Python itself.
        user = FIRST_USER + slot if level == "bubblewrap" or _open_to_all(python()) else 0
    if user and level != "bubblewrap":
        os.chown(tmp, user, user)
    readable = _readable(room) if level == "landlock" else []
    return {
        "packages": packages(),
        "imports": room.imports,
        "lock": level != "none",
        "user": user,
        "readable": readable,
        "writable": ["/dev/null"] if readable else [],  # a folder has no limit but the disk
        "listable": [sysconfig.get_paths()["stdlib"], *packages()] if readable else [],
        "limits": {
            "memory": limits.memory,
            "seconds": int(limits.seconds * 2 + 60),
            "file_size": limits.file_size,
            # Counted by user: only where this one has a user or a user name space of its own.
            "processes": limits.processes if user or level == "bubblewrap" else 0,
        },
    }


def _open_to_all(path: str) -> bool:
    folders = [Path(path), *Path(path).parents]
    return all(folder.stat().st_mode & 0o005 == 0o005 for folder in folders)


def _readable(room: Room) -> list[str]:
    """Everything that Python and its packages need, and not the course."""
    library = sysconfig.get_paths()["stdlib"]
    found = [str(room.path), python(), "/etc/ld.so.cache", "/etc/localtime", "/dev/urandom"]
    found += ["/dev/null", "/dev/zero", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu"]
    found += ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo"]
    for folder in (library, *packages()):
        for entry in sorted(os.listdir(folder)):
            if entry not in ("site-packages", "dist-packages") and not entry.startswith(OURS):
                found.append(f"{folder}/{entry}")
    found += [str(path) for path in Path(sys.base_prefix, "lib").glob("*.so*")]
    return found


def missing_layers(on: dict[str, Any], order: dict[str, Any]) -> list[str]:
    """Layers that were ordered and that the worker could not put on."""
    if not order["lock"]:
        return []
    wanted = ["no new privileges", "seccomp"]
    wanted += ["landlock"] if order["readable"] else []
    wanted += ["user"] if order["user"] is not None else []
    return [name for name in wanted if not on.get(name)]


def is_there(level: str) -> str:
    """Why a level cannot even be tried; empty when it can."""
    if level != "none" and sys.platform != "linux":
        return "it needs Linux"
    if level == "bubblewrap" and shutil.which("bwrap") is None:
        return "the program bwrap is not installed"
    return ""
