"""The link of tokens that are drafted side by side: where it starts, what it may change, and what it learns."""

import pytest
import torch
from scipy.stats import chisquare
from tiny import LENGTH, make_config, make_model, make_pipeline, seeded

from diffusers_text_nfdm import DraftVerifyScheduler, NFDMTextPipeline
from diffusers_text_nfdm.networks.two_stream_predictor import Places
from diffusers_text_nfdm.training import fit_token_link


TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 3}
TWO_STREAM = {"prediction_type": "categorical", "predictor": "two_stream", **TOKENS}


def pipeline(**scheduler):
    return make_pipeline("nfdm", DraftVerifyScheduler(block_size=3, **scheduler), torch.float64, **TWO_STREAM)


def with_random_link(pipe):
    pipe.model.add_token_link()
    with torch.no_grad():
        for parameter in pipe.model.predictor.token_link.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=seeded(7), dtype=parameter.dtype))
    return pipe


def chains(number):
    """Texts in which every token follows from the one before it."""
    first = torch.arange(number) % 3 + 4
    texts = torch.stack([first] + [(first + place) % 3 + 4 for place in range(1, LENGTH)], dim=1)
    texts[:, 0] = TOKENS["bos_token_id"]
    return texts


def unseen_losses(model, texts, linked):
    """Cross-entropy of each token of windows of which nothing is seen but the token before, or not even that."""
    positions = torch.arange(1, LENGTH)
    places = Places(positions.expand(len(texts), -1), torch.ones_like(positions).expand(len(texts), -1))
    with torch.no_grad():
        _, clean = model.read_clean(texts)
        states = model.predict_unseen(clean, places).states
        factors = model.linked_factors(states, texts[:, :-1]) if linked else model.next_token_factors(states)
        states, weight, bias = factors
        return -torch.log_softmax(states @ weight.T + bias, -1).gather(-1, texts[:, 1:, None])[:, 1:, 0]


def test_a_new_link_changes_nothing():
    pipe, options = pipeline(), {"num_samples": 8, "generator": seeded(0)}
    before = pipe(**options)
    pipe.model.add_token_link()
    after = pipe(**{**options, "generator": seeded(0)})
    assert torch.equal(before.sequences, after.sequences) and torch.equal(before.calls, after.calls)


def test_whatever_the_link_texts_have_the_distribution_of_the_clean_stream():
    pipe = with_random_link(pipeline(min_p=0.05, contrast=0.5))
    output = pipe(num_samples=4000, batch_size=1000, generator=seeded(0), output_type="seq")
    for word in (4, 5, 6):
        # Of the second and third token, given the first.
        text = torch.tensor([[0, word]])
        states, _ = pipe.model.read_clean(text)
        states, weight, bias = pipe.model.next_token_factors(states)
        scheduler = pipe.scheduler
        scheduler.log_frequencies = torch.log_softmax(pipe.model.token_bias.detach(), -1)
        expected = scheduler.probabilities(states @ weight.T + bias)[0, 1].detach()
        rows = output.sequences[output.sequences[:, 1] == word]
        counts = torch.bincount(rows[:, 2], minlength=len(expected)).double()
        kept = expected > 0
        assert counts[~kept].sum() == 0
        assert chisquare(counts[kept], expected[kept] * len(rows)).pvalue > 1e-4


def test_a_text_with_linked_drafts_does_not_depend_on_its_batch():
    pipe = with_random_link(pipeline())
    together = pipe(num_samples=6, generator=[seeded(i) for i in range(6)])
    alone = torch.cat([pipe(num_samples=1, generator=[seeded(i)]).sequences for i in range(6)])
    assert torch.equal(together.sequences, alone)


def test_fitting_learns_what_follows_what_and_changes_nothing_else():
    model, texts = make_model("nfdm", torch.float32, **TWO_STREAM), chains(64)
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    fit_token_link(model, texts, steps=150, seed=0)
    assert unseen_losses(model, texts, True).mean() < 0.3 * unseen_losses(model, texts, False).mean()
    after = model.state_dict()
    assert all(torch.equal(after[name], weight) for name, weight in weights.items())
    assert {name for name in after if name not in weights} == {
        f"predictor.token_link.{part}.{kind}" for part in ("input", "output") for kind in ("weight", "bias")
    }
    assert [name for name, parameter in model.named_parameters() if parameter.requires_grad] == trained


def test_fitting_is_the_same_again():
    models = [make_model("nfdm", torch.float32, **TWO_STREAM) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    for model in models:
        state = torch.get_rng_state()
        fit_token_link(model, chains(64), steps=5, seed=3)
        assert torch.equal(torch.get_rng_state(), state)
        torch.rand(3)
    first, second = (model.state_dict() for model in models)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_fit_that_breaks_off_leaves_the_rest_of_the_model_trainable():
    model = make_model("nfdm", torch.float32, **TWO_STREAM)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    with pytest.raises(IndexError):
        fit_token_link(model, chains(64) + 100, steps=5)
    assert [name for name, parameter in model.named_parameters() if parameter.requires_grad] == trained


def test_a_pipeline_with_a_link_is_saved_and_loaded(tmp_path):
    pipe = with_random_link(pipeline())
    pipe.save_pretrained(tmp_path)
    loaded = NFDMTextPipeline.from_pretrained(tmp_path, dtype=torch.float64)
    loaded.set_progress_bar_config(disable=True)
    ours, theirs = (one(num_samples=4, generator=seeded(1)) for one in (pipe, loaded))
    assert torch.equal(ours.sequences, theirs.sequences) and torch.equal(ours.calls, theirs.calls)


def test_a_link_needs_a_clean_stream():
    with pytest.raises(ValueError, match="`token_link` is True with `predictor` 'bert'"):
        make_config("nfdm", token_link=True)
    with pytest.raises(ValueError, match="`model` has no clean stream"):
        fit_token_link(make_model("nfdm"), chains(4), steps=1)
