from .base import TextDiffusionScheduler, TextDiffusionSchedulerOutput
from .scheduling_draft_verify import DraftVerifyScheduler
from .scheduling_markov_chain import MarkovChainScheduler
from .scheduling_reverse_ode import ReverseODEScheduler
from .scheduling_reverse_sde import ReverseSDEScheduler


__all__ = [
    "DraftVerifyScheduler",
    "MarkovChainScheduler",
    "ReverseODEScheduler",
    "ReverseSDEScheduler",
    "TextDiffusionScheduler",
    "TextDiffusionSchedulerOutput",
]
