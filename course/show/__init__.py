"""Figures and widgets, one line each: ``from course.show import memory_map``.

Everything appears when it is called, brings alternative text and its key values in words, reads on
light and dark pages, and works without colour. A widget has a static twin in the stored output.

Names are looked up on first use, so that one widget does not load what another needs.
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
    "check_yourself": "questions",
    "predict": "guesses",
    "prediction_record": "guesses",
    "forget_predictions": "guesses",
    "progress": "progress_bar",
    "line_plot": "plots",
    "bar_plot": "plots",
    "histogram": "plots",
    "roofline": "rooflines",
    "boundary_clinic": "clinic",
    "kv_calculator": "calculator",
    "arena_playground": "playground",
    "address_microscope": "microscope",
    "scheduler_timeline": "timeline",
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
