"""Cost of one sampling step of each scheduler against one call of the predictor, for NFDM."""

from __future__ import annotations

import torch
from timing import interleaved, ratios

from diffusers_text_nfdm import MarkovChainScheduler, NFDMConfig, NFDMModel, ReverseODEScheduler, ReverseSDEScheduler


SIZES = {
    "tiny": {
        "embedding_dim": 64,
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 512,
        "forward_hidden_size": 128,
        "forward_num_layers": 3,
        "forward_num_heads": 4,
        "forward_intermediate_size": 512,
        "forward_time_dim": 320,
    },
    "paper": {},
}
BATCH_SIZES = {"tiny": 32, "paper": 4}


@torch.no_grad()
def measure(size: str, repeats: int) -> dict[str, float]:
    """Ratio of a step (predictor call included) to the predictor alone, for every scheduler."""
    model = NFDMModel(NFDMConfig(**SIZES[size])).eval()
    z = torch.randn(BATCH_SIZES[size], *model.latent_shape)
    t = torch.full((len(z),), 0.5)

    def step(scheduler) -> torch.Tensor:
        scheduler.set_timesteps(timesteps=[0.5, 0.25])
        return scheduler.step(model.predict(z, t), 0.5, z, forward_process=model.forward_process).prev_sample

    contestants = {"predictor alone": lambda: model.predict(z, t)}
    for name, scheduler in {
        "star (noise_fraction 1)": MarkovChainScheduler(1.0),
        "Markov chain (noise_fraction 0.5)": MarkovChainScheduler(0.5),
        "reverse SDE": ReverseSDEScheduler(),
        "reverse ODE (Euler)": ReverseODEScheduler("euler"),
    }.items():
        contestants[name] = lambda scheduler=scheduler: step(scheduler)
    return ratios(interleaved(contestants, repeats), "predictor alone")
