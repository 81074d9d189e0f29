"""From logits to token ids: the most probable ones, or draws with temperature, top-k, top-p and min-p."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..checks import is_number


Generators = list[torch.Generator] | torch.Generator | None

# The knobs by which tokens are drawn.
CHOICE = ("temperature", "top_k", "top_p", "min_p", "contrast")


def check_choice(
    temperature: float,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float = 0.0,
    contrast: float = 0.0,
) -> None:
    """Raise a ValueError for ways of drawing tokens that cannot be."""
    if not is_number(temperature) or not temperature >= 0:
        raise ValueError(f"`temperature` is {temperature!r}; it must be at least 0 (0 takes the most probable token).")
    if top_k is not None and (not is_number(top_k) or not isinstance(top_k, int) or top_k < 1):
        raise ValueError(f"`top_k` is {top_k!r}; it must be an integer of at least 1.")
    if top_p is not None and not (is_number(top_p) and 0 < top_p <= 1):
        raise ValueError(f"`top_p` is {top_p!r}; it must be in (0, 1].")
    if not (is_number(min_p) and 0 <= min_p < 1):
        raise ValueError(f"`min_p` is {min_p!r}; it must be in [0, 1).")
    if not (is_number(contrast) and 0 <= contrast < math.inf):
        raise ValueError(f"`contrast` is {contrast!r}; it must be a number of at least 0.")
    if contrast and not min_p and top_k is None and top_p is None:
        raise ValueError(
            f"`contrast` is {contrast}, which favours rare tokens; it needs `min_p`, `top_k` or `top_p` to say which "
            "of them are plausible."
        )


def check_cuts(temperature: float, settings: Mapping | None = None, **cuts) -> None:
    """As `check_choice`, together with the `settings` that hold for what is not given, and a ValueError for cuts of a
    distribution that nothing is drawn from.
    """
    check_choice(**{**(settings or {}), "temperature": temperature, **cuts})
    if temperature == 0 and any(cuts.get(name) for name in CHOICE[1:]):
        raise ValueError(
            "`top_k`, `top_p`, `min_p` and `contrast` need a `temperature` above 0: at 0 the most probable token is "
            "taken."
        )


def token_probabilities(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float = 0.0,
    contrast: float = 0.0,
    log_frequencies: Tensor | None = None,
) -> Tensor:
    """`softmax(logits / temperature)` over the last axis, cut off and normalised again.

    What stays are the `top_k` most probable tokens, of these the fewest with probability `top_p`, and those with at
    least `min_p` times the probability of the most probable one. Of these a `contrast` λ takes

        p(x | what is seen) / p(x)^λ,

    with p(x) how frequent a token is anywhere, `log_frequencies` `(vocab,)`.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    largest = logits.amax(-1, keepdim=True)
    # Reading values would stall an accelerator.
    if largest.device.type == "cpu" and not torch.isfinite(largest).all():
        raise ValueError("The model's logits are not finite: its weights are damaged, or their type is too narrow.")
    # With the largest at zero a small temperature cannot overflow; a smaller one than this would be 0 in this type.
    logits = (logits - largest) / max(temperature, torch.finfo(logits.dtype).tiny)
    if min_p:
        logits = logits.masked_fill(logits < math.log(min_p), -torch.inf)
    kept = _most_probable(logits, top_k, top_p)
    if not contrast:
        return kept
    # Of logs: a large power of how rare a token is would overflow.
    return torch.softmax(kept.log() - contrast * log_frequencies.to(kept), -1)


