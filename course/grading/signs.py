"""What in an answer's text deserves a teacher's look. Hints only: nothing here changes a mark.

Read by syntax tree. Whoever wants to hide such a thing can; what an answer gains by it is decided
elsewhere (docs/grading.md).
"""

from __future__ import annotations

import ast
import re
import sys

from course.practice.exercise import Exercise
from course.practice.source import names_of

MODULES = {
    "ctypes", "gc", "inspect", "atexit", "socket", "subprocess", "multiprocessing", "signal",
    "pickle", "dill", "marshal", "builtins", "importlib", "shutil", "urllib", "http", "requests",
    "pytest", "IPython", "os", "sys", "threading", "resource", "mmap", "fcntl", "site", "runpy",
    "tempfile", "glob", "pathlib", "io", "traceback", "tracemalloc", "faulthandler", "code", "pty",
}  # fmt: skip
CALLS = {
    "open", "exec", "eval", "compile", "__import__", "globals", "vars", "setattr", "delattr",
    "get_ipython", "breakpoint", "exit", "quit", "input",
}  # fmt: skip
ENDS = {"_exit", "exit", "abort", "kill", "killpg", "raise_signal", "skip", "xfail", "execv"}
REACHES = {
    "_getframe", "f_back", "f_globals", "f_locals", "f_code", "tb_frame", "__globals__",
    "__builtins__", "__code__", "__closure__", "__subclasses__", "__bases__", "__mro__",
    "modules", "meta_path", "path_hooks", "settrace", "setprofile", "addaudithook", "get_objects",
    "get_referrers", "environ", "getsource", "currentframe", "stack", "cell_contents",
}  # fmt: skip
ALWAYS = {"__eq__", "__ne__", "__lt__", "__gt__", "__le__", "__ge__", "__bool__", "__contains__"}
LIES = {"__torch_function__", "__array_function__", "__array_ufunc__", "__torch_dispatch__",
        "__class__", "__instancecheck__", "__subclasscheck__", "__del__", "__reduce__",
        "__getattribute__", "__hash__", "__array__"}  # fmt: skip
PLACES = re.compile(
    r"/proc/|/etc/|/root|/home|\.\./|solutions|practice[./]answers|practice[./]bank|grading|\.cache"
)
TURNS = re.compile("[\u202a-\u202e\u2066-\u2069]")
MOST = 12


def signs(text: str, exercise: Exercise) -> list[str]:
    """Notes with line numbers, the first dozen. An answer that cannot be read gives none."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found: dict[str, int] = {}
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imported |= set(names_of(node))
    for node in ast.walk(tree):
        try:
            for words in _of(node, imported, exercise):
                found.setdefault(words, getattr(node, "lineno", 0))
        except RecursionError:
            found["an expression that is nested very deep"] = getattr(node, "lineno", 0)
    if turned := TURNS.search(text):
        words = "characters that change the direction of text: it is not what it looks like"
        found.setdefault(words, text.count("\n", 0, turned.start()) + 1)
    told = [f"line {line}: {words}" for words, line in found.items()]
    return told if len(told) <= MOST else [*told[:MOST], f"and {len(told) - MOST} more"]


def _of(node: ast.AST, imported: set[str], exercise: Exercise) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [w for alias in names for w in _import(alias.name, exercise)]
        case ast.ImportFrom(module=module):
            return _import(module or "", exercise)
        case ast.Call(func=ast.Name(id=name)) if name in CALLS:
            return [f"calls {name}()"]
        case ast.Call(func=ast.Attribute(attr=name)) if name in ENDS:
            return [f"calls {name}(), which ends or leaves the process or a test"]
        case ast.Attribute(attr=name) if name in REACHES:
            return [f"reaches for {name}"]
        case ast.Name(id=name) if name in REACHES and name.startswith("__"):
            return [f"reaches for {name}"]
        case ast.Constant(value=str(words)) if len(words) < 200 and (hit := PLACES.search(words)):
            return [f"names a place: {hit[0]}"]
        case ast.Constant(value=str(words)) if words in REACHES and words.startswith("_"):
            return [f"reaches for {words}"]
        case ast.Assign(targets=targets):
            return _patches(targets, imported)
        case ast.ClassDef():
            return _class(node)
    return []


def _import(module: str, exercise: Exercise) -> list[str]:
    first = module.partition(".")[0]
    if first == "course":
        home = exercise.symbol.partition(":")[0]
        if module == home or module.startswith(("course.practice.", "course.grading")):
            return [f"imports {module}, where its answer or its probes would be"]
        return []
    if first in MODULES and first in sys.stdlib_module_names | {"dill", "requests", "pytest"}:
        return [f"imports {first}"]
    return []


def _patches(targets: list[ast.expr], imported: set[str]) -> list[str]:
    found = []
    for target in targets:
        inner = target
        while isinstance(inner, ast.Attribute | ast.Subscript):
            inner = inner.value
        if inner is not target and isinstance(inner, ast.Name) and inner.id in imported:
            found.append(f"changes what it imported: {ast.unparse(target)[:60]}")
    return found


def _class(node: ast.ClassDef) -> list[str]:
    found = []
    for member in node.body:
        for name in names_of(member):
            value = member.value if isinstance(member, ast.Assign) else None
            body = getattr(member, "body", None)
            if isinstance(value, ast.Lambda):
                value = value.body
            elif isinstance(body, list) and len(body) == 1 and isinstance(body[0], ast.Return):
                value = body[0].value
            if name in ALWAYS and isinstance(value, ast.Constant):
                found.append(f"class {node.name}: {name} always says {value.value!r}")
            if name in LIES:
                found.append(f"class {node.name} defines {name}")
    for base in node.bases:
        name = ast.unparse(base)
        if name in ("int", "float", "str", "bool", "list", "dict", "tuple", "torch.Tensor",
                    "Tensor", "np.ndarray", "numpy.ndarray"):  # fmt: skip
            found.append(f"class {node.name} is a kind of {name}")
    return found
