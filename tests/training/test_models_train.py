"""All five models learn, and the recipes of the paper start at full size."""

import json
import resource

import pytest
import torch
from transformers import AutoModel

from diffusers_text_nfdm.training import recipe_names, train
from runs import arguments, finish, launch, metrics


# Those that predict Ê without the shortcut of z learn more in few steps.
DIRECT = {"stabilized_prediction": False}
RESCALED = {"rescaled_schedule": True, "gamma_min": -4.6, "gamma_max": 13.8, "objective": "rescaled"}
MODELS = {
    "nfdm": ("nfdm", DIRECT, {"learning_rate": 1e-2, "muon_learning_rate": 1e-2}),
    # Its time derivatives are large at the start, and unclipped gradients would stay in Adam's averages for long.
    "nfdm-additive": (
        "nfdm",
        {"time_conditioning": "additive", **DIRECT},
        {"learning_rate": 1e-2, "muon_learning_rate": 1e-2, "max_grad_norm": 0.1, "clip_after_steps": 0},
    ),
    "nfdm-head": (
        "nfdm",
        {"time_conditioning": "head", **DIRECT},
        {"learning_rate": 1e-2, "muon_learning_rate": 1e-2},
    ),
    "mulan": ("mulan", {}, {"learning_rate": 2e-2}),
    "mulan-rescaled": ("mulan", {**RESCALED, **DIRECT}, {"learning_rate": 2e-2}),
    "diffusion-lm": ("diffusion_lm", {}, {"learning_rate": 2e-2}),
}


FAST = ("nfdm", "diffusion-lm")


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_bound_falls_by_a_third(name, data, tmp_path):
    model_type, model_config, options = MODELS[name]
    settings = arguments(
        data,
        tmp_path / "run",
        model_type=model_type,
        model_config=model_config,
        max_steps=80,
        batch_size=32,
        adam_beta2=0.99,
        evaluate_every=80,
        evaluation_texts=40,
        evaluation_draws=26,
        checkpoint_every=80,
        log_every=20,
        num_samples=0,
        **options,
    )
    summary = train(settings)
    first, last = (entry["validation/bound"] for entry in metrics(tmp_path / "run") if "validation/bound" in entry)
    assert last < 0.7 * first
    assert summary["likelihood"]["nats_per_story"]["value"] < 0.8 * first


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("recipe", [name for name in recipe_names() if name.startswith("rocstories")])
def test_recipe_of_the_paper_starts_at_full_size(recipe, data, tmp_path):
    """One to seven minutes and up to 4.3 GB each on a busy core: Muon's matrices are those of BERT-base."""
    run = tmp_path / "run"
    options = f"--dataset {data}/train.jsonl --validation_file {data}/valid.jsonl --min_word_count 0 --max_steps 2 "
    options += "--batch_size 4 --evaluation_texts 4 --evaluation_draws 2 --num_samples 0 --final_samples 1 "
    options += "--sampling_steps 2 --log_every 1 --no-save_plots"
    finish(launch(recipe, "--output_dir", str(run), *options.split()), timeout=1400)
    assert (run / "checkpoint-00000002").is_dir()
    assert json.loads((run / "summary.json").read_text())["parameters"] > 80_000_000
    assert all(torch.isfinite(torch.tensor(entry["train/loss"])) for entry in metrics(run) if "train/loss" in entry)
    assert AutoModel.from_pretrained(run / "pipeline" / "model").config.hidden_size == 768
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 8e6
