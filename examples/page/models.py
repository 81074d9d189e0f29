"""The models of the page, and what each can be asked for."""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path

from diffusers_text_nfdm import (
    DraftVerifyScheduler,
    JumpScheduler,
    MarkovChainScheduler,
    NFDMTextPipeline,
    RefinementScheduler,
    ReverseODEScheduler,
    ReverseSDEScheduler,
    TokenScheduler,
)
from diffusers_text_nfdm.metrics.checkpoint import load_pipeline
from diffusers_text_nfdm.stories import StoryGrammar


DEFAULT_MODEL = "nfdm-stories-jumps"
SCHEDULERS = {
    scheduler.__name__: (scheduler, words)
    for scheduler, words in (
        (JumpScheduler, "many words a call, verified"),
        (DraftVerifyScheduler, "drafts, verified"),
        (RefinementScheduler, "the sure words first"),
        (MarkovChainScheduler, "latents"),
        (ReverseSDEScheduler, "latents"),
        (ReverseODEScheduler, "latents"),
    )
}


def find_checkpoints(folders: list[Path]) -> list[str]:
    """The pipelines in the folders and right below them, the default one first."""
    found = [
        path.parent
        for folder in folders
        for path in (*folder.glob("model_index.json"), *folder.glob("*/model_index.json"))
    ]
    return [str(path) for path in sorted(found, key=lambda path: (path.name != DEFAULT_MODEL, str(path)))]


@lru_cache(maxsize=4)
def load(name: str, device: str | None = None) -> NFDMTextPipeline:
    """The pipeline of a folder or of a repository of the Hub."""
    if not name.strip():
        raise ValueError("Choose a model, or type the name of one on the Hub.")
    pipe = load_pipeline(name.strip(), device)
    if not isinstance(pipe, NFDMTextPipeline):
        raise ValueError(f"{name!r} is a {type(pipe).__name__}; this page is for an NFDMTextPipeline.")
    return pipe


def usable_schedulers(pipe: NFDMTextPipeline) -> list[str]:
    """Those that the model can be used with, its own first."""
    model, own = pipe.model, type(pipe.scheduler).__name__
    usable = [
        name
        for name, (scheduler, _) in SCHEDULERS.items()
        if not issubclass(scheduler, TokenScheduler)
        or (model.has_clean_stream and (scheduler is not JumpScheduler or model.config.jumps))
    ]
    return sorted(usable, key=lambda name: name != own)


def clocks(pipe: NFDMTextPipeline) -> list[str]:
    """The model's own clock, and the others that it was trained on."""
    own, trained = pipe.model.config.clock, pipe.model.config.trained_clocks or []
    return list(dict.fromkeys([str(own), *map(str, trained)]))


def writes_tokens(scheduler: str) -> bool:
    """Whether a scheduler writes tokens itself: it then has no clock, and draws them with a temperature above 0."""
    return issubclass(SCHEDULERS[scheduler][0], TokenScheduler)


@cache
def grammar() -> StoryGrammar:
    return StoryGrammar()


@cache
def _story_words() -> frozenset[str]:
    return frozenset(grammar().vocabulary)


def tells_stories(pipe: NFDMTextPipeline) -> bool:
    """Whether the model writes the stories whose truth is known: its words are theirs."""
    own = {*pipe.tokenizer.get_vocab()} - {*pipe.tokenizer.all_special_tokens}
    return own == _story_words() and not pipe.model.config.condition_length
