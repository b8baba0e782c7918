"""Whether Triton's compiler takes a kernel: ``python -m course.practice.compiles``.

The interpreter takes things that the compiler refuses, so a kernel that runs there may still be
none. No GPU is needed to ask. Interpreter and compiler do not mix, so this is a process of its own,
forked by a nursery (nursery.py) or, where there is none, started here: it reads a JSON object a
line (exercise, text of the answer, what each parameter is) and answers each with another.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from course.practice.nursery import COMPILERS, open_job


def compiler_says(
    exercise_key: str, text: str, types: dict[str, str], constants: dict[str, Any]
) -> str:
    """Empty when the compiler takes the kernel, else its complaint and the line.

    types: of the parameters that are no constants, as Triton writes them: "*fp16", "i32", "fp32".
    """
    if said := _unknown_words(text):
        return said
    job = {"exercise": exercise_key, "text": text, "types": types, "constants": constants}
    if (line := _forked(job)) is not None:
        return _said(line)
    try:
        process = _process()
    except OSError:  # a grader's sandbox starts no other program: then the words must do
        return ""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(job) + "\n")
    process.stdin.flush()
    return _said(process.stdout.readline())


def _said(line: str) -> str:
    if not line:
        raise RuntimeError("the compiler did not answer: try `python -m course.kernel_report`")
    return json.loads(line)["says"]


def _forked(job: dict[str, Any]) -> str | None:
    """The answer of a process that need not import Triton first; None where there is none."""
    found = open_job(COMPILERS, job)
    if found is None:
        return None
    try:
        return found.readline()
    finally:
        found.close()


def _unknown_words(text: str) -> str:
    """Python that the interpreter runs and the compiler does not know."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Break | ast.Continue | ast.Try):
            code = text.splitlines()[node.lineno - 1].strip()
            return f"unsupported AST node type: {type(node).__name__} (at `{code}`)"
    return ""


@cache
def _process() -> subprocess.Popen[str]:
    """Started once: most of its time goes into importing Triton."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.Popen(
        [sys.executable, "-m", "course.practice.compiles"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=env | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        text=True,
        encoding="utf-8",
    )


def _lower(kernel: Any, types: dict[str, str], constants: dict[str, Any]) -> None:
    """The compiler's first step, from Python to its own language: there it refuses."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    source, target = ASTSource(kernel, signature, constants), GPUTarget("cuda", 80, 32)
    try:
        from triton._C.libtriton import ir
        from triton.compiler.compiler import make_backend

        backend: Any = make_backend(target)
        context = ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        options = backend.parse_options({})
        functions, modules = backend.get_codegen_implementation(options), backend.get_module_map()
        steps = (target, options, functions, modules, context)
    except (ImportError, AttributeError, TypeError):  # another version has other steps: take all
        import triton

        triton.compile(source, target=target)
        return
    source.make_ir(*steps)


def warm() -> None:
    """Import what jobs need, before there is one."""
    from course.practice import registry

    registry.every()
    import triton.compiler  # noqa: F401

    from course.engine import triton_decode  # noqa: F401


def do(job: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    """Answer one question."""
    from course.practice.registry import find
    from course.practice.source import load

    said = ""
    try:
        kernel = load(find(job["exercise"]), job["text"])
        _lower(kernel, job["types"], job["constants"])
    except Exception as error:
        said = _words(error)
    say({"says": said})


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what the answer prints goes nowhere

    def say(answer: dict[str, Any]) -> None:
        out.write(json.dumps(answer) + "\n")
        out.flush()

    for line in sys.stdin:
        do(json.loads(line), say)


def _words(error: Exception) -> str:
    """The innermost complaint, and the line that it is about."""
    code = ""
    deepest: BaseException = error
    while deepest.__cause__ is not None:
        deepest = deepest.__cause__
    node = getattr(error, "node", None)
    if node is not None and getattr(error, "src", None):  # Triton's own error
        code = str(vars(error)["src"]).splitlines()[node.lineno - 1].strip()
    message = getattr(deepest, "error_message", None) or str(deepest)
    found = re.sub(r"\s+", " ", str(message).strip().splitlines()[0] if message else "")
    told = found or type(deepest).__name__
    return f"{told} (at `{code}`)" if code else told


if __name__ == "__main__":
    main()
