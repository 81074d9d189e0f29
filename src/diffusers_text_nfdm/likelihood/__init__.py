from .estimation import estimate_likelihood, exact_likelihood
from .importance_weighting import importance_weighted_bound
from .jumps import jump_likelihood
from .masked_diffusion import masked_likelihood
from .quantities import UNITS, LikelihoodEstimate, Quantity
from .scoring import Scores, score_texts
from .window_excess import WindowExcess, window_excess


__all__ = [
    "UNITS",
    "LikelihoodEstimate",
    "Quantity",
    "Scores",
    "WindowExcess",
    "estimate_likelihood",
    "exact_likelihood",
    "importance_weighted_bound",
    "jump_likelihood",
    "masked_likelihood",
    "score_texts",
    "window_excess",
]
