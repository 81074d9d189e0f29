"""Stories of which something is known: whether completions are of the language, and whether right endings are
preferred.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..checks import check_seed
from ..likelihood.scoring import score_texts
from ..stories import StoryGrammar
from .story_language import LEVEL, paired_choice_p_values


if TYPE_CHECKING:
    from ..baseline import AutoregressivePipeline, MaskedDiffusionPipeline
    from ..pipelines import NFDMTextPipeline


# What is asked for: the story after its first sentence, its third sentence, one of its words.
TASKS = ("continuation", "sentence", "word")
HEROES = (
    tuple("Anna Clara Ella Grace Ivy Julia Lucy Nora Zoe".split()),
    tuple("Adam Ben Felix Henry Jack Leo Noah Sam Tom".split()),
)
PRONOUNS = {"she": "he", "he": "she", "She": "He", "He": "She", "his": "her", "His": "Her", "Her": "His", "him": "her"}


def encode_stories(
    stories: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> tuple[Tensor, list[list[str]]]:
    """Token ids `(stories, max_length)` and the tokens as words."""
    ids = tokenizer(list(stories), padding="max_length", max_length=max_length, truncation=True)["input_ids"]
    return torch.tensor(ids), [tokenizer.convert_ids_to_tokens(row) for row in ids]


def known_tokens(task: str, words: Sequence[str], draw: random.Random) -> list[bool]:
    """Which tokens of a story a task gives."""
    ends = [i for i, word in enumerate(words) if word == "."]
    if task == "continuation":
        return [i <= ends[0] for i in range(len(words))]
    if task == "sentence":
        return [not ends[1] < i <= ends[2] for i in range(len(words))]
    hidden = draw.randrange(1, ends[-1])
    return [i != hidden for i in range(len(words))]


def complete_stories(
    pipeline: NFDMTextPipeline | MaskedDiffusionPipeline,
    task: str,
    num_stories: int = 500,
    seed: int = 0,
    batch_size: int = 64,
    grammar: StoryGrammar | None = None,
    **options,
) -> dict[str, float]:
    """Validity and variety of completions of stories that the model has not seen.

    Returns what `story_completions` says of them, and `calls`, the mean number of predictor calls. `options` go to the
    pipeline.
    """
    if task not in TASKS:
        raise ValueError(f"`task` is {task!r}; it must be one of {', '.join(map(repr, TASKS))}.")
    grammar = grammar or StoryGrammar()
    stories = grammar.sample(num_stories, seed=f"conditions:{seed}")
    ids, words = encode_stories(stories, pipeline.tokenizer, pipeline.model.config.max_length)
    draw = random.Random(seed)
    known = torch.tensor([known_tokens(task, row, draw) for row in words])
    generator = torch.Generator().manual_seed(seed)
    output = pipeline(input_ids=ids, known=known, batch_size=batch_size, generator=generator, **options)
    scores = story_completions(output.texts, stories, grammar, seed)
    return {**scores, "calls": output.calls.double().mean().item()}


def story_completions(
    texts: Sequence[str], stories: Sequence[str], grammar: StoryGrammar | None = None, seed: int = 0
) -> dict[str, float | int | None]:
    """Texts that were completed from parts of `stories`, which are the grammar's own samples.

    Returns `validity`, the share of completed texts that are stories of the language; `same`, the share that are the
    story they were taken from; and `coverage`, the share of the `tested_choices` that valid completions make as often
    as exact draws of the missing part do, by a test at 1% (`paired_choice_p_values`; `None` without such a choice).
    """
    check_seed(seed)
    for name, several in (("texts", texts), ("stories", stories)):
        if isinstance(several, str) or not isinstance(several, Sequence):
            raise ValueError(f"`{name}` is {several!r}; it must be a list of texts.")
    if not texts or len(texts) != len(stories):
        raise ValueError(f"There are {len(texts)} texts for {len(stories)} stories; each needs one.")
    grammar = grammar or StoryGrammar()
    valid = [(text, story) for text, story in zip(texts, stories) if grammar.log_prob(text) > -math.inf]
    sides = [[grammar.derivation(text) for text in side] for side in zip(*valid)] if valid else ([], [])
    p_values = paired_choice_p_values(*sides, grammar, seed=seed)
    return {
        "validity": len(valid) / len(texts),
        "coverage": sum(p > LEVEL for p in p_values.values()) / len(p_values) if p_values else None,
        "tested_choices": len(p_values),
        "same": sum(a == b for a, b in zip(texts, stories)) / len(texts),
    }


def obeyed_conditions(
    pipeline: NFDMTextPipeline | MaskedDiffusionPipeline | AutoregressivePipeline,
    num_stories: int = 500,
    seed: int = 0,
    **options,
) -> dict[str, float]:
    """How well a pipeline obeys plot, hero and thing of stories that the model has not seen.

    Returns `validity`, the share of texts that are stories of the language; `obeyed`, the share that are, and of which
    the condition is the one that was given; and `calls`. `options` go to the pipeline.
    """
    grammar = StoryGrammar()
    conditions = [
        grammar.condition(derivation)
        for _, derivation in grammar.sample_derivations(num_stories, seed=f"conditions:{seed}")
    ]
    output = pipeline(condition=conditions, generator=torch.Generator().manual_seed(seed), **options)
    valid = [(text, one) for text, one in zip(output.texts, conditions) if grammar.log_prob(text) > -math.inf]
    obeyed = sum(grammar.condition(grammar.derivation(text)) == one for text, one in valid)
    return {
        "validity": len(valid) / num_stories,
        "obeyed": obeyed / num_stories,
        "calls": output.calls.double().mean().item(),
    }


def wrong_ending(words: Sequence[str], draw: random.Random) -> list[str] | None:
    """The story with a wrong name or a wrong pronoun in its last sentence; `None` where it has neither."""
    ends = [i for i, word in enumerate(words) if word == "."]
    hero = next((word for word in words[: ends[0]] if word in HEROES[0] + HEROES[1]), None)
    changes = []
    for i in range(ends[-2] + 1, ends[-1]):
        if words[i] == hero:
            others = [name for name in HEROES[hero in HEROES[1]] if name != hero]
            changes.append((i, draw.choice(others)))
        elif words[i] in PRONOUNS:
            changes.append((i, PRONOUNS[words[i]]))
    if not changes:
        return None
    place, word = draw.choice(changes)
    return [*words[:place], word, *words[place + 1 :]]


def right_endings(
    model, tokenizer: PreTrainedTokenizerBase, num_pairs: int = 1000, seed: int = 0, **options
) -> dict[str, float]:
    """The share of pairs of which the story is more probable than the same with a wrong ending: the story cloze in
    miniature. `options` go to `score_texts`.
    """
    grammar, draw = StoryGrammar(), random.Random(seed)
    length, right, wrong = model.config.max_length, [], []
    for story in grammar.sample(2 * num_pairs, seed=f"endings:{seed}"):
        ids, words = encode_stories([story], tokenizer, length)
        changed = wrong_ending(words[0], draw)
        if changed is not None and len(right) < num_pairs:
            right.append(ids[0])
            wrong.append(torch.tensor(tokenizer.convert_tokens_to_ids(changed)))
    a, b = (score_texts(model, torch.stack(rows), **options).nats for rows in (right, wrong))
    return {"preferred": (a < b).double().mean().item(), "pairs": len(right)}
