"""Cost of one sampling step of each scheduler against one call of the predictor, for NFDM."""

from __future__ import annotations

import torch
from sizes import BATCH_SIZES, make_model
from timing import interleaved, ratios

from diffusers_text_nfdm import MarkovChainScheduler, ReverseODEScheduler, ReverseSDEScheduler


SCHEDULERS = {
    "star": MarkovChainScheduler(1.0),
    "Markov chain": MarkovChainScheduler(0.5),
    "reverse SDE": ReverseSDEScheduler(),
    "reverse ODE": ReverseODEScheduler("euler"),
}


@torch.no_grad()
def measure(size: str, repeats: int) -> dict[str, float]:
    """Ratio of a step (predictor call included) to the predictor alone, for every scheduler."""
    model = make_model(size).eval()
    z = torch.randn(BATCH_SIZES[size], *model.latent_shape)
    t = torch.full((len(z), 1), 0.5)

    def step(scheduler) -> torch.Tensor:
        scheduler.set_timesteps(timesteps=[0.5, 0.25])
        return scheduler.step(model.denoise(z, t), 0.5, z, forward_process=model.forward_process).prev_sample

    contestants = {"predictor": lambda: model.denoise(z, t)}
    for name, scheduler in SCHEDULERS.items():
        contestants[name] = lambda scheduler=scheduler: step(scheduler)
    return ratios(interleaved(contestants, repeats), "predictor")
