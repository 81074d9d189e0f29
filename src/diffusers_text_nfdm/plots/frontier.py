"""Calls of the predictor against what the texts are worth."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .style import STYLE, make_figure


COLORS = ("#4477aa", "#228833", "#aa3377", "#ccbb44", "#66ccee", "#ee6677", "#bbbbbb")


@matplotlib.rc_context(STYLE)
def plot_frontier(rows: Sequence[dict], entropy: float | None = None) -> Figure:
    """Rows of `measure_frontier`: the share of valid texts, or of distinct ones where validity is not known, over the
    mean number of calls, and the nats of what the texts are draws of.

    A line joins what differs in the number of steps alone.
    """
    figure, (left, right) = make_figure(1, 2, (10, 3.8))
    quality = "validity" if all("validity" in row for row in rows) else "distinct"
    draws_of: list[str] = []
    for index, (method, own) in enumerate(_by_method(rows).items()):
        color = COLORS[index % len(COLORS)]
        label = os.path.commonprefix([row["name"] for row in own]).rstrip(" ,") or method[0]
        points = [(row["calls"], 100 * row[quality]) for row in own]
        left.plot(*zip(*points), "o-", color=color, label=label)
        for row in own:
            # One bar for all rows that are draws of the same.
            if row["clock"] in draws_of:
                continue
            place, nats, error = len(draws_of), row["nats_per_text"], row["nats_error"] or 0
            draws_of.append(row["clock"])
            if nats is None:
                right.text(0, place, " none", va="center")
                continue
            right.barh(place, nats, color=color, xerr=error or None)
            ratio = f" ({nats / entropy:.2f}x)" if entropy else ""
            right.text(nats + error, place, f" {nats:.1f}{ratio}", va="center")
    left.set_xscale("log", base=2)
    left.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    title = f"{'valid' if quality == 'validity' else quality} texts, %"
    left.set(xlabel="calls of the predictor per text", ylim=(-4, 104), title=title)
    left.legend(loc="best")
    if entropy is not None:
        right.axvline(entropy, color="black", linewidth=1, linestyle="--")
    right.set(yticks=range(len(draws_of)), yticklabels=draws_of, xlabel="nats per text", title="what the texts cost")
    right.set_xlim(0, 1.4 * max((row["nats_per_text"] or 0 for row in rows), default=1) or 1)
    right.invert_yaxis()
    return figure


@matplotlib.rc_context(STYLE)
def plot_study(runs: Sequence[dict], frontier_of: Collection[str]) -> Figure:
    """Runs of a study, `name`, `frontier`, `entropy` and `likelihood` each: calls against valid texts of some of them,
    and nats over the truth of all, those of several seeds (`name-seed-1`) in one row.

    A line joins what differs in the number of steps alone.
    """
    figure, (left, right) = make_figure(1, 2, (10, 4.6))
    shown = [run for run in runs if run["name"] in frontier_of]
    colors = {run["name"]: COLORS[index % len(COLORS)] for index, run in enumerate(shown)}
    markers: dict[str, str] = {}
    for run in shown:
        for (method, _), rows in _by_method(run.get("frontier", ())).items():
            points = [(row["calls"], 100 * row["validity"]) for row in rows]
            marker = markers.setdefault(method, "osD^v*P"[len(markers) % 7])
            left.plot(*zip(*points), marker=marker, color=colors[run["name"]], linewidth=0.8)
    handles = [Line2D([], [], color=color, label=name) for name, color in colors.items()]
    handles += [Line2D([], [], color="#555555", ls="", marker=marker, label=name) for name, marker in markers.items()]
    left.set_xscale("log", base=2)
    left.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    left.set(xlabel="calls of the predictor per text", ylim=(-4, 104), title="valid texts, %")
    left.legend(handles=handles, loc="best", fontsize="small")

    names = list(dict.fromkeys(run["name"].partition("-seed-")[0] for run in runs))
    for run in runs:
        nats = run["likelihood"]["nats_per_story"]
        value, error = (nats[key] / run["entropy"] for key in ("value", "monte_carlo_error"))
        row = names.index(run["name"].partition("-seed-")[0])
        color = colors.get(run["name"], "#555555")
        right.errorbar(value, row, xerr=error, marker="o", color=color, capsize=2)
    right.axvline(1, color="black", linewidth=1, linestyle="--")
    right.set(yticks=range(len(names)), yticklabels=names, xlabel="nats, times the truth", title="what texts cost")
    right.invert_yaxis()
    return figure


def _by_method(rows: Sequence[dict]) -> dict[tuple[str, str], list[dict]]:
    """Rows of a frontier by their method and its options but for the number of steps, those of few calls first."""
    methods: dict[tuple[str, str], list[dict]] = {}
    for row in sorted(rows, key=lambda row: row["calls"]):
        method, _, options = row["sampling"].partition(":")
        methods.setdefault((method, options.partition(":")[2]), []).append(row)
    return methods
