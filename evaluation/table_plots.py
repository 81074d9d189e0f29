"""The results as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from diffusers_text_nfdm.metrics.scoring import METRICS
from diffusers_text_nfdm.plots.style import STYLE


QUALITY = ("validity", "mauve", "perplexity", "diversity", "memorization")
LINES = {"MarkovChainScheduler": ("-", "star"), "ReverseSDEScheduler": ("--", "SDE"), "masked": (":", "masks")}


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
    """Nats per text of every model as bars, with the standard error over texts, and the truth as a line where it is
    known.
    """
    bars, entropy = [], None
    for model in results["models"]:
        for result in model["evaluations"].values():
            if result["likelihood"] is not None:
                bars.append((model["name"], result["likelihood"]["nats_per_story"]))
                entropy = result["entropy"]
    if not bars:
        return None
    figure = _figure((8, 0.5 * len(bars) + 1.6))
    axes = figure.subplots()
    names, values = [name for name, _ in bars], [story["value"] for _, story in bars]
    errors = [story["dataset_error"] or 0 for _, story in bars]
    axes.barh(names, values, xerr=errors, color="#4477aa", height=0.6)
    for place, value in enumerate(values):
        axes.annotate(f"{value:,.1f}", (value, place), xytext=(12, 0), textcoords="offset points", va="center")
    if entropy is not None:
        axes.axvline(entropy, color="#cc3311", linestyle="--", linewidth=1.4, label=f"the truth, {entropy:.2f}")
        axes.legend()
    # As published, some bounds are tens of times the others.
    axes.set_xscale("log")
    wide = max(values) > 50 * min(values)
    axes.xaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1,) if wide else (1, 2, 5)))
    axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    lowest = min([*values, *([] if entropy is None else [entropy])])
    axes.set_xlim(lowest / 2, max(values) * 3)
    axes.invert_yaxis()
    axes.set(xlabel="nats per text (log scale)", title="-log p(x) of held-out texts, or its bound")
    return figure


@matplotlib.rc_context(STYLE)
def plot_quality(results: dict) -> Figure | None:
    """Each score against the number of function evaluations: star (full lines) and SDE (dashed) of every model, the
    baseline, real texts.
    """
    models = results["models"]
    entries = [result for model in models for result in model["evaluations"].values()]
    metrics = [m for m in QUALITY if any(m in e["scores"] for r in entries for e in r["samplers"].values())]
    if not metrics:
        return None
    figure = _figure((6.4 * len(metrics), 4.6))
    panels = figure.subplots(1, len(metrics), squeeze=False)[0]
    colors = matplotlib.colormaps["tab10"].colors
    names = list(dict.fromkeys(name for model in models for name in model["evaluations"]))
    for axes, metric in zip(panels, metrics):
        for model, color in zip(models, colors):
            # A score depends on the number of samples: only points of one evaluation are joined, those of the others
            # are hollow.
            for name in names:
                first = name == names[0]
                shape = {"marker": "o", "markersize": 4, "markerfacecolor": color if first else "none", "color": color}
                for scheduler, (style, label) in LINES.items():
                    points = _points(model, name, scheduler, metric)
                    if points:
                        legend = f"{model['name']}, {label}" if first else None
                        axes.plot(*zip(*points), linestyle=style, label=legend, **shape)
            points = _points(model, names[0], None, metric)
            if points:
                axes.plot(*zip(*points), linestyle="", color="#222222", marker="*", markersize=11, label=model["name"])
        real = next((result["dataset_row"] for result in entries if metric in result["dataset_row"]), None)
        if real is not None:
            axes.axhline(real[metric]["mean"], color="#cc3311", linestyle=":", label="real texts")
        axes.set(xscale="log", xlabel="function evaluations", title=METRICS[metric])
        samplers = [entry for result in entries for entry in result["samplers"].values()]
        counts = sorted(
            {entry["function_evaluations"] for entry in samplers if entry["sampling"]["scheduler"] in LINES}
        )
        axes.set_xticks(counts, [f"{count:,}" for count in counts], rotation=60)
        axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    panels[-1].legend(fontsize=8, handlelength=3.5, loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure


def _points(model: dict, evaluation: str, scheduler: str | None, metric: str) -> Sequence[tuple[int, float]]:
    points = []
    for entry in model["evaluations"].get(evaluation, {"samplers": {}})["samplers"].values():
        sampling = entry["sampling"]
        if sampling["scheduler"] != scheduler or metric not in entry["scores"]:
            continue
        if scheduler == "MarkovChainScheduler" and sampling["config"].get("noise_fraction") != 1:
            continue
        points.append((entry["function_evaluations"], entry["scores"][metric]["mean"]))
    return sorted(points)


def _figure(size: tuple[float, float]) -> Figure:
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure
