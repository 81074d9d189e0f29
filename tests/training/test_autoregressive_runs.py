"""The trainer with the autoregressive baseline."""

import json
import math

import pytest
import torch
from transformers.pytorch_utils import Conv1D

from diffusers_text_nfdm import AutoregressivePipeline, exact_likelihood
from diffusers_text_nfdm.plots.training import plot_loss
from diffusers_text_nfdm.training import Trainer, TrainingArguments, train
from diffusers_text_nfdm.training.muon import Muon
from diffusers_text_nfdm.training.optimization import build_optimizers, trunk_matrices
from diffusers_text_nfdm.training.preparation import TrainingData, build_model
from runs import assert_close_weights, assert_same_run, averages, metrics, weights


SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24, "dropout": 0.0}


def arguments(data, output_dir, model_config=None, **overrides):
    """Eight steps of the baseline on the stories of the fixture `data`."""
    settings = {
        "model_type": "autoregressive",
        "model_config": {**SIZES, **(model_config or {})},
        "dataset": str(data / "train.jsonl"),
        "validation_file": str(data / "valid.jsonl"),
        "min_word_count": 0,
        "max_length": 24,
        "max_steps": 8,
        "batch_size": 8,
        "learning_rate": 2e-3,
        "use_muon": True,
        "warmup_steps": 2,
        "clip_after_steps": 3,
        "ema_decay": 0.9,
        "checkpoint_every": 4,
        "checkpoints_total_limit": None,
        "log_every": 1,
        "evaluate_every": 4,
        "evaluation_texts": 8,
        "num_samples": 1,
        "final_samples": 2,
        "save_plots": False,
        "output_dir": None if output_dir is None else str(output_dir),
    }
    return TrainingArguments(**{**settings, **overrides})


def test_a_run_writes_what_it_promises(data, tmp_path, capsys):
    run = tmp_path / "run"
    frontier = {"one by one": "ancestral:min_p=0.02"}
    options = {"frontier": frontier, "frontier_samples": 3, "cooccurrence_embeddings": True}
    summary = train(arguments(data, run, save_plots=True, **options))
    assert summary == json.loads((run / "summary.json").read_text())
    assert summary["model"] == "Autoregressive" and list(summary["likelihood"]["terms"]) == ["autoregressive"]
    assert {path.name for path in (run / "plots").iterdir()} == {"loss.png", "frontier.png"}
    assert [entry["step"] for entry in metrics(run) if "validation/bound" in entry] == [0, 4, 8]
    assert {"train/bound", "train/nats_per_token", "train/accuracy"} <= set(metrics(run)[1])
    pipeline = AutoregressivePipeline.from_pretrained(run / "pipeline")
    released = dict(pipeline.model.named_parameters())
    assert released.keys() == averages(run, 8).keys()
    assert all(torch.equal(released[name], average) for name, average in averages(run, 8).items())
    card = (run / "pipeline" / "README.md").read_text()
    assert "Exact -log p(x) on the validation texts" in card and "`batch_size`: 8" in card
    printed = capsys.readouterr().out
    assert "step 4: validation exact -log p(x)" in printed and "Exact -log p(x) on the validation texts" in printed
    (row,) = summary["frontier"]
    assert row["clock"] == "left to right" and 1 <= row["calls"] <= row["most_calls"] and "one by one" in printed
    # The likelihood that is told is that of the weights that are released.
    rows = TrainingData(arguments(data, None)).validation_rows(16)
    again = exact_likelihood(pipeline.model, **rows)
    assert again.nats_per_story.value == pytest.approx(summary["likelihood"]["nats_per_story"]["value"], rel=1e-6)


def test_a_likelihood_without_terms_is_drawn_in_one_panel():
    figure = plot_loss(
        [{"step": 0, "validation/bound": 9.0}, {"step": 5, "validation/bound": 6.0, "train/bound": 7.0}]
    )
    assert len(figure.axes) == 1 and [list(line.get_ydata()) for line in figure.axes[0].get_lines()] == [
        [7.0],
        [9.0, 6.0],
    ]


