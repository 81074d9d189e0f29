"""The results as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from diffusers_text_nfdm.metrics.scoring import METRICS
from diffusers_text_nfdm.plots.style import STYLE, make_figure


QUALITY = ("validity", "mauve", "perplexity", "diversity", "memorization")
# Name, colour and place in a model's row of what is shown; the scheduler of an autoregressive model is `None`.
KINDS = {
    "MarkovChainScheduler": ("star", "#4477aa", -0.12),
    "ReverseSDEScheduler": ("SDE", "#ee7733", 0.12),
    "DraftVerifyScheduler": ("drafts", "#aa3377", 0.12),
    "masked": ("masks", "#228833", 0.0),
    None: ("token by token", "#222222", 0.0),
}
MARKERS = "os^Dv<>PX"


def save_plots(results: dict, folder: Path) -> list[Path]:
    """Draw `likelihood.png` and `quality.png`."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in (("likelihood", plot_likelihood(results)), ("quality", plot_quality(results))):
        if figure is not None:
            paths.append(folder / f"{name}.png")
            figure.savefig(paths[-1], dpi=150)
    return paths


@matplotlib.rc_context(STYLE)
def plot_likelihood(results: dict) -> Figure | None:
    """Nats per text of every model as a point, with the standard error over texts, and the truth as a line where it is
    known.
    """
    rows, entropy = [], None
    for model in results["models"]:
        for result in model["evaluations"].values():
            if result["likelihood"] is not None:
                rows.append((model["name"], result["likelihood"]["nats_per_story"]))
                entropy = result["entropy"]
    if not rows:
        return None
    figure, axes = make_figure(1, 1, (8, 0.45 * len(rows) + 1.6))
    names, values = [name for name, _ in rows], [story["value"] for _, story in rows]
    errors = [story["dataset_error"] or 0 for _, story in rows]
    # Points, not bars: on a log scale, which has no zero, the length of a bar would say nothing.
    axes.errorbar(values, names, xerr=errors, fmt="o", color="#4477aa", capsize=3)
    for place, value in enumerate(values):
        axes.annotate(f"{value:,.1f}", (value, place), xytext=(12, 0), textcoords="offset points", va="center")
    if entropy is not None:
        axes.axvline(entropy, color="#cc3311", linestyle="--", linewidth=1.4, label=f"the truth, {entropy:.2f}")
        axes.legend()
    # As published, some bounds are tens of times the others.
    _log_scale(axes, values)
    lowest = min([*values, *([] if entropy is None else [entropy])])
    axes.set_xlim(lowest / 1.5, max(values) * 3)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set(xlabel="nats per text (log scale)", title="-log p(x) of held-out texts, or its bound")
    return figure


@matplotlib.rc_context(STYLE)
def plot_quality(results: dict) -> Figure | None:
    """A row for every model and a panel for every score: star, SDE, drafts, masks and baselines by colour, the most
    function evaluations by marker, real texts as a line. Points of other than the first evaluation, which has another
    number of samples, are hollow. Samplings of a model that look the same have numbers.
    """
    models = results["models"]
    entries = [result for model in models for result in model["evaluations"].values()]
    metrics = [m for m in QUALITY if any(m in e["scores"] for r in entries for e in r["samplers"].values())]
    if not metrics:
        return None
    figure, panels = make_figure(1, len(metrics), (1.6 + 3.6 * len(metrics), 0.5 * len(models) + 1.8), sharey=True)
    panels = [panels] if len(metrics) == 1 else panels
    evaluations = list(dict.fromkeys(name for model in models for name in model["evaluations"]))
    found = [
        (row, kind, calls, metric, score, sampling, name == evaluations[0])
        for row, model in enumerate(models)
        for name in evaluations
        for kind in KINDS
        for metric in metrics
        for calls, score, sampling in _points(model, name, kind, metric)
    ]
    # A baseline takes as many calls as its longest text has tokens.
    look = {(row, sampling): (row, kind, kind and calls, first) for row, kind, calls, _, _, sampling, first in found}
    alike = [sampling for (_, sampling), one in look.items() if list(look.values()).count(one) > 1]
    numbers = {sampling: number for number, sampling in enumerate(dict.fromkeys(alike), 1)}
    counts = sorted({calls for _, kind, calls, *_ in found if kind is not None})
    markers = {calls: MARKERS[index % len(MARKERS)] for index, calls in enumerate(counts)}
    for axes, metric in zip(panels, metrics):
        real = next((result["dataset_row"] for result in entries if metric in result["dataset_row"]), None)
        if real is not None:
            axes.axvline(real[metric]["mean"], color="#cc3311", linestyle=":")
        for row, kind, calls, shown, score, sampling, first in found:
            if shown == metric:
                _, color, offset = KINDS[kind]
                marker, face = "*" if kind is None else markers[calls], color if first else "none"
                axes.plot(score, row + offset, marker, color=color, markerfacecolor=face)
                if sampling in numbers:
                    place = {"xytext": (0, 5), "textcoords": "offset points", "ha": "center", "fontsize": 7}
                    axes.annotate(f"{numbers[sampling]}", (score, row + offset), color=color, **place)
        axes.set(title=METRICS[metric])
        if metric == "perplexity":
            # Of texts that no reader understands it is a hundred times that of real ones.
            _log_scale(axes, [score for *_, shown, score, _, _ in found if shown == metric])
    panels[0].set_yticks(range(len(models)), [model["name"] for model in models])
    panels[0].set_ylim(len(models) - 0.5, -0.5)
    shown = [KINDS[kind] for kind in KINDS if any(kind == one for _, one, *_ in found)]
    labels = [("*" if name == KINDS[None][0] else "s", color, name) for name, color, _ in shown]
    labels += [(markers[calls], "#888888", f"{calls:,} calls") for calls in counts]
    handles = [Line2D([], [], linestyle="", marker=m, color=color, label=label) for m, color, label in labels]
    handles.append(Line2D([], [], linestyle=":", color="#cc3311", label="real texts"))
    # Wide enough for the longest entry.
    columns = int(figure.get_figwidth() / 1.5)
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), columns))
    if numbers:
        names = [f"{number}: {name}" for name, number in numbers.items()]
        # A line has an entry for each panel.
        lines = [names[start : start + len(metrics)] for start in range(0, len(names), len(metrics))]
        figure.suptitle("\n".join("     ".join(line) for line in lines), fontsize=9)
    return figure


def _log_scale(axes: Axes, values: Sequence[float]) -> None:
    axes.set_xscale("log")
    wide = max(values) > 50 * min(values)
    axes.xaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1,) if wide else (1, 2, 5)))
    axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())


def _points(model: dict, evaluation: str, scheduler: str | None, metric: str) -> Sequence[tuple[int, float, str]]:
    """Most calls, score and name of every sampling by a scheduler."""
    points = []
    for name, entry in model["evaluations"].get(evaluation, {"samplers": {}})["samplers"].items():
        sampling = entry["sampling"]
        if sampling["scheduler"] != scheduler or metric not in entry["scores"]:
            continue
        if scheduler == "MarkovChainScheduler" and sampling["config"].get("noise_fraction") != 1:
            continue
        points.append((entry["function_evaluations"], entry["scores"][metric]["mean"], name))
    return points
