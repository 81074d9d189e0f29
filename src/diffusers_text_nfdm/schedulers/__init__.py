from .base import TextDiffusionScheduler, TextDiffusionSchedulerOutput
from .scheduling_draft_verify import DraftVerifyScheduler
from .scheduling_jump import JumpScheduler
from .scheduling_markov_chain import MarkovChainScheduler
from .scheduling_refinement import RefinementScheduler
from .scheduling_reverse_ode import ReverseODEScheduler
from .scheduling_reverse_sde import ReverseSDEScheduler
from .token_scheduler import TokenScheduler


SCHEDULERS = (
    MarkovChainScheduler,
    ReverseODEScheduler,
    ReverseSDEScheduler,
    RefinementScheduler,
    JumpScheduler,
    DraftVerifyScheduler,
)

__all__ = [
    "DraftVerifyScheduler",
    "JumpScheduler",
    "MarkovChainScheduler",
    "RefinementScheduler",
    "ReverseODEScheduler",
    "ReverseSDEScheduler",
    "TextDiffusionScheduler",
    "TextDiffusionSchedulerOutput",
    "TokenScheduler",
]
