import json
from types import SimpleNamespace

import torch

from diffusers_text_nfdm.plots import training
from diffusers_text_nfdm.plots.training import plot_loss, save_plots


METRICS = [
    {"step": 0, "validation/bound": 90.0, "validation/diffusion": 80.0, "validation/reconstruction": 10.0},
    {"step": 5, "train/bound": 70.0, "train/diffusion": 70.0, "train/reconstruction": 0.0, "train/prior": 0.0},
    {"step": 5, "validation/bound": 60.0, "validation/diffusion": 59.0, "validation/reconstruction": 1.0,
     "validation/prior": 0.0},
]  # fmt: skip


def lines(axes):
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()}


def test_loss_curve_has_its_terms_and_the_entropy():
    whole, terms = plot_loss(METRICS, entropy=44.2).axes
    drawn = lines(whole)
    assert drawn["validation, averaged weights"] == ([0, 5], [90.0, 60.0])
    assert drawn["training batch"] == ([5], [70.0])
    assert drawn["entropy, 44.20 nats"][1] == [44.2, 44.2]
    assert lines(terms)["diffusion"] == ([0, 5], [80.0, 59.0])
    assert "prior" not in lines(terms), "a term that is always zero is left out"
    assert len(plot_loss(METRICS).axes[0].get_lines()) == 2


def test_validation_bounds_have_their_errors():
    errors = [{**METRICS[0], "validation/bound_error": 2.0}, METRICS[1], {**METRICS[2], "validation/bound_error": 0.5}]
    (bars,) = plot_loss(errors).axes[0].collections
    assert [bar.tolist() for bar in bars.get_segments()] == [[[0, 86], [0, 94]], [[5, 59], [5, 61]]]
    assert not plot_loss(METRICS).axes[0].collections


def test_losses_of_other_steps_have_a_panel_of_their_own():
    steps = [
        {"step": 3, "train/cross_entropy": 50.0},
        {"step": 4, "train/cross_entropy": 40.0, "train/next_token": 30.0},
    ]
    *_, losses = plot_loss(METRICS + steps).axes
    assert lines(losses) == {"cross entropy": ([3, 4], [50.0, 40.0]), "next token": ([4], [30.0])}
    assert [len(plot_loss(metrics).axes) for metrics in (METRICS + steps, METRICS, METRICS[1:2] + steps)] == [3, 2, 2]


def test_the_plots_of_a_run_have_the_entropy_of_its_texts(tmp_path, monkeypatch):
    """Of stories with a condition that is not the grammar's."""
    seen = []
    monkeypatch.setattr(training, "plot_loss", lambda metrics, entropy: seen.append(entropy) or plot_loss(metrics))
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in METRICS))
    rows = {"input_ids": torch.zeros(1, 2)}
    trainer = SimpleNamespace(
        run=tmp_path,
        released=None,
        arguments=SimpleNamespace(dataset="stories"),
        data=SimpleNamespace(validation_rows=lambda number: rows),
        family=SimpleNamespace(figures=lambda model, input_ids: {}),
    )
    assert save_plots(trainer, entropy=40.5) == [tmp_path / "plots" / "loss.png"]
    assert seen == [40.5]
