"""Training steps of the two-stream model in float32 and under bfloat16 autocast."""

from __future__ import annotations

from functools import partial

import torch
from long_texts import MODEL
from timing import interleaved, medians

from diffusers_text_nfdm import NFDMConfig, NFDMModel


# Kinds of steps in our recipes.
STEPS = {
    "next token": {"next_token_weight": 1.0, "next_token_only": True},
    "cross-entropy": {"next_token_weight": 1.0, "cross_entropy": True, "clock": "ramp:8"},
    "bound": {"next_token_weight": 1.0, "clock": "ramp:8"},
}
VOCABULARIES = [1024, 8192]


def measure(vocabularies: list[int], batch: int, length: int, repeats: int) -> list[dict]:
    """CPU seconds of every kind of step, forward and backward, in both precisions."""
    rows = []
    for vocabulary in vocabularies:
        torch.manual_seed(0)
        model = NFDMModel(NFDMConfig(**MODEL, max_length=length, vocab_size=vocabulary))
        input_ids, draws = torch.randint(vocabulary, (batch, length)), model.draw(batch)

        def step(options: dict, bfloat16: bool, model=model, input_ids=input_ids, draws=draws) -> None:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
                loss = model(input_ids, draws=draws, **options).loss
            loss.backward()

        for kind, options in STEPS.items():
            contestants = {"float32": partial(step, options, False), "bfloat16": partial(step, options, True)}
            seconds = medians(interleaved(contestants, repeats))
            rows.append({"vocabulary": vocabulary, "step": kind, **seconds})
    return rows
