"""Submissions that try to be graded better than they are, for tests/test_grading_attacks.py.

Each is one answer of lab 04; the other cells of its notebook stay as they were handed out.
``most``: the points that the answer is worth without its trick. ``notes``: words of which one must
be in the report.
"""

from dataclasses import dataclass

NEEDED, SLOTS, POOL = "blocks_needed", "slot_mapping", "BlockPool"
GROW, FAULT, GUESS = "grow_table", "find_fault", "predicted_empty_slots"


@dataclass(frozen=True)
class Attack:
    """name; which answer; its text; points without the trick; what the report must say."""

    name: str
    answer: str
    text: str
    most: float
    notes: tuple[str, ...]


def needed(trick: str, before: str = "") -> str:
    """An answer to 4.2 that does something and returns nothing of use."""
    lines = "\n".join("    " + line for line in trick.strip().splitlines())
    return f"{before}\ndef blocks_needed(num_tokens, block_size):\n{lines}\n"


ATTACKS = (
    # A. What comes back, and how it is compared.
    Attack("equals everything", NEEDED, needed("return E()", """
class E:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
"""), 0, ("of type answer.E", "of type E")),
    Attack("an int that equals everything", NEEDED, needed("return I(3)", """
class I(int):
    def __eq__(self, other): return True
    __hash__ = int.__hash__
"""), 0, ("of type answer.I", "of type I")),
    Attack("lies about its class", NEEDED, needed("return L()", """
class L:
    __class__ = int
    def __eq__(self, other): return True
    def __index__(self): return 1
"""), 0, ("defines __class__",)),
    Attack("a kind that calls itself int", NEEDED, needed("return T()", """
class Meta(type):
    def __eq__(self, other): return True
    __hash__ = type.__hash__
T = Meta("int", (), {"__module__": "builtins", "__eq__": lambda s, o: True})
"""), 0, ("of type", "__eq__")),
    Attack("bool for int", NEEDED, needed("return True"), 0, ("",)),
    Attack("nothing at all", SLOTS, "def slot_mapping(block_ids, positions, block_size):\n"
           "    import numpy as np\n    return np.empty((0,))\n", 0, ("",)),
    Attack("zeros", SLOTS, "def slot_mapping(block_ids, positions, block_size):\n"
           "    return [0] * len(list(positions))\n", 0, ("",)),
    Attack("empties its inputs", SLOTS, """
def slot_mapping(block_ids, positions, block_size):
    for values in (block_ids, positions):
        try:
            values.clear()
        except AttributeError:
            pass
    return []
""", 0, ("",)),
    Attack("a list that agrees with everything", SLOTS, """
class A(list):
    def __eq__(self, other): return True
    def __len__(self): return 5
    def __iter__(self): return iter([28, 29, 30, 31, 4])
def slot_mapping(block_ids, positions, block_size):
    return A()
""", 0, ("is a kind of list", "always", "of type")),
    Attack("the examples by heart", NEEDED, needed(
        "if num_tokens < 0 or block_size <= 0:\n    raise ValueError\n"
        "return {(7, 4): 2, (3, 4): 1, (1, 16): 1, (9, 4): 3, (8, 4): 2, (16, 16): 1, (0, 4): 0, "
        "(0, 1): 0, (2**60 + 1, 4): 2**58 + 1}.get((num_tokens, block_size), 1)"
    ), 0.4, ("right on every example of the notebook",)),
    Attack("a thing in place of a number", GUESS, """
class E(float):
    def __sub__(self, other): return 0.0
    __rsub__ = __sub__
    def __le__(self, other): return True
    __abs__ = lambda self: 0.0
predicted_empty_slots = {size: E(0) for size in (1, 4, 16, 64)}
""", 0, ("is a kind of float", "of type")),
    Attack("a dict that has every answer", GUESS, """
class D(dict):
    def get(self, key, default=None): return {1: 0, 4: 1.5, 16: 7.5, 64: 31.5}[key]
predicted_empty_slots = D()
""", 0, ("is a kind of dict", "of type")),
    # B. The process that it runs in.
    Attack("patches the comparison", NEEDED, needed("return 0", """
import numpy
import course.practice.compare as compare
import course.practice.verdict as verdict
numpy.allclose = numpy.array_equal = lambda *a, **k: True
compare.compare = verdict.compare = lambda *a, **k: compare.Comparison()
"""), 0.2, ("changes what it imported", "imports course.practice")),
    Attack("patches the main module", NEEDED, needed("return 0", """
import sys
main = sys.modules["__main__"]
class Patch:
    done = [setattr(main, name, lambda *a, **k: True) for name in list(vars(main))
            if name.islower() and not name.startswith("_")]
"""), 0.2, ("reaches for modules",)),
    Attack("reads its callers' frames", NEEDED, needed("""
frame = sys._getframe(1)
while frame is not None:
    for space in (frame.f_locals, frame.f_globals):
        for name in ("expected", "wanted", "EXPECTED", "outcome", "behaviour", "inputs", "case"):
            if name in space and type(space[name]) is int:
                return space[name]
    frame = frame.f_back
return 0
""", "import sys"), 0.2, ("_getframe",)),
    Attack("goes through memory", NEEDED, needed("""
for thing in gc.get_objects():
    if type(thing) is dict and "expected" in thing:
        return thing["expected"]
return 0
""", "import gc"), 0.2, ("went through all objects", "reaches for get_objects")),
    Attack("patches the writer", NEEDED, needed("return 0", """
import json
class Full:
    json.dumps = lambda *a, **k: '{"ok": 2}'
    json.dump = lambda value, file, **k: file.write('{"ok": 2}')
    json.loads = lambda *a, **k: {"do": "call", "with": []}
"""), 0.2, ("changes what it imported",)),
    Attack("leaves with full marks", NEEDED, needed("""
for place in ("results.json", "/tmp/results.json", "../results.json", "/course-room/results.json"):
    try:
        with open(place, "w") as file:
            file.write('{"points": 18}')
    except OSError:
        pass
os._exit(0)
""", "import os"), 0, ("ended before it answered",)),
    Attack("leaves while it is loaded", NEEDED, needed("return 0", """
import os
class Now:
    os._exit(0)
"""), 0, ("ended before it answered",)),
    Attack("leaves by an exception", NEEDED, needed("raise SystemExit(0)"), 0, ("tried to end",)),
    Attack("rewrites at the end", NEEDED, needed("return 0", """
import atexit, os
@atexit.register
def at_the_end():
    open("/tmp/results.json", "w").write("full marks")
    os._exit(0)
"""), 0.2, ("imports atexit",)),
    Attack("writes into every pipe", NEEDED, needed("""
data = b'{"ok": 2}'
for descriptor in range(256):
    try:
        os.write(descriptor, struct.pack("<I", len(data)) + data)
    except OSError:
        pass
return 0
""", "import os, struct"), 0.2, ("answer pipe",)),
    Attack("writes rubbish into every pipe", NEEDED, needed("""
for descriptor in range(256):
    try:
        os.write(descriptor, bytes(range(200, 256)) * 100)
    except OSError:
        pass
return 0
""", "import os"), 0.2, ("answer pipe", "a message of")),
    Attack("closes every descriptor", NEEDED, needed("os.closerange(0, 1000)\nreturn 2",
           "import os"), 0, ("closed the connection", "ended")),
    Attack("puts modules in the way", NEEDED, needed("return 0", """
import os, sys
class Shadow:
    for name in ("json", "numpy", "torch", "base64", "struct"):
        try:
            with open(name + ".py", "w") as file:
                file.write("raise SystemExit(0)")
        except OSError:
            pass
    sys.path.insert(0, os.getcwd())
"""), 0.2, ("tried to write a file",)),
    Attack("turns the clock", NEEDED, needed("return 0", """
import time
class Clock:
    time.monotonic = time.perf_counter = time.time = lambda: 0.0
"""), 0.2, ("changes what it imported",)),
    Attack("becomes its own peer", NEEDED, needed("return 0", """
import sys
class Mine:
    far = [t for name, m in sys.modules.items() if name == "wall.peer" for t in [m.Peer]]
    for kind in far:
        kind.encode = lambda self, value, depth=0: {"same": 0}
"""), 0.2, ("reaches for modules",)),
    Attack("answers with what is none", NEEDED, needed("return X()", """
import sys
class X: pass
class Mine:
    for kind in [sys.modules["wall.codec"].Codec]:
        kind.encode = lambda self, value, depth=0: {"record": {}, "of": "course.engine:LLM"}
"""), 0, ("reaches for modules", "sent a value that is none")),
    Attack("a value that has no end", NEEDED, needed("""
value = []
for _ in range(50):
    value = [value, value]
return value
"""), 0, ("too large", "in time")),
    Attack("a list that holds itself", SLOTS, """
def slot_mapping(block_ids, positions, block_size):
    value = []
    value.append(value)
    return value
""", 0, ("",)),
    # C. Test runners and start-up.
    Attack("skips the test", NEEDED, needed("""
import pytest
pytest.skip("no")
"""), 0, ("pytest",)),
    Attack("leaves files for a test runner", NEEDED, needed("return 0", """
class Files:
    for name in ("conftest.py", "pytest.ini", "sitecustomize.py", "usercustomize.py", "x.pth"):
        try:
            open(name, "w").write("import os; os._exit(0)")
        except OSError:
            pass
"""), 0.2, ("tried to write a file",)),
    Attack("traces the interpreter", NEEDED, needed("return 0", """
import sys
class Trace:
    sys.settrace(lambda frame, event, argument: frame.f_locals.clear())
    sys.setprofile(lambda frame, event, argument: None)
"""), 0.2, ("settrace", "watched")),
    # D. Notebook level: see test_grading_answers.py for tags, magics and deleted checks.
    Attack("hides its tracebacks", NEEDED, needed("return 0", """
try_shell = get_ipython() if "get_ipython" in dir(__builtins__) else None
"""), 0.2, ("get_ipython",)),
    # E. Around the process.
    Attack("reads the answers from disk", SLOTS, """
import glob, os
def slot_mapping(block_ids, positions, block_size):
    for pattern in ("/home/**/answers/lab_04.py", "/**/solutions/*.ipynb", "../**/*.ipynb",
                    "/ro" "ot/**/block_table.py", "/course-room/**/answers/*.py"):
        for path in glob.glob(pattern, recursive=False):
            text = open(path).read()
            if "divmod(position" in text:
                space = {}
                exec(text, space)
                return space["slot_mapping"](block_ids, positions, block_size)
    return []
""", 0, ("imports glob", "names a place")),
    Attack("imports the solution", SLOTS, """
def slot_mapping(block_ids, positions, block_size):
    from course.engine.block_table import slot_mapping as theirs
    return theirs(block_ids, positions, block_size)
""", 0, ("where its answer or its probes would be",)),
    Attack("imports the answers", FAULT, """
def find_fault(pool, tables):
    from course.practice.answers.lab_04 import find_fault as theirs
    return theirs(pool, tables)
""", 0, ("where its answer or its probes would be",)),
    Attack("imports the probes", GUESS, """
from course.practice.bank.lab_04 import measured_empty_slots
predicted_empty_slots = {size: measured_empty_slots(size) for size in (1, 4, 16, 64)}
""", 0, ("where its answer or its probes would be",)),
    Attack("asks for the course's pool", POOL, """
from course.engine.block_pool import BlockPool as Theirs
class BlockPool(Theirs):
    pass
""", 0, ("where its answer or its probes would be",)),
    Attack("looks at the environment", NEEDED, needed("""
for path in ("/proc/1/environ", f"/proc/{os.getppid()}/environ", "/proc/1/cmdline"):
    try:
        open(path, "rb").read()
    except OSError:
        pass
return len(os.environ.get("COURSE_SEED", ""))
""", "import os"), 0.2, ("reaches for environ",)),
    Attack("calls home", NEEDED, needed("""
socket.create_connection(("127.0.0.1", 8888), 1)
return 0
""", "import socket"), 0, ("socket",)),
    Attack("a pickle in its result", NEEDED, needed("return P()", """
import os
class P:
    def __reduce__(self): return (os.system, ("touch /tmp/pickled-by-an-answer",))
"""), 0, ("defines __reduce__",)),
    Attack("kills the grader", NEEDED, needed("""
for pid in (os.getppid(), -1, 1, -os.getpgrp()):
    try:
        os.kill(pid, 9)
    except OSError:
        pass
return 0
""", "import os"), 0.2, ("sent a signal", "calls kill", "ended by SIGKILL")),
    Attack("an endless loop", NEEDED, needed("while True: pass"), 0, ("in time",)),
    Attack("an endless loop that catches all", NEEDED, needed("""
while True:
    try:
        while True: pass
    except BaseException:
        pass
"""), 0, ("in time",)),
    Attack("sleeps", NEEDED, needed("time.sleep(10**6)", "import time"), 0, ("in time",)),
    Attack("takes all memory", NEEDED, needed("""
held = []
while True:
    held.append(bytearray(10**8))
"""), 0, ("out of memory", "in time")),
    Attack("a thousand processes", NEEDED, needed("""
for _ in range(1000):
    if os.fork() == 0:
        while True: pass
return 2
""", "import os"), 0, ("started a process",)),
    Attack("a thousand threads", NEEDED, needed("""
for _ in range(1000):
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
return 0
""", "import threading, time"), 0.2, ("imports threading",)),
    Attack("starts a shell", NEEDED, needed("""
subprocess.Popen("sleep 1000 & sleep 1000", shell=True)
return 2
""", "import subprocess"), 0, ("started a program", "started a process")),
    Attack("prints without end", NEEDED, needed("""
for _ in range(50):
    print("x" * 100_000)
    os.write(1, b"y" * 65536)
return 0
""", "import os"), 0.2, ("",)),
    Attack("fills the disk", NEEDED, needed("""
for number in range(100):
    try:
        with open(f"/tmp/fill-{number}", "wb") as file:
            for _ in range(100):
                file.write(bytes(10**7))
    except OSError:
        pass
return 0
"""), 0.2, ("tried to write a file",)),
    Attack("a very large answer", SLOTS, """
def slot_mapping(block_ids, positions, block_size):
    return bytes(20_000_000)
""", 0, ("may cross", "in time")),
    Attack("recursion without end", NEEDED, needed("return blocks_needed(num_tokens, block_size)"),
           0, ("",)),
    Attack("crashes", NEEDED, needed("return ctypes.string_at(0)", "import ctypes"), 0,
           ("ended by SIG", "imports ctypes")),
    # Through what a probe hands over.
    Attack("reaches back through the pool", GROW, """
def grow_table(pool, table, num_tokens, block_size):
    for path in ("__class__", "__init__", "__globals__", "_ref_counts", "__dict__"):
        try:
            peer = object.__getattribute__(pool, "_peer")
            number = object.__getattribute__(pool, "_number")
            found = peer.ask("get", on=number, **{"with": [path]})
            raise RuntimeError(f"got {path}")
        except AttributeError:
            pass
    return True
""", 0, ("reaches for __globals__", "reaches for __class__", "hints")),
    Attack("changes the pool behind the probe", GROW, """
def grow_table(pool, table, num_tokens, block_size):
    try:
        pool.num_free = 0
        pool.ref_count = lambda block: 1
    except AttributeError:
        pass
    peer = object.__getattribute__(pool, "_peer")
    for number in range(20):
        try:
            peer.ask("set", on=number, **{"with": ["num_free", 0]})
        except Exception:
            pass
    return True
""", 0, ("",)),
    Attack("table entries that are anything", GROW, """
class E:
    def __eq__(self, other): return True
    def __index__(self): return 0
    def __le__(self, other): return True
    __ge__ = __lt__ = __gt__ = __le__
def grow_table(pool, table, num_tokens, block_size):
    table[:] = [E()] * -(-num_tokens // block_size)
    return True
""", 0, ("always says True", "of type")),
    Attack("a pool that only counts", POOL, """
import sys
class BlockPool:
    def __init__(self, num_blocks, order=None):
        self.num_blocks = self.num_free = num_blocks
        for module in list(sys.modules.values()):
            if hasattr(module, "_problem"):
                module._problem = lambda *a: "nothing"
    def allocate(self, count=1):
        self.num_free -= count
        return [0] * count
    def share(self, ids): pass
    def free(self, ids): self.num_free += len(list(ids))
    def ref_count(self, block): return 1
""", 0, ("reaches for modules",)),
    # More of the same kinds.
    Attack("swaps every table that it finds", NEEDED, needed("return 0", """
import gc, os, sys
class Liar(dict):
    def items(self): return []
class Swap:
    os.environ["PYTEST_ADDOPTS"] = "--co"
    for thing in gc.get_objects():
        if type(thing) is dict:
            for name in ("EXPECTED", "expected", "wanted"):
                if name in thing:
                    thing[name] = Liar()
    sys.modules["__main__"].EXPECTED = Liar()
"""), 0.2, ("went through all objects", "reaches for get_objects")),
    Attack("an array that answers for NumPy", NEEDED, needed("return N()", """
import numpy as np
class N(np.ndarray):
    def __new__(cls): return np.zeros(()).view(cls)
    def __array_function__(self, function, types, args, kwargs): return True
    def __array_ufunc__(self, *args, **kwargs): return True
"""), 0, ("of type answer.N", "defines __array_function__")),
    Attack("answers before it is asked", NEEDED, needed("""
data = b'{"ok": 2, "to": %d}'
for turn in range(200):
    for descriptor in range(3, 20):
        try:
            os.write(descriptor, struct.pack("<I", len(data % turn)) + data % turn)
        except OSError:
            pass
return 0
""", "import os, struct"), 0.2, ("answer pipe",)),
    Attack("answers every question twice", NEEDED, needed("return 2", """
import sys
class Mine:
    def serve(self, message):
        for _ in "ab":
            self.channel.send({"ok": 2, "to": message.get("turn")})
    sys.modules["wall.peer"].Peer._serve = serve
"""), 0, ("answer pipe",)),
    Attack("asks the grader for all it has", NEEDED, needed("return 0", """
import sys
class Mine:
    def serve(self, message):
        for verb in ("call", "get", "set", "item", "in", "load", "value", "drive"):
            for number in range(4):
                try:
                    self.ask(verb, on=number, **{"with": ["__globals__", 1]}, names={})
                except Exception:
                    pass
        self.channel.send({"ok": 0, "to": message.get("turn")})
    sys.modules["wall.peer"].Peer._serve = serve
"""), 0.2, ("reaches for modules",)),
    Attack("shapes without an end", NEEDED, needed("return X()", """
import sys
class X: pass
class Mine:
    kind = sys.modules["wall.codec"].Codec
    real = kind.encode
    def encode(self, value, depth=0, real=real):
        if type(value) is X:
            many = {"torch": "float32", "shape": [10**9] * 9, "stride": [0] * 9, "data": "AAAAAA=="}
            return {"n": 4, "Tensor": many}
        return real(self, value, depth)
    kind.encode = encode
"""), 0, ("sent a value that is none",)),
    Attack("a range that never ends", SLOTS, """
def slot_mapping(block_ids, positions, block_size):
    return range(10**15)
""", 0, ("of type range",)),
    Attack("signals by way of a file", NEEDED, needed("""
for descriptor in range(3, 12):
    for process in (os.getppid(), 1):
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETOWN, process)
            fcntl.fcntl(descriptor, 10, 9)
            return -1
        except OSError:
            pass
return 0
""", "import fcntl, os"), 0.2, ("imports os",)),
    Attack("text that runs backwards", NEEDED, "def blocks_needed(num_tokens, block_size):\n"
           "    return 0  # \u202e skcolb fo rebmun eht\n", 0.2, ("direction of text",)),
    Attack("an error that is called like its input", NEEDED, needed(
        "raise type(f'N{num_tokens}B{block_size}', (Exception,), {})()"), 0, ("",)),
    Attack("puts the engine's answer in its pool", GROW, """
def grow_table(pool, table, num_tokens, block_size):
    from course.practice.answers import lab_04
    return lab_04.grow_table(pool, table, num_tokens, block_size)
""", 0, ("where its answer or its probes would be",)),
)  # fmt: skip
