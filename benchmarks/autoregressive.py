"""Whole texts per second against an autoregressive model of the predictor's size with a key-value cache."""

from __future__ import annotations

import torch
from sizes import make_model
from timing import interleaved, medians
from transformers import GPT2Config, GPT2LMHeadModel

from diffusers_text_nfdm import MarkovChainScheduler


# Of whole sampling: the number at which the speed is given besides that of a single step.
STEPS = 32


@torch.no_grad()
def measure(size: str, batch_sizes: list[int], repeats: int) -> dict[int, dict[str, float]]:
    """For each batch size the tokens per CPU second of the autoregressive model, of star sampling with `STEPS` steps
    and of one step, and the number of steps at which whole sampling takes as long."""
    model = make_model(size).eval()
    config = model.config
    language_model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=config.vocab_size,
            n_positions=config.max_length,
            n_embd=config.hidden_size,
            n_layer=config.num_hidden_layers,
            n_head=config.num_attention_heads,
            n_inner=config.intermediate_size,
            bos_token_id=1,
            eos_token_id=None,
            pad_token_id=0,
        )
    ).eval()
    scheduler, results = MarkovChainScheduler(), {}
    for batch_size in batch_sizes:
        start = torch.ones(batch_size, 1, dtype=torch.long)
        z = torch.randn(batch_size, *model.latent_shape)
        t = torch.full((batch_size, 1), 0.5)

        def write(start=start) -> None:
            language_model.generate(
                start, attention_mask=torch.ones_like(start), do_sample=True, top_k=0, max_length=config.max_length
            )

        def step(z=z, t=t) -> None:
            scheduler.set_timesteps(timesteps=[0.5, 0.25])
            scheduler.step(model.denoise(z, t), 0.5, z, forward_process=model.forward_process)

        # The first batch size, a small one, has warmed up for all.
        warm_up = batch_size == batch_sizes[0]
        seconds = medians(interleaved({"autoregressive": write, "step": step}, repeats, warm_up))
        tokens = batch_size * config.max_length
        results[batch_size] = {
            "autoregressive tokens/s": tokens / seconds["autoregressive"],
            f"tokens/s, {STEPS} steps": tokens / seconds["step"] / STEPS,
            "tokens/s of one step": tokens / seconds["step"],
            "steps to break even": seconds["autoregressive"] / seconds["step"],
        }
    return results
