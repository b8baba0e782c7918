"""Run the cases on each engine in turns and put the ratios into a table."""

import json
import os
import platform
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import median

from course.bench.cases import Case, make_cases
from course.bench.environments import NotBuilt, model_folder, python_of

BOUNDS = ("weights only", "linear layers")
READS_GGUF = ("ours", *BOUNDS, "llama.cpp")


@dataclass
class Measured:
    """One case on one engine: output tokens per second, one entry a round."""

    rates: list[float] = field(default_factory=list)
    outputs: list[list[int]] | None = None
    not_run: str | None = None

    @property
    def median(self) -> float | None:
        return median(self.rates) if self.rates else None


class Worker:
    """An engine in its own process. `error` says why it cannot be measured."""

    def __init__(self, engine: str, model: str, dtype: str, threads: int, python: str):
        here = Path(__file__).resolve()
        env = dict(os.environ, OMP_NUM_THREADS=str(threads), TOKENIZERS_PARALLELISM="false")
        env["HF_HUB_OFFLINE"] = env["VLLM_NO_USAGE_STATS"] = env["DO_NOT_TRACK"] = "1"
        options = ["--dtype", dtype, "--threads", str(threads)]
        self.process = subprocess.Popen(
            [python, str(here.with_name("worker.py")), engine, model, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=env,
        )
        first = self._read()
        self.error: str | None = first.get("error")
        self.version: dict = first.get("version", {})

    def _read(self) -> dict:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"error": "the process ended without an answer"}

    def run(self, case: Case) -> dict:
        if self.error:
            return {"error": self.error}
        assert self.process.stdin is not None
        request = {f.name: getattr(case, f.name) for f in fields(case) if f.name != "name"}
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return {"error": "the process has ended"}
        return self._read()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class Absent:
    """Stands for an engine that cannot be started here."""

    def __init__(self, error: str):
        self.error, self.version = error, {}

    def run(self, case: Case) -> dict:
        return {"error": self.error}

    def close(self) -> None:
        pass


def start(
    engine: str,
    model: str,
    dtype: str,
    threads: int,
    say: Callable[[str], None] = lambda text: None,
) -> "Worker | Absent":
    """The engine, loaded, in its own environment, which is made first if need be."""
    try:
        python = python_of(engine, say)
        is_file = engine not in READS_GGUF and model.endswith(".gguf")
        path = str(model_folder(model, dtype)) if is_file else model
    except NotBuilt as problem:
        return Absent(str(problem))
    return Worker(engine, path, dtype, threads, python)


def measure(
    engines: Sequence[str],
    model: str,
    dtype: str,
    threads: int,
    rounds: int,
    case_names: Sequence[str] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> dict:
    """Measure every case on every engine, `rounds` times, the engines taking turns.

    All engines are loaded first and stay; one warm-up of each case is thrown away.
    """
    cases = make_cases()
    chosen = [cases[name] for name in case_names or cases]
    workers: dict[str, Worker | Absent] = {}
    for engine in engines:
        say(f"loading {engine}")
        workers[engine] = start(engine, model, dtype, threads, say)
    table: dict[str, dict[str, Measured]] = {}
    try:
        for case in chosen:
            row = table[case.name] = {engine: Measured() for engine in engines}
            for turn in range(rounds + 1):
                for engine, worker in workers.items():
                    if row[engine].not_run:
                        continue
                    answer = worker.run(case)
                    if "error" in answer:
                        row[engine].not_run = answer["error"]
                    elif turn > 0:  # the first turn only warms up
                        row[engine].rates.append(case.output_tokens / answer["seconds"])
                        row[engine].outputs = answer["outputs"]
                say(f"{case.name}: round {turn} of {rounds}")
    finally:
        for worker in workers.values():
            worker.close()
    return report(table, engines, {e: w.version for e, w in workers.items()}, dtype, threads)


def report(table, engines, versions, dtype: str, threads: int) -> dict:
    """The measurements as plain data."""
    cases = []
    for name, row in table.items():
        ours = row["ours"].median
        peers = {e: row[e].median for e in engines if e != "ours"}
        same = {
            e: sum(a == b for a, b in zip(row[e].outputs, row["ours"].outputs, strict=True))
            / len(row[e].outputs)
            for e in peers
            if e not in BOUNDS and row[e].outputs and row["ours"].outputs
        }
        cases.append(
            {
                "case": name,
                "ours": ours,
                "peers": peers,
                "ratios": {e: ours / p for e, p in peers.items() if ours and p},
                "spread": {e: [min(m.rates), max(m.rates)] for e, m in row.items() if m.rates},
                "same_outputs": same,
                "not_run": {e: m.not_run for e, m in row.items() if m.not_run},
            }
        )
    return {
        "machine": machine(),
        "versions": versions | {"python": platform.python_version()},
        "dtype": dtype,
        "threads": threads,
        "unit": "output tokens per second, median of the rounds",
        "cases": cases,
    }


def machine() -> str:
    """The machine in a few words: a time means nothing without it."""
    return f"{_cpu_name()}, {os.cpu_count()} cores, {platform.system()}"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def markdown(result: dict) -> str:
    """The result as a page: one row a case, ratios first, then the rates they come from."""
    peers = list(result["cases"][0]["peers"]) if result["cases"] else []
    lines = [
        f"{result['machine']}; {result['dtype']}, {result['threads']} threads; "
        + "; ".join(f"{engine}: {version}" for engine, version in result["versions"].items()),
        "",
        f"Command: `{result.get('command', '')}`",
        "",
        "| case | " + " | ".join(f"ours / {p}" for p in peers) + " | ours, tokens/s (min-max) | "
        + " | ".join(f"{p}, tokens/s (min-max)" for p in peers) + " |",
        "| --- |" + " ---: |" * (2 * len(peers) + 1),
    ]  # fmt: skip
    for case in result["cases"]:
        rates = {"ours": case["ours"]} | case["peers"]
        ratios = [f"{case['ratios'][p]:.2f}" if p in case["ratios"] else "not run" for p in peers]
        cells = []
        for engine, rate in rates.items():
            spread = case["spread"].get(engine)
            cells.append(f"{rate:.1f} ({spread[0]:.1f}-{spread[1]:.1f})" if spread else "not run")
        lines.append(f"| {case['case']} | " + " | ".join(ratios + cells) + " |")
    for case in result["cases"]:
        for engine, why in case["not_run"].items():
            lines.append(f"\nNot run: {engine} on {case['case']}: {why}")
    return "\n".join(lines) + "\n"
