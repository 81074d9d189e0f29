"""An embedded corpus of five-sentence stories whose entropy is known exactly."""

from .grammar import MemoryGrammar, Step
from .loading import StoryGrammar, load_stories
from .parsing import Departure
from .templates import Option, pick


__all__ = ["Departure", "MemoryGrammar", "Option", "Step", "StoryGrammar", "load_stories", "pick"]
