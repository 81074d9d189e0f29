"""Masked diffusion: the any-order bound."""

import math
from itertools import combinations, permutations

import pytest
import torch
from tiny import seeded
from tiny_masked import LENGTH, SIZES, TEXTS, VOCAB, cross_entropies, make_masked

from diffusers_text_nfdm import MaskedDiffusionConfig, MaskedDiffusionModel, exact_likelihood, masked_likelihood
from diffusers_text_nfdm.baseline.masked_modeling import MaskedDraws, mask_tokens


def nats_of_orders(model, block_size=None):
    """`-log p_σ(x)` of all texts for every order σ in which tokens of a block are shown, `(orders, texts)`."""
    size = block_size or LENGTH
    of_blocks = []
    for start in range(0, LENGTH, size):
        positions = [i for i in range(start, start + size) if i > 0]
        orders = []
        for order in permutations(positions):
            nats = torch.zeros(len(TEXTS), dtype=torch.float64)
            for step, position in enumerate(order):
                hidden = torch.zeros(LENGTH, dtype=torch.bool)
                hidden[list(order[step:])] = True
                nats += cross_entropies(model, TEXTS, hidden, size)[:, position]
            orders.append(nats)
        of_blocks.append(torch.stack(orders))
    total = of_blocks[0]
    for block in of_blocks[1:]:
        total = (total[:, None] + block[None]).flatten(0, 1)
    return total


