"""The trainer with masked diffusion."""

import json
import math

import pytest
import torch

from diffusers_text_nfdm import MaskedDiffusionPipeline, masked_likelihood
from diffusers_text_nfdm.baseline import count_parameters
from diffusers_text_nfdm.training import Trainer, TrainingArguments, train
from diffusers_text_nfdm.training.arguments import CONFIGS
from diffusers_text_nfdm.training.families import MaskedFamily
from diffusers_text_nfdm.training.optimization import trunk_matrices
from diffusers_text_nfdm.training.preparation import TrainingData, build_model
from runs import assert_close_weights, assert_same_run, averages, metrics, weights


SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
CLOCKS = {"shared": 0.5, "blocks:8": 0.5}


def arguments(data, output_dir, model_config=None, **overrides):
    """Eight steps of masked diffusion on the stories of the fixture `data`."""
    settings = {
        "model_type": "masked",
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
        "evaluation_draws": 2,
        "num_samples": 1,
        "final_samples": 2,
        "sampling_steps": 4,
        "save_plots": False,
        "output_dir": None if output_dir is None else str(output_dir),
    }
    return TrainingArguments(**{**settings, **overrides})


def test_a_run_writes_what_it_promises(data, tmp_path, capsys):
    run = tmp_path / "run"
    frontier = {"few": "masked:4", "blocks": "masked:6:block_size=8:remasking=random:min_p=0.01"}
    options = {
        "clocks": CLOCKS,
        "cross_entropy_steps": 1,
        "growth_steps": 4,
        "next_token_weight": 1.0,
        "next_token_steps": 2,
    }
    summary = train(arguments(data, run, save_plots=True, frontier=frontier, frontier_samples=3, **options))
    assert summary == json.loads((run / "summary.json").read_text())
    assert summary["model"] == "Masked diffusion" and list(summary["likelihood"]["terms"]) == ["masked"]
    assert summary["likelihood"]["nats_per_story"]["monte_carlo_error"] > 0
    rows = {row["name"]: row for row in summary["frontier"]}
    assert rows["few"]["calls"] == 4 and rows["few"]["clock"] == "masks, whole text"
    assert rows["blocks"]["calls"] == 6 and rows["blocks"]["clock"] == "masks in blocks of 8"
    assert rows["few"]["nats_per_text"] != rows["blocks"]["nats_per_text"]
    assert {path.name for path in (run / "plots").iterdir()} == {"loss.png", "frontier.png"}
    steps = [entry for entry in metrics(run) if "train/loss" in entry]
    assert all("train/cross_entropy" not in entry for entry in steps[:2]) and "train/next_token" in steps[0]
    # Without weights and with few hidden tokens there is no bound to show.
    assert "train/bound" not in steps[2] and {"train/bound", "train/accuracy"} <= set(steps[3])
    pipeline = MaskedDiffusionPipeline.from_pretrained(run / "pipeline")
    released = dict(pipeline.model.named_parameters())
    assert released.keys() == averages(run, 8).keys()
    assert all(torch.equal(released[name], average) for name, average in averages(run, 8).items())
    assert pipeline.model.config.trained_block_sizes == [None, 8]
    assert "step 4: validation bound" in capsys.readouterr().out
    # The bound that is told is that of the weights that are released.
    again = masked_likelihood(pipeline.model, **TrainingData(arguments(data, None)).validation_rows(16), num_draws=4)
    assert again.nats_per_story.value == pytest.approx(summary["likelihood"]["nats_per_story"]["value"], rel=1e-6)


def test_resumed_equals_uninterrupted(data, tmp_path):
    options = {"model_config": {"hidden_dropout_prob": 0.1}, "log_every": 2, "clocks": CLOCKS}
    train(arguments(data, tmp_path / "whole", **options))
    assert train(arguments(data, tmp_path / "parts", stop_after_steps=3, **options)) is None
    assert train(arguments(data, tmp_path / "parts", resume="latest", **options)) is not None
    assert_same_run(tmp_path / "whole", tmp_path / "parts", 8)


@pytest.mark.parametrize("cross_entropy_steps", [0, 100])
def test_accumulation_changes_nothing(cross_entropy_steps, data, tmp_path):
    options = {"cross_entropy_steps": cross_entropy_steps, "growth_steps": 6 * bool(cross_entropy_steps)}
    for accumulation in (1, 4):
        run = tmp_path / str(accumulation)
        train(arguments(data, run, gradient_accumulation_steps=accumulation, **options))
    one, four = tmp_path / "1", tmp_path / "4"
    assert_close_weights(weights(one, 4), weights(four, 4), weights(one, 8), learning_rate=2e-3)


