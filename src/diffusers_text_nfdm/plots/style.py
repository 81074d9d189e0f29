"""How all figures look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


STYLE = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "font.size": 10,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
}


def make_figure(rows: int, columns: int, size: Sequence[float], **options: Any):
    """A figure outside pyplot, which would keep it open and may want a display, with its panels, which take the
    options of `Figure.subplots`.
    """
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, **options)


def log_scale(axes) -> None:
    """A log scale of y with plain numbers at 1, 2 and 5."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())


def asinh_scale(axes) -> None:
    """A scale of y that is linear below 1 and logarithmic above, of both signs, with plain numbers at 1, 2 and 5."""
    axes.set_yscale("asinh", linear_width=1.0)
    ticks = [digit * 10**power for power in range(7) for digit in (1, 2, 5)]
    axes.yaxis.set_major_locator(matplotlib.ticker.FixedLocator([-tick for tick in ticks] + [0] + ticks))
    axes.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(matplotlib.ticker.NullLocator())
