"""The link between tokens that are drafted side by side, fitted by itself to a trained model."""

from __future__ import annotations

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ..devices import multiplies_bfloat16
from ..models import TextDiffusionModel, evaluation_mode
from ..networks.linear_cross_entropy import linear_cross_entropy
from ..networks.two_stream_predictor import Places


BATCH_SIZE = 32
WINDOW = 8
LEARNING_RATE = 3e-3
WARMUP_STEPS = 10


def fit_token_link(
    model: TextDiffusionModel, input_ids: Tensor, steps: int, seed: int = 0, progress: bool = False
) -> None:
    """Give a model with a clean stream a link, where it has none, and fit it by steps of Adam on

        -Σ_i log p(x_i | x_i-1, x_<start),

    the cross-entropy of tokens of which only the one before is seen, in windows that start anywhere. Nothing else of
    the model changes: its texts and its bound stay as they are, and drafts get longer (`pipelines/draft_verify.py`).

    Args:
        input_ids: training texts, `(texts, max_length)`.
    """
    if not model.has_clean_stream:
        raise ValueError(
            "`model` has no clean stream, whose drafts a link is for: it needs `predictor` 'two_stream' and "
            "`prediction_type` 'categorical'."
        )
    if not model.config.token_link:
        # Its first weights depend on nothing but the seed.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model.add_token_link()
            model.predictor.token_link.requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.requires_grad_(False)
    model.predictor.token_link.requires_grad_()
    try:
        _fit(model, input_ids, steps, seed, progress)
    finally:
        model.predictor.token_link.requires_grad_(False)
        for parameter in trained:
            parameter.requires_grad_()


def _fit(model: TextDiffusionModel, input_ids: Tensor, steps: int, seed: int, progress: bool) -> None:
    device, link, length = model.device, model.predictor.token_link, model.config.max_length
    generator, pad = torch.Generator(device).manual_seed(seed), model.config.pad_token_id
    optimizer = torch.optim.Adam(link.parameters(), betas=(0.9, 0.99))
    positions = torch.arange(1 + model.config.condition_length, length, device=device)
    first = int(positions[0])
    autocast = {"dtype": torch.bfloat16, "enabled": multiplies_bfloat16(device)}
    with evaluation_mode(model):
        for step in tqdm(range(steps), desc="token link", unit="step", disable=not progress):
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / WARMUP_STEPS) * (1 - step / steps)
            rows = torch.randint(len(input_ids), (BATCH_SIZE,), generator=generator, device=device)
            phase = int(torch.randint(WINDOW, (), generator=generator, device=device))
            texts = input_ids[rows.to(input_ids.device)].to(device)
            starts = ((positions - phase) // WINDOW * WINDOW + phase).clamp_min(first)
            places = Places(*(x.expand(len(texts), -1) for x in (positions, starts)))
            with torch.no_grad(), torch.autocast(device.type, **autocast):
                _, clean = model.read_clean(texts)
                context = model.draw(len(texts), generator, device).context_noise
                states = model.predict_unseen(clean, places, context).states
            # Of the first token of a window the clean stream knows all.
            linked = positions > starts
            targets, before = texts[:, first:][:, linked], texts[:, first - 1 : -1][:, linked]
            losses, _ = linear_cross_entropy(*model.linked_factors(states[:, linked], before), targets)
            losses = losses if pad is None else losses.masked_fill(targets == pad, 0)
            (losses.sum() / len(texts)).backward()
            optimizer.step()
            optimizer.zero_grad()