def test_resumed_equals_uninterrupted(data, tmp_path):
    options = {"model_config": {"dropout": 0.1}, "log_every": 2}
    train(arguments(data, tmp_path / "whole", **options))
    assert train(arguments(data, tmp_path / "parts", stop_after_steps=3, **options)) is None
    assert train(arguments(data, tmp_path / "parts", resume="latest", **options)) is not None
    assert_same_run(tmp_path / "whole", tmp_path / "parts", 8)


def test_accumulation_changes_nothing(data, tmp_path):
    for accumulation in (1, 4):
        train(arguments(data, tmp_path / str(accumulation), gradient_accumulation_steps=accumulation))
    one, four = tmp_path / "1", tmp_path / "4"
    for a, b in zip(metrics(one), metrics(four), strict=True):
        assert a.get("train/bound", 0) == pytest.approx(b.get("train/bound", 0), rel=1e-4)
    # The biases of attention's keys have no gradient but rounding: softmax does not see them.
    kept = [
        {name: value for name, value in weights(run, step).items() if "c_attn.bias" not in name}
        for run, step in ((one, 4), (four, 4), (one, 8))
    ]
    assert_close_weights(*kept, learning_rate=2e-3)


def test_it_learns(data, tmp_path):
    train(
        arguments(
            data,
            tmp_path / "run",
            max_steps=80,
            batch_size=32,
            learning_rate=1e-2,
            muon_learning_rate=1e-2,
            adam_beta2=0.99,
            evaluate_every=80,
            evaluation_texts=40,
            checkpoint_every=80,
        )
    )
    first, last = (e["validation/bound"] for e in metrics(tmp_path / "run") if "validation/bound" in e)
    assert last < 0.75 * first


@pytest.mark.parametrize(
    "options", [{"gradient_checkpointing": True}, {"mixed_precision": "bf16"}, {"streaming": True}]
)
def test_ways_to_train(options, data, tmp_path):
    train(arguments(data, tmp_path / "run", max_steps=3, **options))
    losses = [entry["train/loss"] for entry in metrics(tmp_path / "run") if "train/loss" in entry]
    assert len(losses) == 3 and all(map(math.isfinite, losses))


def test_a_loss_that_is_not_finite_stops_the_run(data, tmp_path):
    trainer = Trainer(arguments(data, tmp_path / "run"))
    with torch.no_grad():
        trainer.model.token_bias[7] = float("nan")
    with pytest.raises(FloatingPointError, match=r"at step 0: -log p\(x\) is nan"):
        trainer.train()


def test_muon_trains_the_trunk_and_knows_how_gpt2_stores_matrices(data):
    settings = arguments(data, None)
    model = build_model(settings, TrainingData(settings))
    names = set(trunk_matrices(model))
    blocks = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    assert names == {f"predictor.h.0.{name}.weight" for name in blocks}
    adam, muon = build_optimizers(model, settings)
    assert isinstance(muon, Muon) and [group["transposed"] for group in muon.param_groups] == [True]
    assert sum(len(group["params"]) for group in adam.param_groups) == len(list(model.parameters())) - 4
    # One step on a Conv1D is the transpose of one on a Linear of the same map.
    gradient = torch.randn(6, 4)
    moved = []
    for module, value in ((Conv1D(6, 4), gradient.T), (torch.nn.Linear(4, 6), gradient)):
        with torch.no_grad():
            module.weight.zero_()
        module.weight.grad = value.contiguous().clone()
        group = {"params": [module.weight], "transposed": isinstance(module, Conv1D)}
        Muon([group], lr=0.1, weight_decay=0.0).step()
        moved.append(module.weight.detach())
    assert torch.allclose(moved[0].T, moved[1], atol=1e-6) and moved[1].abs().max() > 1e-3


@pytest.mark.parametrize(
    "options",
    [{"cross_entropy_steps": 3}, {"context_warmup_steps": 10}, {"scheduler_config": {"noise_fraction": 0.5}}],
)
def test_settings_of_diffusion_models_are_refused(options, data):
    with pytest.raises(ValueError, match=f"`{next(iter(options))}` is .* for diffusion models"):
        arguments(data, None, **options)


def test_unknown_fields_are_refused(data):
    with pytest.raises(ValueError, match="'embedding_dim', which AutoregressiveConfig does not have"):
        arguments(data, None, model_config={"embedding_dim": 8})