def test_it_learns(data, tmp_path):
    train(
        arguments(
            data,
            tmp_path / "run",
            max_steps=240,
            batch_size=32,
            learning_rate=1e-2,
            muon_learning_rate=1e-2,
            adam_beta2=0.99,
            evaluate_every=240,
            evaluation_texts=40,
            checkpoint_every=240,
            cross_entropy_steps=3,
        )
    )
    first, last = (e["validation/bound"] for e in metrics(tmp_path / "run") if "validation/bound" in e)
    assert last < 0.8 * first


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_checkpointing": True},
        {"mixed_precision": "bf16"},
        {"streaming": True},
        {"cooccurrence_embeddings": True, "model_config": {"block_size": 8}},
    ],
)
def test_ways_to_train(options, data, tmp_path):
    train(arguments(data, tmp_path / "run", max_steps=3, **options))
    losses = [entry["train/loss"] for entry in metrics(tmp_path / "run") if "train/loss" in entry]
    assert len(losses) == 3 and all(map(math.isfinite, losses))


def test_a_loss_that_is_not_finite_stops_the_run(data, tmp_path):
    trainer = Trainer(arguments(data, tmp_path / "run", num_samples=0))
    with torch.no_grad():
        trainer.model.token_bias[7] = float("nan")
    with pytest.raises(FloatingPointError, match="at step 0: bound is nan"):
        trainer.train()


def test_the_share_of_hidden_tokens_grows_in_steps_without_weights(data):
    settings = arguments(
        data, None, cross_entropy_steps=3, growth_steps=10, next_token_weight=0.5, next_token_steps=2, clocks=CLOCKS
    )
    family, model = MaskedFamily(settings), build_model(settings, TrainingData(settings))
    options = [family.forward_options(model, step, torch.Generator().manual_seed(step))(0, 4) for step in range(16)]
    assert options[0] == options[1] == {"next_token_weight": 1.0, "next_token_only": True}
    for step, one in list(enumerate(options))[2:]:
        assert one["weighted"] == (step % 4 == 3) and len(one["draws"].order) == 4
        expected = 1.0 if one["weighted"] else min(1.0, 0.2 + 0.8 * (step - 2) / 10)
        assert one["largest_share"] == pytest.approx(expected)
        assert one["next_token_weight"] == (0.5 if one["block_size"] == 8 else 0.0)
    assert {one["block_size"] for one in options[2:]} == {8, 24}


def test_muon_trains_the_trunk(data):
    settings = arguments(data, None)
    names = set(trunk_matrices(build_model(settings, TrainingData(settings))))
    layers = ("query_key_value", "attention_output", "mlp_input", "mlp_output")
    assert names == {f"predictor.layers.0.{name}.weight" for name in layers}


def test_the_recipe_has_the_trunk_the_optimizers_and_the_budget_of_ours():
    masked, ours = (TrainingArguments.from_config(name) for name in ("stories-masked", "stories-tiny"))
    same = (
        "dataset batch_size max_length learning_rate adam_beta2 use_muon muon_learning_rate warmup_steps "
        "max_grad_norm clip_after_steps ema_decay next_token_weight cross_entropy_steps mixed_precision"
    ).split()
    assert {name: getattr(masked, name) for name in same} == {name: getattr(ours, name) for name in same}
    # A step of ours takes 1.4 times as long.
    for name in ("max_steps", "decay_steps"):
        assert getattr(masked, name) / getattr(ours, name) == pytest.approx(1.4, rel=0.02)
    trunk = (
        "hidden_size num_hidden_layers num_attention_heads hidden_act hidden_dropout_prob attention_probs_dropout_prob"
    ).split()
    assert all(masked.model_config[name] == ours.model_config[name] for name in trunk)
    sizes = (
        count_parameters(CONFIGS[kind](vocab_size=494, max_length=64, **settings.model_config))
        for kind, settings in (("masked", masked), ("nfdm", ours))
    )
    assert next(sizes) == pytest.approx(next(sizes), rel=0.01)


@pytest.mark.parametrize(
    "options", [{"known_texts": {"span": 0.5}}, {"context_warmup_steps": 10}, {"forward_learning_rate": 1e-3}]
)
def test_settings_of_diffusion_models_are_refused(options, data):
    with pytest.raises(ValueError, match=f"`{next(iter(options))}` is .* for diffusion models; .* 'masked'"):
        arguments(data, None, **options)


def test_fewer_steps_than_blocks_are_refused(data):
    with pytest.raises(ValueError, match="`sampling_steps` is 4; in blocks texts take at least 6"):
        arguments(data, None, model_config={"block_size": 4})


def test_unknown_fields_are_refused(data):
    with pytest.raises(ValueError, match="'embedding_dim', which MaskedDiffusionConfig does not have"):
        arguments(data, None, model_config={"embedding_dim": 8})