@pytest.mark.parametrize("block_size", [None, 1, 2])
def test_in_every_order_the_probabilities_of_all_texts_sum_to_one(block_size):
    nats = nats_of_orders(make_masked(), block_size)
    assert torch.allclose(torch.exp(-nats).sum(1), torch.ones(len(nats), dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize("block_size", [None, 2])
def test_the_bound_is_the_mean_over_orders_and_above_the_truth(block_size):
    """`E_σ[-log p_σ(x)]`, by Jensen above `-log E_σ[p_σ(x)]`, which is what random order samples from."""
    model = make_masked()
    nats = nats_of_orders(model, block_size)
    truth = -torch.logsumexp(-nats, 0) + math.log(len(nats))
    mean = nats.mean(0)
    assert (mean >= truth - 1e-12).all() and (mean > truth + 1e-3).any()
    estimate = masked_likelihood(model, TEXTS, block_size=block_size, num_draws=256)
    story = estimate.nats_per_story
    assert story.monte_carlo_error < 0.03
    assert story.value == pytest.approx(mean.mean().item(), abs=4 * story.monte_carlo_error)


def test_in_blocks_of_one_token_the_bound_is_the_chain_rule_without_chance():
    model = make_masked(block_size=1)
    estimate = masked_likelihood(model, TEXTS, num_draws=2)
    assert estimate.nats_per_story.monte_carlo_error < 1e-12
    bound = model(TEXTS).bound
    assert torch.exp(-bound).sum().item() == pytest.approx(1, abs=1e-12)
    assert torch.allclose(bound, nats_of_orders(model, 1)[0], rtol=1e-12)
    assert torch.allclose(bound, model(TEXTS, weighted=False).cross_entropy, rtol=1e-12)


@pytest.mark.parametrize("block_size, known", [(None, None), (2, None), (None, 2)])
def test_the_formula_against_all_masks(block_size, known):
    """`E_m E_hidden [n/m Σ_hidden CE]` by enumeration."""
    model, size = make_masked(), block_size or LENGTH
    expected = torch.zeros(len(TEXTS), dtype=torch.float64)
    for start in range(0, LENGTH, size):
        positions = [i for i in range(start, start + size) if i > 0 and i != known]
        n = len(positions)
        for m in range(1, n + 1):
            sets = list(combinations(positions, m))
            for one in sets:
                hidden = torch.zeros(LENGTH, dtype=torch.bool)
                hidden[list(one)] = True
                nats = cross_entropies(model, TEXTS, hidden, size)[:, list(one)].sum(1)
                expected += nats * (n / m) / (n * len(sets))
    given = None
    if known is not None:
        given = (torch.arange(LENGTH) == known).expand(TEXTS.shape)
    else:
        assert torch.allclose(expected, nats_of_orders(model, block_size).mean(0), rtol=1e-12)
    estimate = masked_likelihood(model, TEXTS, block_size=block_size, known=given, num_draws=256)
    story = estimate.nats_per_story
    assert story.value == pytest.approx(expected.mean().item(), abs=4 * story.monte_carlo_error)


def test_a_single_evaluation_is_that_of_its_mask():
    model = make_masked()
    draws = MaskedDraws(torch.tensor([0.5]).double(), torch.tensor([[0.0, 0.9, 0.1, 0.5]]).double())
    output = model(TEXTS[7:8], draws=draws)
    hidden = torch.tensor([False, False, True, True])
    nats = cross_entropies(model, TEXTS[7:8], hidden)[0, 2:].sum()
    assert output.bound.item() == pytest.approx(3 / 2 * nats.item(), rel=1e-12)
    # Of three tokens two are hidden on average.
    assert output.cross_entropy.item() == pytest.approx(3 / 2 * nats.item(), rel=1e-12)
    few = model(TEXTS[7:8], draws=draws, weighted=False, largest_share=0.2)
    nats = cross_entropies(model, TEXTS[7:8], torch.tensor([False, False, True, False]))[0, 2]
    assert few.bound is None and few.loss.item() == pytest.approx(3 * nats.item(), rel=1e-12)


@pytest.mark.parametrize("block_size", [None, 1, 4])
def test_all_numbers_of_hidden_tokens_and_all_tokens_are_as_frequent(block_size):
    unknown = torch.ones(24_000, 8, dtype=torch.bool)
    unknown[:, 0] = False
    draws = MaskedDraws(torch.rand(24_000, generator=seeded(0)), torch.rand(24_000, 8, generator=seeded(1)))
    masking = mask_tokens(unknown, draws, block_size)
    assert not masking.hidden[:, 0].any()
    size = block_size or 8
    for block in range(8 // size):
        part = slice(block * size, (block + 1) * size)
        n = int(unknown[0, part].sum())
        m = masking.hidden[:, part].sum(1)
        share = torch.bincount(m, minlength=n + 1)[1:] / 24_000
        assert m.min() == min(n, 1) and torch.allclose(share, torch.full((n,), 1 / max(n, 1)), atol=0.015)
        of_tokens = masking.hidden[:, part][:, unknown[0, part]].float().mean(0)
        assert torch.allclose(of_tokens, torch.full((n,), (n + 1) / (2 * max(n, 1))), atol=0.015)
        if n:
            assert torch.allclose(masking.weights[:, part][:, -1], n / m)
    assert masking.mean_hidden[0] == pytest.approx(masking.hidden.sum(1).float().mean().item(), abs=0.05)
    few = mask_tokens(unknown, draws, None, 0.2)
    assert set(few.hidden.sum(1).tolist()) == {1, 2} and few.mean_hidden[0] == 1.5


def test_a_hidden_token_is_not_seen_and_blocks_see_clean_tokens_before_them():
    model = make_masked(vocab_size=9, max_length=8)
    ids = torch.randint(4, 9, (1, 8), generator=seeded(0))
    ids[0, 0] = 0
    hidden = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1], dtype=torch.bool)
    for size, position, seen_by in ((8, 3, []), (8, 2, [1, 3, 5, 7]), (4, 3, [5, 7]), (4, 6, [5, 7])):
        changed = ids.clone()
        changed[0, position] = 4 + (ids[0, position] - 3) % 5
        logits = [torch.exp(-cross_entropies(model, one, hidden, size))[0] for one in (ids, changed)]
        moved = [i for i in (1, 3, 5, 7) if i != position and abs(logits[0][i] - logits[1][i]) > 1e-9]
        assert moved == seen_by


def test_the_clean_stream_is_an_autoregressive_model():
    model = make_masked()
    estimate = exact_likelihood(model, TEXTS)
    output = model(TEXTS, next_token_weight=0.5, next_token_only=True)
    assert torch.exp(-output.next_token).sum().item() == pytest.approx(1, abs=1e-12)
    assert estimate.nats_per_story.value == pytest.approx(output.next_token.mean().item(), rel=1e-12)
    assert estimate.nats_per_story.monte_carlo_error == 0 and output.bound is None
    assert output.loss.item() == pytest.approx(0.5 * output.next_token.mean().item())
    both = model(TEXTS, block_size=2, next_token_weight=0.5)
    assert both.loss.item() == pytest.approx((both.bound + 0.5 * both.next_token).mean().item())


@pytest.mark.parametrize("options", [{}, {"weighted": False, "largest_share": 0.4}, {"block_size": 2}])
def test_gradients_reach_every_parameter_and_are_those_of_the_loss(options):
    model, draws = make_masked(), MaskedDraws(torch.rand(64).double(), torch.rand(64, LENGTH).double())
    output = model(TEXTS, draws=draws, **options)
    assert output.non_finite_terms() is None
    output.loss.backward()
    for name, parameter in model.named_parameters():
        assert torch.isfinite(parameter.grad).all() and parameter.grad.abs().sum() > 0, name
    bias, step = model.predictor.output.bias, 1e-5
    losses = []
    for sign in (1, -1):
        with torch.no_grad():
            bias[1] += sign * step
            losses.append(model(TEXTS, draws=draws, **options).loss.item())
            bias[1] -= sign * step
    assert bias.grad[1].item() == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-5)


