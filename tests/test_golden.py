"""Values of an earlier implementation, which knew one time per text: with equal times in a row nothing has changed.

`golden.json` holds the loss, every term and one step of every scheduler of all models, in float64, at fixed draws.
"""

import json
from pathlib import Path

import pytest
import torch
from tiny import CONTEXT, DIM, LENGTH, MODELS, PREDICTION_TYPES, VARIANCE_PRESERVING, VOCAB, make_model, seeded

from diffusers_text_nfdm import MarkovChainScheduler, ReverseODEScheduler, ReverseSDEScheduler
from diffusers_text_nfdm.models import Draws


GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())
BATCH = 3
SCHEDULERS = {
    "star": lambda: MarkovChainScheduler(1.0),
    "chain": lambda: MarkovChainScheduler(0.5),
    "deterministic": lambda: MarkovChainScheduler(0.0),
    "ancestral": lambda: MarkovChainScheduler("snr"),
    "sde": lambda: ReverseSDEScheduler(),
    "euler": lambda: ReverseODEScheduler("euler"),
    "heun": lambda: ReverseODEScheduler("heun"),
    "adaptive": lambda: ReverseODEScheduler("adaptive", start_time=1.0),
}
STAGES = {"heun": 2, "adaptive": 4}
# NFDM has no signal-to-noise ratio, which the ancestral posterior needs.
STEPS = [
    (name, scheduler)
    for name in MODELS
    for scheduler in SCHEDULERS
    if scheduler != "ancestral" or name in VARIANCE_PRESERVING
]


def normal(*shape, seed):
    return torch.randn(*shape, dtype=torch.float64, generator=seeded(seed))


def context_of(name):
    return normal(BATCH, CONTEXT, seed=3) if name.startswith("mulan") else None


def golden_draws(name):
    uniforms = torch.tensor([0.15, 0.5, 0.95], dtype=torch.float64)
    noise = normal(BATCH, LENGTH, DIM, seed=1), normal(BATCH, LENGTH, DIM, seed=2)
    return Draws(uniforms, *noise, context_of(name))


def assert_golden(actual, expected):
    expected = torch.tensor(expected, dtype=torch.float64).view_as(actual)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", PREDICTION_TYPES)
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_loss_and_terms_are_the_same(name, kind):
    model, golden = make_model(name, prediction_type=kind), GOLDEN[f"{name} {kind}"]
    ids = torch.randint(VOCAB, (BATCH, LENGTH), generator=seeded(0))
    output = model(ids, draws=golden_draws(name))
    for key, expected in golden.items():
        if key in output:
            assert_golden(output[key], expected)
    if kind == "categorical":
        assert_golden(model(ids, draws=golden_draws(name), cross_entropy=True).cross_entropy, golden["cross_entropy"])


@pytest.mark.parametrize("kind", PREDICTION_TYPES)
@pytest.mark.parametrize("name, scheduler_name", STEPS)
@torch.no_grad()
def test_a_step_of_every_scheduler_is_the_same(name, kind, scheduler_name):
    model, scheduler, context = make_model(name, prediction_type=kind), SCHEDULERS[scheduler_name](), context_of(name)
    if scheduler_name == "adaptive":
        scheduler.set_timesteps(10)
    else:
        scheduler.set_timesteps(timesteps=[0.7, 0.4])
    z, generators = normal(BATCH, LENGTH, DIM, seed=4), [seeded(10 + i) for i in range(BATCH)]
    for timestep, _ in zip(scheduler.timesteps, range(STAGES.get(scheduler_name, 1))):
        prediction = model.denoise(z, scheduler.token_times(timestep, z).value, context)
        z = scheduler.step(
            prediction, timestep, z, forward_process=model.forward_process, context=context, generator=generators
        ).prev_sample
    assert_golden(z, GOLDEN[f"{name} {kind}"][f"step {scheduler_name}"])
