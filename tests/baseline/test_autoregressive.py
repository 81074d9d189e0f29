"""The autoregressive baseline: an exact, normalised likelihood."""

import itertools
import math

import pytest
import torch
from tiny_baseline import END, PAD, SIZES, START, UNK, make_baseline, texts
from torch.nn.functional import log_softmax

from diffusers_text_nfdm import AutoregressiveConfig, AutoregressiveModel, exact_likelihood


def test_likelihood_is_the_sum_of_single_steps():
    model = make_baseline()
    for row in ((4, 5, UNK, END), (5, END), (END,), (4, 4, 4, 5)):
        expected, ids = 0.0, [START]
        for token in row:
            logits = model.predictor(torch.tensor([ids])).last_hidden_state[0, -1] @ model.predictor.wte.weight.T
            logits = logits + model.token_bias
            logits[[START, PAD]] = -math.inf
            expected -= log_softmax(logits, -1)[token].item()
            ids.append(token)
        assert model(texts(row)).bound.item() == pytest.approx(expected, rel=1e-12)


def test_probabilities_of_all_sequences_sum_to_one():
    """Texts that end at each of the positions, and those that never do."""
    model, words = make_baseline(), (UNK, 4, 5)
    rows = [(*body, END) for length in range(4) for body in itertools.product(words, repeat=length)]
    rows += itertools.product(words, repeat=4)
    total = torch.exp(-model(texts(*rows)).bound).sum().item()
    assert total == pytest.approx(1, abs=1e-12)
    assert torch.exp(-model(texts(*rows[:-1])).bound).sum().item() < 1 - 1e-6


def test_padding_costs_nothing_and_is_not_seen():
    model = make_baseline(max_length=9)
    short, long = texts((4, 5, END), length=4), texts((4, 5, END), length=9)
    littered = long.clone()
    littered[:, 4:] = torch.tensor([END, START, 4, PAD, 5])
    values = [model(ids).bound.item() for ids in (short, long, littered)]
    assert values == pytest.approx([values[0]] * 3, rel=1e-12)
    other = model(torch.cat([long, texts((5, 5, 5, 4, END), length=9)])).bound
    assert other[0].item() == pytest.approx(values[0], rel=1e-12) and other[1].item() != pytest.approx(values[0])


def test_gradients_reach_every_parameter_and_are_finite():
    model = make_baseline()
    output = model(texts((4, 5, END), (UNK, END)))
    assert output.loss.item() == pytest.approx(output.bound.mean().item()) and output.accuracy.shape == (2,)
    output.loss.backward()
    for name, parameter in model.named_parameters():
        assert torch.isfinite(parameter.grad).all() and parameter.grad.abs().sum() > 0, name


def test_cached_logits_are_those_of_the_whole_prefix():
    model, ids = make_baseline(), texts((4, 5, UNK, END), (5, 5, 4, 4))
    whole, _ = model.token_logits(ids)
    cache, parts = None, []
    for position in range(5):
        logits, cache = model.token_logits(ids[:, position : position + 1], cache, use_cache=True)
        parts.append(logits)
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-12)


def test_exact_likelihood_has_the_units_of_the_bound_and_no_monte_carlo_error():
    model = make_baseline()
    ids = texts((4, 5, END), (UNK, END), (4, 4, 4, END))
    tokens, chars = torch.tensor([3, 2, 4]), torch.tensor([9, 4, 14])
    estimate = exact_likelihood(model, ids, tokens, chars, batch_size=2)
    nats = torch.cat([model(row[None]).bound for row in ids])
    assert estimate.nats_per_story.value == pytest.approx(nats.mean().item(), rel=1e-12)
    assert estimate.nats_per_position.value == pytest.approx(nats.mean().item() / 5, rel=1e-12)
    assert estimate.nats_per_token.value == pytest.approx(nats.sum().item() / 9, rel=1e-12)
    assert estimate.bits_per_character.value == pytest.approx(nats.sum().item() / 27 / math.log(2), rel=1e-12)
    assert estimate.terms.keys() == {"autoregressive"} and estimate.terms["autoregressive"] == estimate.nats_per_story
    story = estimate.nats_per_story
    assert story.monte_carlo_error == 0 and story.dataset_error == pytest.approx(nats.std().item() / math.sqrt(3))
    assert estimate.num_function_evaluations == 3 and estimate.protocol["quantity"].startswith("-log p(x), exact")
    assert exact_likelihood(model, ids).nats_per_token is None


def test_dropout_is_off_while_measuring_and_on_again_after():
    model = make_baseline(dropout=0.5).train()
    ids = texts((4, 5, END))
    assert exact_likelihood(model, ids) == exact_likelihood(model, ids) and model.training


def test_starts_at_the_unigram_frequencies():
    """With embeddings near zero the first guess is b, which is the log of the frequencies."""
    model = AutoregressiveModel(AutoregressiveConfig(vocab_size=6, max_length=5, initializer_range=1e-8, **SIZES))
    model.set_token_frequencies(torch.tensor([7.0, 3.0, 0.0, 5.0, 1.0, 5.0]))
    # START and PAD are never predicted: 4 + 1 + 2 + 6 pseudo-counts are left.
    expected = -math.log(6 / 13) - math.log(4 / 13)
    assert model.eval()(texts((5, END))).bound.item() == pytest.approx(expected, rel=1e-4)


def test_given_embeddings_are_taken_at_length_one():
    model = AutoregressiveModel(AutoregressiveConfig(vocab_size=6, max_length=5, **SIZES))
    table = torch.randn(6, 16)
    model.set_embeddings(table)
    ours = model.get_input_embeddings().weight
    assert torch.allclose(ours.norm(dim=-1), torch.ones(6)) and torch.allclose(
        ours * table.norm(dim=-1)[:, None], table
    )


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (
            torch.zeros(2, 6, dtype=torch.long),
            r"has shape \(2, 6\); it must be \(batch, seq\) .* 2 to 5 positions",
        ),
        (torch.zeros(5, dtype=torch.long), r"has shape \(5,\)"),
        (texts((6, END)), "has values from 0 to 6; token ids must be in \\[0, 5\\]"),
        (texts((4, END))[:, 1:], "every row must begin with START, 0"),
        (texts((4, END), (4, PAD, END)), "START or PAD before END in row 1"),
        (texts((4, START, END)), "START or PAD before END in row 0"),
    ],
)
def test_bad_ids_are_refused_with_their_values(ids, message):
    for call in (make_baseline(), lambda ids: exact_likelihood(make_baseline(), ids)):
        with pytest.raises(ValueError, match=message if ids.ndim == 2 else "has shape"):
            call(ids)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_size": 15}, "`hidden_size` is 15 with `num_attention_heads` 2"),
        ({"num_hidden_layers": 0}, "`num_hidden_layers` is 0; it must be an integer of at least 1"),
        ({"dropout": 1.0}, r"`dropout` is 1.0; it must be in \[0, 1\)"),
        ({"bos_token_id": 1}, "must be three different ids"),
        ({"pad_token_id": 6}, "must be three different ids"),
        ({"bos_token_id": None}, "bos_token_id|three different ids"),
        ({"checkpoint_format": 99}, "`checkpoint_format` is 99"),
    ],
)
def test_bad_configurations_are_refused(options, message):
    with pytest.raises(Exception, match=message) as caught:
        AutoregressiveConfig(**{"vocab_size": 6, "max_length": 5, **SIZES, **options})
    assert isinstance(caught.value, ValueError) or "bos_token_id" in str(caught.value)
