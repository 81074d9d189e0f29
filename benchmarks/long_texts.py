"""Time and memory per token of the two-stream model, against length, batch, vocabulary and clock."""

from __future__ import annotations

import math
from collections.abc import Callable

import matplotlib
import torch
from matplotlib.figure import Figure
from memory import peak_bytes
from timing import interleaved, medians

from diffusers_text_nfdm import MarkovChainScheduler, NFDMConfig, NFDMModel, NFDMTextPipeline
from diffusers_text_nfdm.plots.frontier import COLORS
from diffusers_text_nfdm.plots.style import STYLE, log_scale, make_figure


CLOCKS = ("ramp:8", "shared")
# Where an axis is not varied.
USUAL = {"length": 256, "batch": 2, "vocabulary": 8192}
AXES = {"length": [64, 256, 512, 1024], "batch": [1, 2, 8], "vocabulary": [1024, 8192, 32_768]}
QUICK_USUAL = {"length": 16, "batch": 1, "vocabulary": 50}
QUICK_AXES = {"length": [16, 32], "batch": [1, 2], "vocabulary": [50, 100]}
NUM_CALLS = 16
# The model of the recipe stories-tiny.
MODEL = {
    "embedding_dim": 32,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "hidden_act": "relu2",
    "forward_hidden_size": 64,
    "forward_num_layers": 2,
    "forward_num_heads": 2,
    "forward_intermediate_size": 128,
    "forward_time_dim": 64,
    "predictor": "two_stream",
    "prediction_type": "categorical",
    "decoder": "gaussian",
    "embedding_sphere": True,
    "self_conditioning": True,
    "volatility": "markovian",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
WORK = {"step": "training step", "call": "sampling call"}


def measure(axes: dict[str, list[int]], usual: dict[str, int], repeats: int) -> list[dict]:
    """For each axis, value and clock the CPU milliseconds and the peak of kilobytes, weights and gradients left out,
    per token of the texts: of a training step on the bound, and of one of `NUM_CALLS` calls of star sampling.
    """
    rows, known = [], {}
    for axis, values in axes.items():
        for value in values:
            sizes = {**usual, axis: value}
            key = tuple(sizes.values())
            if key not in known:
                known[key] = _costs(**sizes, repeats=repeats)
            rows += [{"axis": axis, "value": value, "clock": clock, **known[key][clock]} for clock in CLOCKS]
    return rows


def _costs(length: int, batch: int, vocabulary: int, repeats: int) -> dict[str, dict[str, float]]:
    torch.manual_seed(0)
    model = NFDMModel(NFDMConfig(**MODEL, max_length=length, vocab_size=vocabulary))
    input_ids, draws = torch.randint(vocabulary, (batch, length)), model.draw(batch)
    pipe = NFDMTextPipeline(model, None, MarkovChainScheduler(time_grid="learned"))
    pipe.set_progress_bar_config(disable=True)
    costs = {}
    for clock in CLOCKS:

        def step(clock=clock) -> None:
            model(input_ids, clock=clock, draws=draws).loss.backward()

        def sample(clock=clock) -> None:
            pipe(num_samples=batch, num_inference_steps=NUM_CALLS, clock=clock, output_type="latent")

        step()  # From now on the gradients are there.
        works: dict[str, tuple[Callable[[], None], int]] = {"step": (step, 1), "call": (sample, NUM_CALLS)}
        costs[clock] = {}
        for name, (work, calls) in works.items():
            turns = repeats if calls == 1 else 1
            seconds = medians(interleaved({name: work}, turns, warm_up=False))[name]
            costs[clock][f"{name} ms"] = 1e3 * seconds / calls / input_ids.numel()
            costs[clock][f"{name} kB"] = peak_bytes(work) / 1e3 / input_ids.numel()
    return costs


def growth(rows: list[dict], clock: str, name: str) -> float:
    """Slope of the log of the whole peak against the log of the length, over all lengths (least squares)."""
    points = [row for row in rows if (row["axis"], row["clock"]) == ("length", clock)]
    x = torch.tensor([math.log(row["value"]) for row in points])
    y = torch.tensor([math.log(row["value"] * row[f"{name} kB"]) for row in points])
    return ((x - x.mean()) @ (y - y.mean()) / (x - x.mean()).square().sum()).item()


@matplotlib.rc_context(STYLE)
def plot(rows: list[dict]) -> Figure:
    """Time above and memory below, over each axis: one colour for each clock, dashed for sampling."""
    axes = list(dict.fromkeys(row["axis"] for row in rows))
    figure, panels = make_figure(2, len(axes), (3.2 * len(axes), 5.6), sharey="row", sharex="col")
    for column, axis in enumerate(axes):
        for ax, unit in zip(panels[:, column], ("ms", "kB")):
            for color, clock in zip(COLORS, CLOCKS):
                own = [row for row in rows if (row["axis"], row["clock"]) == (axis, clock)]
                for (name, label), line in zip(WORK.items(), ("-", "--")):
                    x, y = zip(*((row["value"], row[f"{name} {unit}"]) for row in own))
                    ax.plot(x, y, line, color=color, marker="o", markersize=4, label=f"{label}, {clock}")
            log_scale(ax)
            ax.set_xscale("log", base=2)
            ax.set_xticks(x, [f"{value:,}" for value in x])
            ax.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
        panels[1, column].set_xlabel(axis)
    panels[0, 0].set_title("CPU milliseconds per token")
    panels[1, 0].set_title("peak, kilobytes per token")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure
