"""What texts cost under jumps: a bound for the distribution that few calls draw from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ..checks import check_positive
from ..models import TextDiffusionModel, evaluation_mode
from ..models.token_choice import draw_from, noise_of
from ..networks.two_stream_predictor import Places
from ..version import __version__
from .estimation import prepared_texts
from .quantities import LikelihoodEstimate, in_units


@torch.no_grad()
def jump_likelihood(
    model: TextDiffusionModel,
    input_ids: Tensor | Sequence[Sequence[int]],
    num_tokens: Tensor | Sequence[int] | None = None,
    num_chars: Tensor | Sequence[int] | None = None,
    *,
    jump_length: int,
    calls_per_jump: int = 1,
    num_draws: int = 2,
    batch_size: int = 64,
    seed: int = 0,
    progress: bool = False,
) -> LikelihoodEstimate:
    """Estimate a bound of `-log p(x)` of texts that `JumpScheduler` draws, in the units of `estimate_likelihood`.

    The noise of a text is latent. A token has the probability `q_i(x_i | u_<i)` that its noise falls where it decides
    for it, and given the token its noise is uniform there. Drawn token by token, `Π_i q_i(x_i | u_<i)` has the mean
    `p(x)`, so `-Σ_i log q_i(x_i | u_<i)` has a mean of at least `-log p(x)` (Jensen). A window takes as many calls as
    it has tokens.

    Args:
        input_ids: `(texts, max_length)`, padding included.
        num_tokens: real tokens of each text, for the units per token.
        num_chars: characters of each raw text, for bits per character.
        jump_length, calls_per_jump: of the scheduler; its `temperature` is 1 and its `min_p` 0.
        num_draws: draws of the noise per text, an even number.
    """
    input_ids, tokens, chars = prepared_texts(model, input_ids, num_tokens, num_chars, batch_size)
    if not model.config.jumps:
        raise ValueError("The model cannot jump: its config has `jumps` False.")
    check_positive(jump_length=jump_length, calls_per_jump=calls_per_jump)
    if num_draws < 2 or num_draws % 2:
        raise ValueError(f"`num_draws` is {num_draws}; it must be an even number of at least 2.")
    generator = torch.Generator(model.device).manual_seed(seed)
    halves = torch.zeros(len(input_ids), 2, dtype=torch.float64)
    total = num_draws * len(input_ids)
    with evaluation_mode(model), tqdm(total=total, desc="likelihood", unit="eval", disable=not progress) as bar:
        for start in range(0, len(input_ids), batch_size):
            rows = slice(start, start + batch_size)
            batch = input_ids[rows].to(model.device)
            for draw in range(num_draws):
                nats = jump_nats(model, batch, jump_length, calls_per_jump, generator)
                halves[rows, draw % 2] += nats.cpu() / (num_draws // 2)
                bar.update(len(batch))
    protocol = {
        "quantity": "upper bound of -log p(x) of jumps, noise random, every token after START counted",
        "jumps": f"over {jump_length} tokens, {calls_per_jump} calls each",
        "model": type(model).__name__,
        "texts": len(input_ids),
        "draws_per_text": num_draws,
        "seed": seed,
        "batch_size": batch_size,
        "dtype": str(model.dtype),
        "version": __version__,
    }
    positions = torch.full((len(input_ids),), float(input_ids.shape[1]), dtype=torch.float64)
    calls = total * min(jump_length, input_ids.shape[1] - 1) * calls_per_jump
    return in_units({"jumps": halves}, positions, tokens, chars, calls, protocol)


def jump_nats(
    model: TextDiffusionModel, input_ids: Tensor, jump_length: int, calls_per_jump: int, generator: torch.Generator
) -> Tensor:
    """`-Σ_i log q_i(x_i | u_<i)` of each text for one draw of its noise, all windows at once, token by token."""
    _, clean = model.read_clean(input_ids)
    n, length = input_ids.shape
    uniforms = torch.rand(n, length, generator=generator, device=input_ids.device, dtype=torch.float64)
    noise, nats = torch.zeros_like(uniforms), uniforms.new_zeros(n)
    given = 1 + model.config.condition_length
    positions = torch.arange(given, length, device=input_ids.device)
    inside = (positions - given) % jump_length
    for token in range(min(jump_length, length - given)):
        begun, own = positions[inside <= token], positions[inside == token]
        places, guess = Places(begun, begun - inside[inside <= token]), None
        for _ in range(calls_per_jump):
            logits = model.jump(noise[:, begun], clean, places, guess).logits
            weights = torch.softmax(logits.double(), -1)
            guess = draw_from(weights, noise[:, begun], model.token_order)
        weights, targets = weights[:, inside[inside <= token] == token], input_ids[:, own]
        nats -= weights.gather(-1, targets[..., None])[..., 0].log().sum(-1)
        noise[:, own] = noise_of(weights, targets, uniforms[:, own], model.token_order)
    return nats