def _most_probable(logits: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """`softmax(logits)` over the `top_k` most probable tokens, and of these the fewest with probability `top_p`."""
    if top_k is None and top_p is None:
        return torch.softmax(logits, -1)
    logits, order = logits.sort(-1, descending=True)
    if top_k is not None:
        logits[..., top_k:] = -torch.inf
    probabilities = torch.softmax(logits, -1)
    if top_p is not None:
        # A token stays while the more probable ones before it have not reached `top_p`; the first one always does.
        before = probabilities.cumsum(-1) - probabilities
        probabilities[..., 1:] = probabilities[..., 1:].masked_fill(before[..., 1:] >= top_p, 0)
        probabilities = probabilities / probabilities.sum(-1, keepdim=True)
    return torch.empty_like(probabilities).scatter_(-1, order, probabilities)


def log_frequencies(model: nn.Module) -> Tensor:
    """log p(x), how frequent each token is anywhere, `(vocab,)`: the token bias of a model, which starts at it and is
    trained.
    """
    return torch.log_softmax(model.token_bias.detach(), -1)


def complete_choice(choice: dict, model: nn.Module) -> dict:
    """How tokens are drawn, and the frequencies that a contrast needs."""
    return {**choice, "log_frequencies": log_frequencies(model)} if choice.get("contrast") else choice


def exclude(logits: Tensor, excluded: Tensor | None) -> Tensor:
    """Logits `(batch, seq, vocab)` of tokens of which some cannot be drawn: those that are `excluded` from each text,
    `(batch, vocab)`.
    """
    return logits if excluded is None else logits.masked_fill(excluded[:, None], -torch.inf)


def draw_from(weights: Tensor, uniforms: Tensor, order: Tensor | None = None) -> Tensor:
    """One token per position, `(...)`, in proportion to weights `(..., vocab)`, by uniform random numbers `(...)`.

    It is `F⁻¹(u)` for the cumulative distribution F, which adds up in the `order` of token ids, `(vocab,)`.
    """
    cumulative = (weights if order is None else weights[..., order]).cumsum(-1)
    # Below the total, so that rounding cannot reach beyond the last token of a weight above zero.
    total = cumulative[..., -1:]
    drawn = (uniforms[..., None].to(total) * total).minimum(torch.nextafter(total, torch.zeros_like(total)))
    places = torch.searchsorted(cumulative, drawn, right=True)[..., 0]
    return places if order is None else order[places]


def noise_of(weights: Tensor, tokens: Tensor, uniforms: Tensor, order: Tensor) -> Tensor:
    """A random number for every token, `(...)`, by which `draw_from` draws it.

    It is `F(x-) + v p(x)` for uniform numbers v: over draws of the token it is uniform.
    """
    places = order.argsort()
    before = torch.where(places < places[tokens][..., None], weights, 0).sum(-1)
    weight = weights.gather(-1, tokens[..., None])[..., 0]
    return (before + uniforms.to(weight) * weight) / weights.sum(-1)


def behind_end(tokens: Tensor, end: int | None) -> Tensor:
    """Which tokens `(batch, seq)` stand behind the first END of their text."""
    ends = torch.zeros_like(tokens) if end is None else (tokens == end).long()
    return ends.cumsum(-1) - ends > 0


def draw_tokens(logits: Tensor, uniforms: Tensor | None, temperature: float = 1.0, **cuts) -> Tensor:
    """A draw from `token_probabilities` at every position, or at `temperature=0` the most probable token."""
    if temperature == 0:
        return logits.argmax(-1)
    return draw_from(token_probabilities(logits, temperature, **cuts), uniforms)


def draw_uniforms(batch_size: int, length: int, generators: Generators, device: torch.device) -> Tensor:
    """A random number for every token, `(batch_size, length)`, from the generator of each text."""
    if isinstance(generators, list):
        return torch.stack([torch.rand((length,), generator=g, device=g.device) for g in generators]).to(device)
    source = device if generators is None else generators.device
    return torch.rand((batch_size, length), generator=generators, device=source).to(device)


def select_tokens(
    logits: Tensor,
    temperature: float = 0.0,
    *,
    generators: Generators = None,
    part: slice | None = None,
    length: int | None = None,
    **cuts,
) -> Tensor:
    """`draw_tokens` for logits `(batch, seq, vocab)`, with the generator of each text.

    They may be those of a `part` of texts of some `length`: what is drawn for a token does not depend on the part.
    """
    if temperature == 0:
        return logits.argmax(-1)
    batch_size, seq = logits.shape[:2]
    uniforms = draw_uniforms(batch_size, seq if part is None else length, generators, logits.device)
    uniforms = uniforms if part is None else uniforms[:, part]
    return draw_tokens(logits, uniforms, temperature, **cuts)
