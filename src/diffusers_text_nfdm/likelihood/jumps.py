"""What texts cost under jumps: a bound for the distribution that few calls draw from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ..checks import check_integers
from ..devices import widened, widest_float
from ..models import Prediction, TextDiffusionModel, evaluation_mode
from ..models.token_choice import behind_end, draw_from, noise_of
from ..networks.two_stream_predictor import TextCache
from ..schedulers import JumpScheduler
from ..version import __version__
from .estimation import check_draws, prepared_texts, unknown_positions
from .quantities import LikelihoodEstimate, in_units


@torch.no_grad()
def jump_likelihood(
    model: TextDiffusionModel,
    input_ids: Tensor | Sequence[Sequence[int]],
    num_tokens: Tensor | Sequence[int] | None = None,
    num_chars: Tensor | Sequence[int] | None = None,
    *,
    num_inference_steps: int,
    jump_length: int = 16,
    num_draws: int = 2,
    batch_size: int = 64,
    seed: int = 0,
    progress: bool = False,
) -> LikelihoodEstimate:
    """Estimate a bound of `-log p(x)` of texts that `JumpScheduler` draws, in the units of `estimate_likelihood`.

    The noise of a text is latent. A token has the probability `q_i(x_i | u_<i)` that its noise falls where the last
    call decides for it, and given the token its noise is uniform there. Drawn token by token, `Π_i q_i(x_i | u_<i)`
    has the mean `p(x)`, so `-Σ_i log q_i(x_i | u_<i)` has a mean of at least `-log p(x)` (Jensen). With as many calls
    as tokens it is the clean stream's `-log p(x)`. What is behind END is padding, whatever its noise.

    Args:
        input_ids: `(texts, max_length)`, padding included.
        num_tokens: real tokens of each text, for the units per token.
        num_chars: characters of each raw text, for bits per character.
        num_inference_steps: calls of the predictor.
        jump_length: of the scheduler, whose `temperature` is 1 and whose `min_p` is 0.
        num_draws: draws of the noise per text, an even number.
    """
    input_ids, tokens, chars = prepared_texts(model, input_ids, num_tokens, num_chars, batch_size)
    if not model.config.jumps:
        raise ValueError("The model cannot jump: its config has `jumps` False.")
    check_integers(1, num_inference_steps=num_inference_steps)
    scheduler = JumpScheduler(jump_length)
    check_draws(num_draws, seed)
    generator = torch.Generator(model.device).manual_seed(seed)
    halves = torch.zeros(len(input_ids), 2, dtype=torch.float64)
    total = num_draws * len(input_ids)
    with evaluation_mode(model), tqdm(total=total, desc="likelihood", unit="eval", disable=not progress) as bar:
        for start in range(0, len(input_ids), batch_size):
            rows = slice(start, start + batch_size)
            batch = input_ids[rows].to(model.device)
            for draw in range(num_draws):
                nats = jump_nats(model, scheduler, batch, num_inference_steps, generator)
                halves[rows, draw % 2] += nats.cpu() / (num_draws // 2)
                bar.update(len(batch))
    protocol = {
        "quantity": "upper bound of -log p(x) of jumps, noise random, every token after START counted",
        "jumps": f"{num_inference_steps} calls, over {jump_length} tokens",
        "model": type(model).__name__,
        "texts": len(input_ids),
        "draws_per_text": num_draws,
        "seed": seed,
        "batch_size": batch_size,
        "dtype": str(model.dtype),
        "version": __version__,
    }
    positions = unknown_positions(None, input_ids, model.config.condition_length)
    calls = total * num_inference_steps
    return in_units({"jumps": halves}, positions, tokens, chars, calls, protocol)


def jump_nats(
    model: TextDiffusionModel, scheduler: JumpScheduler, input_ids: Tensor, num_calls: int, generator: torch.Generator
) -> Tensor:
    """`-Σ_i log q_i(x_i | u_<i)` of each text for one draw of its noise.

    In no call a token depends on what is behind it. So all calls go from left to right side by side: the noise of
    token i, by the last of them, then token i of each.
    """
    predictor, config, (n, length) = model.predictor, model.config, input_ids.shape
    start = 1 + config.condition_length
    device = input_ids.device
    uniforms = torch.rand(n, length, generator=generator, device=device, dtype=widest_float(device))
    reader, cache = model.text_reader(uniforms[:, :1], 1), TextCache(predictor, num_calls * n, length)
    padding, nats = behind_end(input_ids, config.eos_token_id), uniforms.new_zeros(n)
    calls = torch.arange(1, num_calls + 1, device=device)[:, None]
    positions = torch.arange(length, device=device)
    # Up to where each call draws what the one before it drew, as far as is known.
    agrees = torch.full((num_calls, n), start, device=device)
    inputs = reader.token_inputs[input_ids[:, :start]].repeat(num_calls, 1, 1)
    for i in range(start, length):
        at = positions[i - inputs.shape[1] : i].expand(len(inputs), -1)
        states = predictor.read_on(inputs, at, cache)[:, -1]
        logits = Prediction(factors=model.next_token_factors(states)).logits
        weights = torch.softmax(widened(logits), -1).unflatten(0, (num_calls, n))
        token = input_ids[:, i]
        nats -= weights[-1].gather(-1, token[:, None])[:, 0].log().masked_fill(padding[:, i], 0)
        noise = noise_of(weights[-1], token, uniforms[:, i], model.token_order)
        tokens = draw_from(weights, noise.expand(num_calls, -1), model.token_order)
        tokens[-1] = token
        inside = scheduler.front(calls, num_calls, torch.full_like(agrees, start), agrees + 1, length) > i
        agrees[1:] += (agrees[1:] == i) & inside[:-1] & (tokens[1:] == tokens[:-1])
        # Each call reads what the one before it drew, and noise beyond its front.
        own = predictor.noise_inputs(noise[None].to(model.latent_dtype))
        drafts = torch.where(inside[:-1, :, None], reader.token_inputs[tokens[:-1]], own)
        inputs = torch.cat([own, drafts]).flatten(0, 1)[:, None]
    return nats
