"""What stories are worth, against calls of the network and against time."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
from matplotlib.figure import Figure

from .frontier import COLORS
from .style import STYLE, make_figure


MARKERS = "os^Dv*Px"


@matplotlib.rc_context(STYLE)
def plot_few_calls(rows: Sequence[dict]) -> Figure:
    """Rows of `evaluation/few_calls.py`: the share of valid stories over calls per story, and over the time of one
    story, alone and in batches of 64. One colour for each checkpoint, one marker for each method. A line goes from few
    calls to many.
    """
    figure, axes = make_figure(1, 3, (13, 4))
    groups = list(dict.fromkeys(_group(row) for row in rows))
    checkpoints, methods = (list(dict.fromkeys(group[part] for group in groups)) for part in range(2))
    scales = (("calls", 1, "calls"), ("seconds_1", 1000, "ms per story, alone"),
              ("seconds_64", 1000, "ms per story, 64 at a time"))  # fmt: skip
    for ax, (key, factor, label) in zip(axes, scales):
        for group in groups:
            own = sorted((row for row in rows if _group(row) == group), key=lambda row: row["calls"])
            color = COLORS[checkpoints.index(group[0]) % len(COLORS)]
            style = {"color": color, "marker": MARKERS[methods.index(group[1]) % len(MARKERS)]}
            ax.plot(
                [factor * row[key] for row in own],
                [100 * row["validity"] for row in own],
                label=" ".join(group),
                linestyle="-" if len(own) > 1 else "none",
                **style,
            )
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        ax.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
        ax.xaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
        ax.set(xlabel=label, ylim=(-4, 104))
    axes[0].set_title("valid stories, %")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _group(row: dict) -> tuple[str, str]:
    """Checkpoint and method, with what makes it another method rather than a longer one."""
    method, *options = row["sampling"].split(":")
    kinds = [option for option in options if option.startswith(("jump_length", "remasking"))]
    return row["checkpoint"], " ".join([method, *kinds])
