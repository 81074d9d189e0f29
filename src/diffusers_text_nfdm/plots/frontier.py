"""Calls of the predictor against what the texts are worth."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
from matplotlib.figure import Figure

from .style import STYLE, make_figure


COLORS = ("#4477aa", "#228833", "#aa3377", "#ccbb44", "#66ccee", "#ee6677", "#bbbbbb")


@matplotlib.rc_context(STYLE)
def plot_frontier(rows: Sequence[dict], entropy: float | None = None) -> Figure:
    """Rows of `measure_frontier`: the share of valid texts, or of distinct ones where validity is not known, and the
    nats along the clock, both over the mean number of calls. What follows one clock is joined.
    """
    figure, (left, right) = make_figure(1, 2, (10, 3.8))
    quality = "validity" if all("validity" in row for row in rows) else "distinct"
    clocks = list(dict.fromkeys(row["clock"] for row in rows))
    for index, clock in enumerate(clocks):
        own = sorted((row for row in rows if row["clock"] == clock), key=lambda row: row["calls"])
        calls, color = [row["calls"] for row in own], COLORS[index % len(COLORS)]
        left.plot(calls, [100 * row[quality] for row in own], "o-", color=color, label=clock)
        nats = own[0]["nats_per_text"]
        if nats is None:
            right.text(0, index, " none", va="center")
            continue
        right.barh(index, nats, color=color, xerr=own[0]["nats_error"] or None)
        right.text(nats, index, f" {nats:.1f}" + (f" ({nats / entropy:.2f}x)" if entropy else ""), va="center")
    left.set_xscale("log", base=2)
    left.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    title = f"{'valid' if quality == 'validity' else quality} texts, %"
    left.set(xlabel="calls of the predictor per text", ylim=(-4, 104), title=title)
    left.legend(loc="best")
    if entropy is not None:
        right.axvline(entropy, color="black", linewidth=1, linestyle="--")
    right.set(yticks=range(len(clocks)), yticklabels=clocks, xlabel="nats per text", title="what the texts cost")
    right.set_xlim(0, 1.35 * max((row["nats_per_text"] or 0 for row in rows), default=1) or 1)
    right.invert_yaxis()
    return figure


@matplotlib.rc_context(STYLE)
def plot_study(runs: Sequence[dict]) -> Figure:
    """Calls against valid texts of runs with a `name` and a `frontier`; what comes before the last hyphen of the name
    is the system, and has one colour. A line joins what differs in the number of steps alone; the method is
    written at its end.
    """
    figure, ax = make_figure(1, 1, (8, 4.6))
    systems = list(dict.fromkeys(run["name"].rpartition("-")[0] for run in runs))
    markers = {}
    for run in runs:
        system, _, budget = run["name"].rpartition("-")
        rows = sorted(run.get("frontier", ()), key=lambda row: row["calls"])
        marker = markers.setdefault(budget, "os^Dv*"[len(markers) % 6])
        color = COLORS[systems.index(system) % len(COLORS)]
        methods = {}
        for row in rows:
            method, _, options = row["sampling"].partition(":")
            methods.setdefault((method, options.partition(":")[2]), []).append((row["calls"], 100 * row["validity"]))
        for number, ((method, _), points) in enumerate(methods.items()):
            label = run["name"] if number == 0 else None
            ax.plot(*zip(*points), marker=marker, color=color, linewidth=0.8, label=label)
            ax.annotate(method, points[-1], (4, -10), textcoords="offset points", color=color, fontsize="x-small")
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set(xlabel="calls of the predictor per text", ylim=(-4, 104), title="valid texts, %")
    figure.legend(loc="outside right upper")
    return figure
