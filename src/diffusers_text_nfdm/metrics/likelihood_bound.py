"""The likelihood of texts under a checkpoint in all units: a bound for diffusion models, exact for the autoregressive
baseline.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..data import prepare_dataset
from ..likelihood import UNITS, LikelihoodEstimate, estimate_likelihood, exact_likelihood, masked_likelihood
from .checkpoint import pipeline_kind
from .sampling import ANCESTRAL, MASKED
from .texts import check_texts


def bound(
    pipeline,
    texts: Sequence[str],
    *,
    num_draws: int = 8,
    batch_size: int = 64,
    seed: int = 0,
    progress: bool = False,
) -> LikelihoodEstimate:
    """`-log p(text)`, or its upper bound, over `texts` as the pipeline's tokenizer splits them.

    Args:
        num_draws, seed: of times and noise, or of masks, per text; the exact likelihood of an autoregressive
            model needs none.
    """
    from datasets import Dataset

    dataset = Dataset.from_dict({"text": check_texts(texts, "texts")})
    rows = prepare_dataset(dataset, pipeline.tokenizer, pipeline.model.config.max_length)[0][:]
    options = {"batch_size": batch_size, "progress": progress}
    kind = pipeline_kind(pipeline)
    if kind == ANCESTRAL:
        return exact_likelihood(pipeline.model, **rows, **options)
    estimate = masked_likelihood if kind == MASKED else estimate_likelihood
    return estimate(pipeline.model, **rows, num_draws=num_draws, seed=seed, **options)


def bound_units(estimate: LikelihoodEstimate) -> dict[str, float]:
    """Each unit by its name, and its Monte-Carlo error as `<unit>_error`."""
    values = {}
    for unit in UNITS:
        quantity = getattr(estimate, unit)
        if quantity is not None:
            values |= {unit: quantity.value, f"{unit}_error": quantity.monte_carlo_error}
    return values