def test_starts_at_the_unigram_frequencies():
    model = MaskedDiffusionModel(MaskedDiffusionConfig(vocab_size=6, max_length=5, initializer_range=1e-8, **SIZES))
    model.set_token_frequencies(torch.tensor([7.0, 3.0, 0.0, 5.0, 1.0, 5.0]))
    ids = torch.tensor([[0, 5, 1, 3, 3]])
    expected = -sum(math.log(count / 27) for count in (6, 4, 6, 6))
    estimate = masked_likelihood(model, ids, num_draws=64)
    assert estimate.nats_per_story.value == pytest.approx(expected, rel=0.05)


def test_units_are_those_of_our_bound():
    model = make_masked()
    estimate = masked_likelihood(model, TEXTS[:3], torch.tensor([3, 2, 3]), torch.tensor([9, 4, 14]), batch_size=2)
    story = estimate.nats_per_story.value
    assert estimate.nats_per_position.value == pytest.approx(story / LENGTH)
    assert estimate.nats_per_token.value == pytest.approx(3 * story / 8)
    assert estimate.bits_per_character.value == pytest.approx(3 * story / 27 / math.log(2))
    assert estimate.terms == {"masked": estimate.nats_per_story} and estimate.num_function_evaluations == 24
    assert estimate == masked_likelihood(
        model, TEXTS[:3], torch.tensor([3, 2, 3]), torch.tensor([9, 4, 14]), batch_size=2
    )


KNOWN = torch.zeros(2, LENGTH, dtype=torch.bool)


@pytest.mark.parametrize(
    ("ids", "options", "message"),
    [
        (torch.zeros(2, 5, dtype=torch.long), {}, r"has shape \(2, 5\); it must be \(batch, 4\)"),
        (TEXTS[:2] + VOCAB, {}, r"has values from 4 to 5; token ids must be in \[0, 3\]"),
        (TEXTS[:2, [1, 0, 2, 3]] + 1, {}, "every row must begin with START, 0"),
        (TEXTS[:2], {"block_size": 3}, "`block_size` is 3; it must be an integer that divides the 4 tokens"),
        (TEXTS[:2], {"known": KNOWN[:1]}, r"`known` has shape \(1, 4\)"),
        (TEXTS[:2], {"known": torch.arange(LENGTH).expand(2, -1) > 0}, "nothing is left to model"),
        (TEXTS[:2], {"largest_share": 0.5}, "a bound needs all shares"),
        (TEXTS[:2], {"largest_share": 0.0, "weighted": False}, r"`largest_share` is 0.0; it must be in \(0, 1\]"),
        (TEXTS[:2], {"next_token_only": True}, "needs a `next_token_weight` above 0"),
    ],
)
def test_bad_input_is_refused_with_its_values(ids, options, message):
    with pytest.raises(ValueError, match=message):
        make_masked()(ids, **options)


def test_bad_estimates_are_refused():
    with pytest.raises(ValueError, match="`num_draws` is 3"):
        masked_likelihood(make_masked(), TEXTS, num_draws=3)
    with pytest.raises(ValueError, match="`block_size` is 3"):
        masked_likelihood(make_masked(), TEXTS, block_size=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_size": 18}, "`hidden_size` is 18 with `num_attention_heads` 2; it must be a multiple of 4"),
        ({"num_hidden_layers": 0}, "`num_hidden_layers` is 0"),
        ({"block_size": 3}, "`block_size` is 3"),
        ({"max_length": 1}, "`max_length` is 1"),
        ({"bos_token_id": 1}, "must be three different ids"),
        ({"checkpoint_format": 99}, "`checkpoint_format` is 99"),
    ],
)
def test_bad_configurations_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MaskedDiffusionConfig(**{"vocab_size": VOCAB, "max_length": LENGTH, **SIZES, **options})


def test_a_value_that_is_not_finite_is_named():
    model = make_masked()
    with torch.no_grad():
        model.token_bias[2] = float("nan")
    assert model(TEXTS[:2]).non_finite_terms() == "bound is nan"
