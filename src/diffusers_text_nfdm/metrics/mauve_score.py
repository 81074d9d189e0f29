"""MAUVE between samples and references, with the features of a judge and several seeds of its k-means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from ..checks import check_integers, check_positive
from .judge import Judge
from .texts import check_same_form, check_texts


MINIMUM_TEXTS = 10


@dataclass(frozen=True)
class MauveSettings:
    """What MAUVE depends on besides the texts and the judge.

    Args:
        seeds: seeds of k-means; the score is the mean over them.
        max_text_length: tokens of the judge after which a text is cut.
        num_buckets: clusters; `"auto"` is a tenth of the number of texts.
        scaling_factor: the constant c of the paper on MAUVE.
        kmeans_num_redo, kmeans_max_iter, kmeans_explained_var: of the clustering, after a PCA that keeps this share of
            variance.
    """

    seeds: tuple[int, ...] = (25, 26, 27, 28, 29)
    max_text_length: int = 256
    num_buckets: int | str = "auto"
    scaling_factor: float = 5.0
    kmeans_num_redo: int = 5
    kmeans_max_iter: int = 500
    kmeans_explained_var: float = 0.9

    def __post_init__(self):
        if not isinstance(self.seeds, (tuple, list)) or not all(isinstance(seed, int) for seed in self.seeds):
            raise ValueError(f"`seeds` is {self.seeds!r}; it must be a tuple of integers.")
        if not self.seeds:
            raise ValueError("`seeds` is empty; MAUVE needs at least one seed of k-means.")
        check_integers(1, max_text_length=self.max_text_length, kmeans_num_redo=self.kmeans_num_redo)
        check_integers(1, kmeans_max_iter=self.kmeans_max_iter)
        check_positive(scaling_factor=self.scaling_factor, kmeans_explained_var=self.kmeans_explained_var)
        if self.num_buckets != "auto" and (not isinstance(self.num_buckets, int) or self.num_buckets < 2):
            raise ValueError(f"`num_buckets` is {self.num_buckets!r}; it must be 'auto' or an integer of at least 2.")


def mauve_from_features(
    sample_features: np.ndarray, reference_features: np.ndarray, settings: MauveSettings | None = None
) -> dict:
    """MAUVE of two clouds of features, one row per text, in equal numbers."""
    settings = settings or MauveSettings()
    if len(sample_features) != len(reference_features) or len(sample_features) < MINIMUM_TEXTS:
        raise ValueError(
            f"MAUVE is given {len(sample_features)} samples and {len(reference_features)} references; it needs the "
            "same number of both, "
            f"at least {MINIMUM_TEXTS}: its value depends on these numbers."
        )
    try:
        from mauve import compute_mauve
    except ImportError as error:
        raise ImportError("MAUVE needs mauve-text: pip install diffusers_text_nfdm[eval]") from error

    scores = [
        float(
            compute_mauve(
                p_features=sample_features,
                q_features=reference_features,
                num_buckets=settings.num_buckets,
                kmeans_explained_var=settings.kmeans_explained_var,
                kmeans_num_redo=settings.kmeans_num_redo,
                kmeans_max_iter=settings.kmeans_max_iter,
                mauve_scaling_factor=settings.scaling_factor,
                seed=seed,
            ).mauve
        )
        for seed in settings.seeds
    ]
    return {
        "mauve": float(np.mean(scores)),
        "mauve_sd": float(np.std(scores, ddof=1)) if len(scores) > 1 else None,
        "mauve_by_seed": scores,
        "settings": {**asdict(settings), "seeds": list(settings.seeds), "texts": len(sample_features)},
    }


def mauve(
    samples: Sequence[str], references: Sequence[str], judge: Judge, settings: MauveSettings | None = None
) -> dict:
    """Mean and standard deviation of MAUVE over seeds of k-means (`mauve`, `mauve_sd`), and the settings."""
    settings = settings or MauveSettings()
    samples, references = check_texts(samples, "samples"), check_texts(references, "references")
    check_same_form(samples, references, "samples", "references")
    if len(samples) != len(references) or len(samples) < MINIMUM_TEXTS:
        raise ValueError(
            f"`samples` has {len(samples)} texts and `references` {len(references)}; MAUVE needs the same number of "
            "both, at least "
            f"{MINIMUM_TEXTS}."
        )
    features = [judge.features(texts, settings.max_text_length) for texts in (samples, references)]
    result = mauve_from_features(*features, settings)
    result["settings"] |= judge.settings
    return result
