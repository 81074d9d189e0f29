"""Sampling with tokens in motion in windows, against the same without what spares work."""

from __future__ import annotations

from functools import partial

import torch
from timing import interleaved, medians
from torch import Tensor

from diffusers_text_nfdm import MarkovChainScheduler, NFDMConfig, NFDMModel, NFDMTextPipeline
from diffusers_text_nfdm.clocks import BatchClock
from diffusers_text_nfdm.models import Prediction
from diffusers_text_nfdm.pipelines.batches import Options, TextBatch


CLOCKS = ("ramp:8", "blocks:8")
NUM_CALLS = 64
# The model of the recipes for stories without a lattice, and one that only tries the benchmark out.
MODELS = {
    "stories": {"embedding_dim": 32, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4},
    "quick": {"embedding_dim": 8, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
}


class PlainPipeline(NFDMTextPipeline):
    """Every call reads what is written anew, and predicts all tokens of the text."""

    def _predict(
        self, batch: TextBatch, timestep: Tensor, clock: BatchClock, options: Options
    ) -> tuple[Prediction, int]:
        model, scheduler, z = options.model, options.scheduler, batch.z
        bounds = scheduler.step_bounds(timestep)
        step = clock.step_windows(bounds[0], *(scheduler.token_times(u, z).value for u in bounds))
        self._write(batch, step.written, options)
        # What is not written is seen by no token of the window.
        text = torch.zeros(z.shape[:2], dtype=torch.long)
        text[:, : step.written] = batch.written
        _, clean = model.read_clean(text)
        shown = model.nothing_shown(z) if batch.shown is None else batch.shown
        t = scheduler.token_times(timestep, z).value
        prediction = model.denoise(z, t, batch.context, clean, shown, windows=step.windows, known=batch.known)
        # A token that begins is shown nothing.
        batch.shown = torch.zeros_like(shown)
        batch.shown[:, step.tokens] = prediction.shown_next[:, step.tokens]
        return prediction, 1


def make_model(size: str) -> NFDMModel:
    """With weights that are random, also where they start at zero: every token matters to those that see it."""
    torch.manual_seed(0)
    config = NFDMConfig(
        **MODELS[size],
        vocab_size=400,
        max_length=64,
        intermediate_size=4 * MODELS[size]["hidden_size"],
        hidden_act="relu2",
        predictor="two_stream",
        prediction_type="categorical",
        decoder="gaussian",
        embedding_sphere=True,
        self_conditioning=True,
        forward_num_layers=0,
    )
    model = NFDMModel(config).eval()
    for parameter in model.predictor.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return model


def pipelines(model: NFDMModel) -> dict[str, NFDMTextPipeline]:
    """The plain one and ours."""
    both = {"plain": PlainPipeline, "ours": NFDMTextPipeline}
    both = {name: kind(model, None, MarkovChainScheduler(time_grid="learned")) for name, kind in both.items()}
    for pipe in both.values():
        pipe.set_progress_bar_config(disable=True)
    return both


def sample(pipe: NFDMTextPipeline, clock: str, batch_size: int) -> Tensor:
    """Latents from a seed."""
    options = {"num_inference_steps": NUM_CALLS, "clock": clock, "output_type": "latent"}
    return pipe(num_samples=batch_size, generator=torch.Generator().manual_seed(0), **options).latents


def measure(size: str, batch_sizes: list[int], repeats: int) -> list[dict]:
    """CPU milliseconds a text, by clock and batch size."""
    both, rows = pipelines(make_model(size)), []
    for clock in CLOCKS:
        for batch_size in batch_sizes:
            runs = {name: partial(sample, pipe, clock, batch_size) for name, pipe in both.items()}
            seconds = medians(interleaved(runs, repeats))
            row = {name: 1000 * value / batch_size for name, value in seconds.items()}
            rows.append({"clock": clock, "batch": batch_size, **row, "ours / plain": row["ours"] / row["plain"]})
    return rows
