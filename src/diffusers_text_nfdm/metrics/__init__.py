"""Metrics of generated text, and the evaluation of a checkpoint under a protocol."""

from .checkpoint import load_pipeline
from .evaluation import evaluate_checkpoint
from .judge import Judge
from .likelihood_bound import bound, bound_units
from .mauve_score import MauveSettings, mauve, mauve_from_features
from .ngrams import TrainingNgrams, diversity, memorization
from .perplexity_score import perplexity
from .protocol import PROTOCOLS, Protocol, get_protocol
from .record_slots import against_references, slots_realised
from .report import markdown_report
from .sampling import Sampling
from .story_conditions import story_completions
from .story_language import choice_p_values, story_language
from .texts import check_same_form, split_words


__all__ = [
    "PROTOCOLS",
    "Judge",
    "MauveSettings",
    "Protocol",
    "Sampling",
    "TrainingNgrams",
    "against_references",
    "bound",
    "bound_units",
    "check_same_form",
    "choice_p_values",
    "diversity",
    "evaluate_checkpoint",
    "get_protocol",
    "load_pipeline",
    "markdown_report",
    "mauve",
    "mauve_from_features",
    "memorization",
    "perplexity",
    "slots_realised",
    "split_words",
    "story_completions",
    "story_language",
]
