"""Every figure and every widget's static twin on one page a piece, and photographs of them.

    python tests/show_gallery.py            # pages and pictures into .artifacts/gallery/
    python tests/show_gallery.py --no-shots # pages only

A picture that nobody has looked at is not done: look at .artifacts/gallery/*.png, light and dark,
at 1280 and at 768 pixels.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / ".artifacts" / "gallery"
CHROMIUM = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--hide-scrollbars"]  # fmt: skip
THEMES = {"light": "#ffffff;color:#1a1a1a", "dark": "#111111;color:#e8e8e8"}
# JupyterLab's own margins: at 1280 pixels a cell's output is about 1,110 wide, at 768 about 600.
WIDTHS = {1280: 1110, 768: 600}


def pieces():
    """(name, thing with .mimebundle()) of everything that can be shown."""
    from course import show
    from course.memory import example
    from course.memory.batching import run_batching
    from course.memory.ledger import Ledger
    from course.sizing import MODELS

    off = {"show": False}
    tables, tokens = {"A": [7, 1], "B": [10], "C": [12, 5]}, {"A": 7, "B": 3, "C": 6}
    final = {request.name: request.total_tokens for request in example.REQUESTS}
    yield "block_grid", show.block_grid(tables, tokens, final=final, **off)
    yield (
        "block_grid_shared",
        show.block_grid(
            {"A": [7, 1, 3], "A/1": [7, 1, 14]}, {"A": 9, "A/1": 9}, highlight=[14], **off
        ),
    )
    words = {"A": example.A.prompt.split()}
    yield "block_table_words", show.block_table_figure({"A": [7, 1]}, {"A": 7}, words=words, **off)
    yield (
        "block_table_three",
        show.block_table_figure(
            {"A": [7, 1, 3], "B": [10, 14], "C": [12, 5]},
            {"A": 9, "B": 5, "C": 6},
            follow="A",
            **off,
        ),
    )
    yield "block_table_window", show.block_table_figure({"A": [-1, 1, 3]}, {"A": 10}, **off)
    for step in (0, 2, 9, 22):
        yield f"memory_map_{step}", show.memory_map(step=step, **off)
    yield (
        "memory_map_arenas",
        show.memory_map(policies=("first-fit", "best-fit", "buddy"), step=2, **off),
    )
    yield "memory_map_two", show.memory_map(policies=("slab", "paged"), step=4, **off)
    yield "ledger_one", show.waste_ledger(Ledger(14, 41, 9, 0, 0), **off)
    figure_2 = {
        "Orca (Max)": Ledger(20.4, 13.3, 57.3, 8.9, 0),
        "Orca (Pow2)": Ledger(26.8, 17.9, 13.6, 41.6, 0),
        "Orca (Oracle)": Ledger(38.2, 25.2, 0, 36.6, 0),
        "vLLM": Ledger(96.3, 0, 3.7, 0, 0),
    }
    yield (
        "ledger_four",
        show.waste_ledger(
            figure_2, "% of the pool", title="Kwon et al. 2023, Fig. 2, as published", **off
        ),
    )
    history = [Ledger(i, 10 - i, 2, 4, 4) for i in range(11)]
    yield "ledger_history", show.waste_ledger(history, **off)
    yield "calculator", show.kv_calculator(**off)
    yield "calculator_over", show.kv_calculator(batch=100, **off)
    yield "calculator_mla", show.kv_calculator("DeepSeek-V3 671B", batch=64, **off)
    yield "calculator_window", show.kv_calculator("Gemma-3-27B", tokens=131072, batch=1, **off)
    yield "playground_empty", show.arena_playground(**off)
    yield "playground_refused", show.arena_playground(example.ARENA_TRACE, **off)
    clinic = show.boundary_clinic(**off)
    yield "clinic_start", clinic
    guessed = show.boundary_clinic(step=11, **off)
    for answer in ("yes", "yes"):
        guessed.press(answer)
    guessed.show()
    yield "clinic_guessed", guessed
    yield "clinic_sampled", show.boundary_clinic(step=7, **off)
    yield "microscope", show.address_microscope(**off)
    yield "microscope_b", show.address_microscope("B", 4, 0, **off)
    yield (
        "microscope_smollm2",
        show.address_microscope("A", 6, 2, shape=MODELS["SmolLM2-135M"], num_splits=2, **off),
    )
    yield (
        "microscope_many_heads",
        show.address_microscope("C", 3, 20, shape=MODELS["Llama-2-7B"], **off),
    )
    yield "timeline_all", show.scheduler_timeline(moment=10, **off)
    yield "timeline_chunked", show.scheduler_timeline(show_only="chunked", moment=14, **off)
    yield "timeline_one", show.scheduler_timeline({"static": run_batching("static")}, **off)
    rows = [[("A", "prefill", 7), ("B", "prefill", 3)], [("A", "decode", 1), ("B", "decode", 1)],
            [("A", "decode", 1), ("C", "prefill", 6)]]  # fmt: skip
    yield "timeline_rows", show.scheduler_timeline({"engine": rows}, **off)
    xs = [64, 128, 256, 512, 1024]
    yield "lines", show.line_plot(
        {"without cache": (xs, [20, 40, 83, 170, 340]),
         "with cache": (xs, [18, 18.2, 18.5, 19, 20.5]),
         "paged": (xs, [19, 19.2, 19.5, 21, 22.5])},
        "tokens so far", "ms per token", "Time per token", note="made-up numbers", **off,
    )  # fmt: skip
    yield "lines_log", show.line_plot(
        {"hit rate": ([1e3, 3e3, 1e4, 3e4, 1e5], [4.5, 10, 21, 30, 36.6])}, "blocks", "hits, %",
        "Hit rate over cache size", log="x", note="made-up numbers", **off,
    )  # fmt: skip
    yield "lines_many", show.line_plot(
        {f"block size {2**k}": (xs, [v / 40 * (k + 1) + k for v in xs]) for k in range(6)},
        "tokens", "waste, %", "Six lines keep their names apart", log="x",
        note="made-up numbers", **off,
    )  # fmt: skip
    yield "bars", show.bar_plot(
        {"Max": 7.0, "Pow2": 9.81, "Oracle": 13.62, "vLLM": 30.42}, "requests",
        "Mean batch, OPT-13B on ShareGPT", digits=2, emphasis=["vLLM"],
        note="Kwon et al. 2023, Fig. 13, as published", **off,
    )  # fmt: skip
    import numpy as np

    rng = np.random.default_rng(0)
    yield "histogram", show.histogram(
        {"chat": rng.lognormal(5, 1, 5000), "code": rng.lognormal(7, 0.5, 5000)}, "prompt tokens",
        "Prompt lengths", log=True, note="made-up numbers", **off,
    )  # fmt: skip
    yield "roofline", show.roofline(
        {"decode, batch 1": 1.0, "decode, batch 32": 32.0, "prefill, 1,024 tokens": 1024.0},
        989e12, 3.35e12, "H100 SXM, bf16, data sheet", **off,
    )  # fmt: skip
    yield (
        "roofline_measured",
        show.roofline(
            {"decode": (1.0, 9e9), "prefill": (300, 80e9)}, 110e9, 20e9, "made-up numbers", **off
        ),
    )
    fig, axes = show.new_figure(7.6, 3.2, columns=2)
    with show.style():
        axes[0].bar(["slab", "paged"], [0.2, 0.96], hatch=["///", ""], color="#A9CFCB")
        axes[0].set_title("Share live")
        axes[1].plot([1, 2, 3], [1, 4, 9], marker="o")
        axes[1].set_title("Squares")
    yield (
        "figure",
        show.figure(fig, alt="Bars 0.2 and 0.96; squares 1, 4, 9.", caption="By hand.", **off),
    )
    yield "table", show.table(
        [("policy", "batch", "waste", "fits"), ("slab", 7, 0.8, False), ("paged", 30, 0.04, True)],
        "Policies", **off,
    )  # fmt: skip
    yield "question", show.check_yourself(
        "A holds 7 tokens in blocks of 4. Its 8th arrives. Does A need a new block?",
        {"yes": "It fills the last slot of block 1. Only the 9th needs one.",
         "no": "`blocks_needed(8, 4)` is 2, and A's table has 2 entries."}, right="no", **off,
    )  # fmt: skip
    guess = show.predict("New block for A's 8th token?", ["yes", "no"], **off)
    yield "guess", guess
    guess.set("yes")
    yield "outcome", guess.measured("no", "blocks_needed(8, 4) is 2", show=False)
    yield "record", show.prediction_record(**off)


def page(html: str, theme: str, width: int) -> str:
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>gallery</title>'
        f'<body style="margin:12px;background:{THEMES[theme]};width:{width}px;'
        f'font:14px system-ui,sans-serif">{html}</body></html>'
    )


def photograph(source: Path, target: Path, width: int, height: int) -> None:
    profile = tempfile.mkdtemp()
    try:
        subprocess.run(
            [chromium(), *CHROMIUM, f"--user-data-dir={profile}", f"--window-size={width},{height}",
             f"--screenshot={target}", source.as_uri()],
            check=True, timeout=90, capture_output=True,
        )  # fmt: skip
    finally:
        shutil.rmtree(profile, ignore_errors=True)


def chromium() -> str:
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if not found:
        sys.exit("no Chromium found: install it, or name it in CHROMIUM")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-shots", action="store_true", help="write the pages only")
    parser.add_argument("--only", default="", help="only pieces whose name contains this")
    options = parser.parse_args()
    os.environ["COURSE_STATIC"] = "1"
    OUT.mkdir(parents=True, exist_ok=True)
    parts = []
    for name, thing in pieces():
        if options.only in name:
            html = thing.mimebundle()["text/html"]
            parts.append(f"<h2 style='font-size:15px'>{name}</h2>{html}")
            (OUT / f"{name}.txt").write_text(thing.mimebundle()["text/plain"])
    print(f"{len(parts)} pieces", flush=True)
    per_page = 7
    for theme in THEMES:
        for window, width in WIDTHS.items():
            for start in range(0, len(parts), per_page):
                source = OUT / f"{theme}_{window}_{start // per_page:02}.html"
                source.write_text(page("".join(parts[start : start + per_page]), theme, width))
                if not options.no_shots:
                    photograph(source, source.with_suffix(".png"), window, 4200)
    print(f"look at {OUT}")


if __name__ == "__main__":
    main()
