"""Figures and widgets, one line each: ``from course.show import memory_map``.

Everything appears when it is called (a trailing semicolon or an assignment does not hide it, and
the last line of a cell does not show it twice), brings alternative text and its key values in
words, reads on light and dark pages, and works without colour. Wrong input is a ValueError.

To look at
    block_grid({"A": [7, 1]}, {"A": 7})               the pool, block by block
    block_table_figure({"A": [7, 1]}, {"A": 7})       tokens, table, pool, and the pointers between
    waste_ledger({"slab": ledger, "paged": other})    bars that sum to the pool
    line_plot({"paged": (xs, ys)}, "tokens", "ms")    lines with their names at them
    bar_plot({"slab": 7, "paged": 30}, "requests")    bars with their values at them
    histogram({"chat": lengths}, "tokens", log=True)  shares per bin, medians in the table
    roofline({"decode": 1.0}, flops, bandwidth, name) what bounds an operation
    slab_figure([512] * 8, max_model_len=4096)        slabs to scale, what is written in each
    memory_bars({"one hole": arena}, ask=8)           a memory monitor, and the memory behind it
    segment_figure(allocator.segments())              what a caching allocator keeps
    split_figure(8, 132, 32_768, (1, 16))             which processors have work, split or not
    generation_work(prompt=7, output=21)              which tokens are computed in which step
    figure(fig, alt="...", table={...})               any matplotlib figure, with words
    new_figure() / use_style() / style()              the course's matplotlib style
    table([("policy", "batch"), ("slab", 7)])         rows of numbers

To move (each with a static twin; ``w.set("step", 3)`` and ``w.press("next")`` work without a
front end, ``w.frames("step")`` gives every position as a picture)
    memory_map()             slab, arena and paged memory under one stream
    waste_ledger([...])      a history of ledgers
    kv_calculator()          model, length, batch and type to bytes
    arena_playground()       allocate and free until a request is refused with room to spare
    limit_dial(requests, 32_768, limits)  max_model_len against batch, waste, and who is dropped
    boundary_clinic()        when is a new block taken? guess, and be told
    address_microscope()     request, token and head to byte and program
    scheduler_timeline()     four ways to batch the same requests
    pool_film(recording)     the real engine's pool, step by step

To think
    guess = predict("...?", ["yes", "no"]); guess.measured("no"); prediction_record()
    check_yourself("...?", {"yes": "why not", "no": "why"}, right="no")
    for x in progress(items, "replaying"): ...

Under ``COURSE_STATIC=1`` (the build, nbval, print) only static twins go out, the same in every run.
PNG bytes differ between versions of matplotlib, so compare stored outputs with
``data:image/png;base64,[^"]*`` masked. Names are looked up on first use, so that one widget does
not load what another needs.
"""

from importlib import import_module

_HOME = {
    "Picture": "display",
    "static_only": "display",
    "style": "plot_style",
    "use_style": "plot_style",
    "STYLE_FILE": "plot_style",
    "new_figure": "plot_style",
    "direct_label": "plot_style",
    "figure": "figures",
    "table": "tables",
    "block_grid": "blocks",
    "block_table_figure": "blocks",
    "waste_ledger": "ledger",
    "limit_dial": "limits",
    "check_yourself": "questions",
    "predict": "guesses",
    "prediction_record": "guesses",
    "forget_predictions": "guesses",
    "progress": "progress_bar",
    "line_plot": "plots",
    "bar_plot": "plots",
    "histogram": "plots",
    "roofline": "rooflines",
    "split_figure": "splits",
    "generation_work": "work",
    "boundary_clinic": "clinic",
    "kv_calculator": "calculator",
    "arena_playground": "playground",
    "address_microscope": "microscope",
    "scheduler_timeline": "timeline",
    "slab_figure": "limits",
    "memory_bars": "holes",
    "segment_figure": "holes",
    "TorchCache": "torch_cache",
    "memory_map": "pools",
    "Arrival": "pools",
    "Recording": "recording",
    "pool_film": "recording",
}

__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"course.show has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__():
    return __all__
