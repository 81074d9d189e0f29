"""Stories of which something is known."""

import random
from collections import Counter

import pytest
import torch

from diffusers_text_nfdm import AutoregressiveConfig, AutoregressiveModel, WordTokenizer
from diffusers_text_nfdm.likelihood import Scores
from diffusers_text_nfdm.metrics import story_conditions
from diffusers_text_nfdm.metrics.story_conditions import (
    TASKS,
    complete_stories,
    encode_stories,
    known_tokens,
    right_endings,
    wrong_ending,
)
from diffusers_text_nfdm.metrics.story_language import paired_choice_p_values
from diffusers_text_nfdm.pipelines import NFDMTextPipelineOutput
from diffusers_text_nfdm.pipelines.samples import decode_texts
from diffusers_text_nfdm.stories import StoryGrammar


GRAMMAR = StoryGrammar()


@pytest.fixture(scope="module")
def tokenizer():
    return WordTokenizer.from_texts(GRAMMAR.sample(3000, seed="vocabulary"), min_count=0, max_length=64)


class Copying:
    """A pipeline that gives back the stories, or the stories with another word where one is unknown."""

    def __init__(self, tokenizer, wrong: bool):
        self.tokenizer, self.wrong = tokenizer, wrong
        self.model = type("Model", (), {"config": type("Config", (), {"max_length": 64})})

    def __call__(self, input_ids, known, batch_size, generator):
        ids = input_ids.clone()
        if self.wrong:
            ids[~known] = self.tokenizer.unk_token_id
        texts = decode_texts(ids, self.tokenizer)
        return NFDMTextPipelineOutput(texts=texts, sequences=ids, calls=torch.full((len(ids),), 3))


@pytest.mark.parametrize("task", TASKS)
def test_the_stories_themselves_are_valid_and_other_words_are_not(task, tokenizer):
    right = complete_stories(Copying(tokenizer, False), task, 20)
    assert right == {"validity": 1.0, "coverage": None, "tested_choices": 0, "same": 1.0, "calls": 3.0}
    assert complete_stories(Copying(tokenizer, True), task, 20)["validity"] == 0


def test_exact_completions_pass_the_test_of_pairs_and_biased_ones_do_not():
    one, other = ([GRAMMAR.derivation(text) for text in GRAMMAR.sample(400, seed=seed)] for seed in ("a", "b"))
    p_values = paired_choice_p_values(one, other, GRAMMAR, num_draws=999)
    assert len(p_values) > 100
    assert sum(p > 0.01 for p in p_values.values()) / len(p_values) > 0.95
    assert not paired_choice_p_values(one, one, GRAMMAR)
    # Texts that shun the option which their stories take most often.
    taken = Counter((s.choice, s.option) for text in one for s in text if len(GRAMMAR.choices[s.choice]) > 1)
    choice, option = taken.most_common(1)[0][0]
    pairs = [(a, b) for a, b in zip(one, other) if not any(s.choice == choice and s.option == option for s in b)]
    assert paired_choice_p_values(*zip(*pairs), GRAMMAR, num_draws=999)[choice] < 0.01


def test_tasks_hide_what_their_names_say(tokenizer):
    _, (words,) = encode_stories(GRAMMAR.sample(1, seed=1), tokenizer, 64)
    sentences = " ".join(words).split(" . ")
    hidden = {
        task: " ".join(w for w, known in zip(words, known_tokens(task, words, random.Random(0))) if not known)
        for task in TASKS
    }
    assert hidden["sentence"] == sentences[2] + " ."
    assert hidden["continuation"].startswith(sentences[1])
    assert len(hidden["word"].split()) == 1


def test_wrong_endings_leave_the_language(tokenizer):
    draw = random.Random(0)
    _, stories = encode_stories(GRAMMAR.sample(200, seed=2), tokenizer, 64)
    changed = [wrong for words in stories if (wrong := wrong_ending(words, draw)) is not None]
    assert len(changed) > 150
    texts = decode_texts(torch.tensor([tokenizer.convert_tokens_to_ids(words) for words in changed]), tokenizer)
    invalid = [GRAMMAR.log_prob(text) == -float("inf") for text in texts]
    assert sum(invalid) / len(invalid) > 0.97


def test_endings_are_compared_by_their_scores(tokenizer, monkeypatch):
    config = AutoregressiveConfig(
        vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    model = AutoregressiveModel(config)
    assert 0 <= right_endings(model, tokenizer, 10)["preferred"] <= 1
    calls = []

    def score(model, ids):
        calls.append(ids)
        return Scores(torch.full((len(ids),), float(len(calls))), torch.zeros(len(ids)))

    monkeypatch.setattr(story_conditions, "score_texts", score)
    assert right_endings(model, tokenizer, 10) == {"preferred": 1.0, "pairs": 10}


def test_an_unknown_task_is_refused(tokenizer):
    with pytest.raises(ValueError, match="`task` is 'rhyme'; it must be one of"):
        complete_stories(Copying(tokenizer, False), "rhyme", 2)
