"""Lock this process in, before it runs a line that somebody else wrote. Linux; ctypes only.

Each step says whether it is on. They work alone and together: a user of its own (for root), no new
privileges, Landlock (files), seccomp (system calls), resource limits.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from typing import Any

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# (x86_64, aarch64); -1: there is none.
FORBIDDEN = {
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "ptrace": (101, 117),
    "fork": (57, -1), "vfork": (58, -1), "execve": (59, 221), "execveat": (322, 281),
    "setsid": (112, 157), "setpgid": (109, 154), "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438), "setpriority": (141, 140),
    "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "userfaultfd": (323, 282),
    "perf_event_open": (298, 241), "bpf": (321, 280), "io_uring_setup": (425, 425),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "unshare": (272, 97),
    "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "fsopen": (430, 430), "move_mount": (429, 429), "open_tree": (428, 428),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "kexec_load": (246, 104),
    "init_module": (175, 105), "finit_module": (313, 273), "kcmp": (312, 272),
    "sched_setparam": (142, 118), "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274), "ioprio_set": (251, 30),
}  # fmt: skip
# Allowed only on this process itself: their first argument is 0 or its own number.
ON_ITSELF = {
    "kill": (62, 129), "tgkill": (234, 131), "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
}  # fmt: skip
FCNTL = (72, 25)
SETS_OWNER = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: the kernel signals whom they name
CLONE, CLONE3 = (56, 220), (435, 435)
CLONE_THREAD = 0x10000
SECCOMP, CAPSET = (317, 277), (126, 91)
LANDLOCK = 444  # landlock_create_ruleset, then _add_rule and _restrict_self
PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP = 38, 24

# Landlock: reading is files and folders; the rest is what a folder of its own allows.
READ = 1 << 0 | 1 << 2 | 1 << 3
RIGHTS = (13, 13, 14, 15, 15, 16, 16)  # how many rights each version knows


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def limits(memory: int, seconds: int, file_size: int, processes: int) -> list[str]:
    """Bytes, CPU seconds, bytes, tasks of this user; 0: not limited. What was set."""
    import resource

    done = []
    wanted = {
        "RLIMIT_CORE": 0,
        "RLIMIT_CPU": seconds,
        "RLIMIT_FSIZE": file_size,
        "RLIMIT_NOFILE": 256,
        "RLIMIT_NPROC": processes,
        # Not the address space: libraries of PyTorch map more than they use.
        "RLIMIT_DATA": memory,
    }
    for name, value in wanted.items():
        which = getattr(resource, name, None)
        if which is None or (value == 0 and name != "RLIMIT_CORE"):
            continue
        _, most = resource.getrlimit(which)
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        try:
            resource.setrlimit(which, (value, value))
            done.append(name.removeprefix("RLIMIT_").lower())
        except (ValueError, OSError):
            continue
    return done


def become(user: int) -> bool:
    """Root becomes a user that nobody is, or, with 0, a root without any capability. For good."""
    if os.geteuid() != 0:
        return False
    libc = _libc()
    for capability in range(64):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        return os.getresuid() == (user, user, user)
    column = list(ARCHITECTURES).index(platform.machine())
    header, nothing = struct.pack("Ii", 0x20080522, 0), struct.pack("6I", *[0] * 6)
    return libc.syscall(CAPSET[column], header, nothing) == 0


def no_new_privileges() -> bool:
    return _libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0


def landlock(readable: list[str], writable: list[str], listable: list[str]) -> bool:
    """From now on this thread and those that it starts reach only these paths.

    listable: folders of which the names can be had; Python's import looks at them.
    """
    libc = _libc()
    version = libc.syscall(LANDLOCK, None, 0, 1)
    if version < 1:
        return False
    count = RIGHTS[min(version, len(RIGHTS)) - 1]
    every = (1 << count) - 1
    network = 3 if version >= 4 else 0
    scope = 3 if version >= 6 else 0
    attributes = struct.pack("<QQQ", every, network, scope)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = libc.syscall(LANDLOCK, attributes, size, 0)
    if ruleset < 0:
        return False
    for paths, rights in ((readable, READ), (writable, every & ~1), (listable, 1 << 3)):
        for path in paths:
            try:
                descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            allowed = rights if os.path.isdir(path) else rights & (1 << 0 | 1 << 1 | 1 << 2)
            rule = struct.pack("<Qi", allowed, descriptor)
            libc.syscall(LANDLOCK + 1, ruleset, 1, rule, 0)
            os.close(descriptor)
    done = libc.syscall(LANDLOCK + 2, ruleset, 0) == 0
    os.close(ruleset)
    return done


def seccomp() -> bool:
    """No network, no other programs, no new processes (threads may be), no signals to others."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in ARCHITECTURES:
        return False
    program = _program(machine)
    buffer = ctypes.create_string_buffer(b"".join(program))
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer))
    column = list(ARCHITECTURES).index(machine)
    every_thread = 1
    return _libc().syscall(SECCOMP[column], 1, every_thread, header) == 0


def _program(machine: str) -> list[bytes]:
    """The filter, in the classic Berkeley packet language: load, compare, return."""
    column = list(ARCHITECTURES).index(machine)
    instruction = struct.Struct("HBBI")

    def load(offset: int) -> bytes:
        return instruction.pack(0x20, 0, 0, offset)

    def equal(value: int, then: int, otherwise: int) -> bytes:
        return instruction.pack(0x15, then, otherwise, value)

    def give(value: int) -> bytes:
        return instruction.pack(0x06, 0, 0, value)

    def refuse(number: int = errno.EPERM) -> bytes:
        return give(0x00050000 | number)

    allow, kill = give(0x7FFF0000), give(0x80000000)
    number, architecture, first, second = 0, 4, 16, 24
    found = [load(architecture), equal(ARCHITECTURES[machine], 1, 0), kill, load(number)]
    if machine == "x86_64":  # numbers of the x32 interface
        found += [instruction.pack(0x35, 0, 1, 0x40000000), refuse()]
    for numbers in FORBIDDEN.values():
        if numbers[column] >= 0:
            found += [equal(numbers[column], 0, 1), refuse()]
    for numbers in ON_ITSELF.values():
        inside = [load(first), equal(os.getpid(), 2, 0), equal(0, 1, 0), refuse(), load(number)]
        found += [equal(numbers[column], 0, len(inside)), *inside]
    one, two, three = SETS_OWNER
    owner = [load(second), equal(one, 2, 0), equal(two, 1, 0), equal(three, 0, 1)]
    owner += [refuse(), load(number)]
    found += [equal(FCNTL[column], 0, len(owner)), *owner]
    # The C library falls back to clone, whose flags can be read here.
    found += [equal(CLONE3[column], 0, 1), refuse(errno.ENOSYS)]
    threads = instruction.pack(0x45, 1, 0, CLONE_THREAD)  # any of these bits
    found += [equal(CLONE[column], 0, 4), load(first), threads, refuse(), load(number)]
    return [*found, allow]
