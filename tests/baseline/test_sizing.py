"""A baseline of the size of a diffusion model."""

import pytest
from tiny import MODELS, make_config

from diffusers_text_nfdm.baseline import AutoregressiveConfig, count_parameters, matching_config
from diffusers_text_nfdm.training import TrainingArguments
from diffusers_text_nfdm.training.arguments import CONFIGS


STORIES_VOCABULARY = 494


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_matched(name):
    larger = {"vocab_size": 100, "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 3}
    config = make_config(name, **larger)
    match = matching_config(config)
    assert count_parameters(match) == pytest.approx(count_parameters(config), rel=0.02)
    assert (match.hidden_size, match.vocab_size, match.max_length) == (64, 100, 5)
    assert match.intermediate_size % 8 == 0


@pytest.mark.parametrize(
    ("recipe", "like", "vocabulary"),
    [
        ("stories-autoregressive", "stories-tiny", STORIES_VOCABULARY),
        ("rocstories-autoregressive", "rocstories-nfdm", 10767),
    ],
)
def test_recipes_are_as_large_as_those_they_are_compared_with(recipe, like, vocabulary):
    baseline, diffusion = TrainingArguments.from_config(recipe), TrainingArguments.from_config(like)
    config = CONFIGS[diffusion.model_type](vocab_size=vocabulary, **diffusion.model_config)
    target = count_parameters(config)
    if like == "stories-tiny":
        assert target == 1_182_066
    ours = AutoregressiveConfig(vocab_size=vocabulary, **baseline.model_config)
    assert count_parameters(ours) == pytest.approx(target, rel=0.01)
    match = matching_config(config)
    assert (ours.num_hidden_layers, ours.intermediate_size) == (match.num_hidden_layers, match.intermediate_size)
    same = ("dataset", "batch_size", "max_length", "use_muon", "ema_decay")
    assert [getattr(baseline, name) for name in same] == [getattr(diffusion, name) for name in same]
