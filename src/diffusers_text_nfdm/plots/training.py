"""Pictures of a training run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
from matplotlib.figure import Figure

from ..models import TERMS
from .frontier import plot_frontier
from .style import STYLE, log_scale, make_figure


if TYPE_CHECKING:
    from ..training import Trainer


COLORS = {"diffusion": "#4477aa", "reconstruction": "#228833", "prior": "#ccbb44", "context": "#aa3377"}
# What steps are on besides the bound.
LOSSES = {"cross_entropy": "#ee7733", "next_token": "#0077bb", "jump": "#009988"}
NUM_TEXTS = 32


def save_plots(trainer: Trainer, frontier: Sequence[dict] = (), entropy: float | None = None) -> list[Path]:
    """Draw all figures of a finished run into its folder `plots`. The models are those of the averaged weights.

    Args:
        frontier: the rows of `measure_frontier`.
        entropy: that of the texts, given their conditions, where it is known.
    """
    folder = trainer.run / "plots"
    folder.mkdir(exist_ok=True)
    model, input_ids = trainer.released, trainer.data.validation_rows(NUM_TEXTS)["input_ids"].long()
    figures = {"loss": plot_loss(read_metrics(trainer.run), entropy), **trainer.family.figures(model, input_ids)}
    if frontier:
        figures["frontier"] = plot_frontier(frontier, entropy)
    paths = []
    for name, figure in figures.items():
        paths.append(folder / f"{name}.png")
        figure.savefig(paths[-1], dpi=150)
    return paths


def read_metrics(run: str | Path) -> list[dict[str, float]]:
    """The entries of a run's metrics.jsonl, in order."""
    lines = (Path(run) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@matplotlib.rc_context(STYLE)
def plot_loss(metrics: Iterable[dict[str, float]], entropy: float | None = None) -> Figure:
    """The bound over the steps, its terms where it has several, and the other losses of the training steps where there
    are some, in nats per text: of the training batches (pale) and of the validation texts, with twice their standard
    error.

    Args:
        metrics: entries of metrics.jsonl.
        entropy: the entropy of the texts where it is known, below which no bound can stay. Drawn as a line.
    """
    metrics = list(metrics)

    def draw(axes, key: str, **style) -> None:
        points = [(entry["step"], entry[key]) for entry in metrics if entry.get(key) is not None]
        if points:
            axes.plot(*zip(*points), **style)

    named = [name for name in TERMS if any(entry.get(f"validation/{name}") for entry in metrics)]
    losses = [name for name in LOSSES if any(entry.get(f"train/{name}") for entry in metrics)]
    number = 1 + bool(named) + bool(losses)
    figure, panels = make_figure(1, number, (1 + 5 * number + 0.5 * (number == 1), 4.2))
    whole, *others = panels if number > 1 else [panels]
    draw(whole, "train/bound", color="#bbbbbb", linewidth=0.8, label="training batch")
    draw(whole, "validation/bound", color="#222222", marker="o", markersize=3, label="validation, averaged weights")
    errors = [
        (entry["step"], entry["validation/bound"], 2 * entry["validation/bound_error"])
        for entry in metrics
        if entry.get("validation/bound_error")
    ]
    if errors:
        steps, low, high = zip(*((step, bound - error, bound + error) for step, bound, error in errors))
        whole.vlines(steps, low, high, color="#222222", linewidth=1)
    if entropy is not None:
        whole.axhline(entropy, color="#cc3311", linestyle="--", linewidth=1.2, label=f"entropy, {entropy:.2f} nats")
    whole.set(xlabel="step", ylabel="nats per text", title="Bound on −log p(x)")
    log_scale(whole)
    # A batch may see next to nothing move, along a steep clock.
    validated = [entry["validation/bound"] for entry in metrics if entry.get("validation/bound")]
    if validated:
        whole.set_ylim(bottom=0.8 * min([*validated, *([] if entropy is None else [entropy])]))
    whole.legend()
    if losses:
        trained = others.pop()
        for name in losses:
            draw(trained, f"train/{name}", color=LOSSES[name], linewidth=1, label=name.replace("_", " "))
        trained.set(xlabel="step", ylabel="nats per text", title="Other losses of the training batches")
        log_scale(trained)
        trained.legend()
    if not named:
        return figure
    (terms,) = others
    for name in named:
        draw(terms, f"train/{name}", color=COLORS[name], linewidth=0.6, alpha=0.35)
        draw(terms, f"validation/{name}", color=COLORS[name], marker="o", markersize=3, label=name)
    terms.set(xlabel="step", ylabel="nats per text", title="Its terms")
    # Terms may be zero, but those that matter span orders of magnitude.
    terms.set_yscale("symlog", linthresh=1)
    terms.set_ylim(bottom=0)
    terms.legend()
    terms.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    return figure
