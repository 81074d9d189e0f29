"""Jumps: what decides a token, what a state sees, and the two limits in which a jump is the clean stream."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest
from tiny import LENGTH, VOCAB, gradients, make_config, make_ids, make_model, seeded

from diffusers_text_nfdm import objective
from diffusers_text_nfdm.models.token_choice import draw_from, noise_of
from diffusers_text_nfdm.networks.token_order import order_by_likeness
from diffusers_text_nfdm.networks.two_stream_predictor import Places, TextCache


TWO_STREAM = {"predictor": "two_stream", "prediction_type": "categorical", "jumps": True}
POSITIONS = torch.arange(1, LENGTH)


def jumping_model(**options):
    model = make_model("nfdm", **TWO_STREAM, **options)
    model.token_order.copy_(torch.randperm(VOCAB, generator=seeded(3)))
    return model


def places(size: int) -> Places:
    return Places(POSITIONS, POSITIONS - (POSITIONS - 1) % size)


def logits(model, input_ids, noise, size):
    return model.jump(noise, model.read_clean(input_ids)[1], places(size)).logits


@given(st.integers(0, 2**31), st.integers(2, 40))
@settings(max_examples=50, deadline=None)
def test_the_noise_of_a_token_is_noise_that_draws_it(seed, vocab):
    generator = seeded(seed)
    weights = torch.rand(20, vocab, generator=generator, dtype=torch.float64) ** 4 + 1e-9
    order = torch.randperm(vocab, generator=generator)
    tokens = torch.randint(vocab, (20,), generator=generator)
    uniforms = torch.rand(20, generator=generator, dtype=torch.float64).clamp(1e-3, 1 - 1e-3)
    noise = noise_of(weights, tokens, uniforms, order)
    assert ((noise >= 0) & (noise <= 1)).all()
    assert torch.equal(draw_from(weights, noise, order), tokens)


def test_over_draws_of_the_token_its_noise_is_uniform():
    weights = torch.tensor([0.5, 0.2, 0.2, 0.1], dtype=torch.float64).expand(20_000, -1)
    uniforms, order = torch.rand(2, 20_000, generator=seeded(0), dtype=torch.float64), torch.tensor([2, 0, 3, 1])
    tokens = draw_from(weights, uniforms[0])
    assert kstest(noise_of(weights, tokens, uniforms[1], order).numpy(), "uniform").pvalue > 1e-4


@pytest.mark.parametrize("size", [2, 3, LENGTH])
def test_a_token_sees_the_noise_of_those_before_it_in_its_window_and_the_clean_tokens_before_that(size):
    model, input_ids = jumping_model(), make_ids(2)
    noise = torch.rand(2, LENGTH - 1, generator=seeded(1), dtype=torch.float64)
    before = logits(model, input_ids, noise, size)
    starts = places(size).starts
    for j in range(LENGTH - 1):
        sees = (POSITIONS > POSITIONS[j]) & (starts == starts[j])
        other = noise.clone()
        other[:, j] = (noise[:, j] + 0.37) % 1
        changed = (logits(model, input_ids, other, size) != before).any(-1).any(0)
        assert torch.equal(changed, sees)
        other = input_ids.clone()
        other[:, j + 1] = (input_ids[:, j + 1] + 1) % VOCAB
        changed = (logits(model, other, noise, size) != before).any(-1).any(0)
        assert torch.equal(changed, starts > POSITIONS[j])


def test_all_windows_in_one_call_are_as_each_alone():
    model, input_ids = jumping_model(), make_ids(2)
    noise = torch.rand(2, LENGTH - 1, generator=seeded(1), dtype=torch.float64)
    together = logits(model, input_ids, noise, 2)
    for start in (1, 3):
        _, clean = model.read_clean(input_ids[:, :start])
        own = torch.arange(start, start + 2)
        alone = model.jump(noise[:, own - 1], clean, Places(own, torch.full_like(own, start))).logits
        assert torch.allclose(together[:, own - 1], alone, atol=1e-12)


def test_clean_tokens_and_the_noise_behind_them_are_read_in_one_pass_as_in_two():
    """At places of each text's own, after reading what is right and, behind that, what is not."""
    model, input_ids = jumping_model(), make_ids(2)
    noise = torch.rand(2, LENGTH, generator=seeded(1), dtype=torch.float64)
    predictor, starts = model.predictor, torch.tensor([3, 2])
    cache = TextCache(predictor, 2, LENGTH)
    with torch.no_grad():
        clean_inputs = predictor.clean_inputs(input_ids, model.embed(input_ids))
        noise_inputs = predictor.noise_inputs(noise)
        positions = torch.arange(LENGTH).expand(2, -1)
        wrong = torch.where((positions < starts[:, None] - 1)[..., None], clean_inputs, noise_inputs)
        predictor.read_on(wrong, positions, cache)
        # The last clean token before the window, and the noise of two tokens.
        positions = starts[:, None] - 1 + torch.arange(3)
        index = positions[..., None].expand(-1, -1, clean_inputs.shape[-1])
        first = (positions < starts[:, None])[..., None]
        inputs = torch.where(first, clean_inputs.gather(1, index), noise_inputs.gather(1, index))
        states = predictor.read_on(inputs, positions, cache)
        for i, start in enumerate(starts.tolist()):
            text, own = input_ids[i : i + 1, :start], torch.arange(start, start + 3)
            clean_states, clean = model.read_clean(text)
            own_noise = torch.nn.functional.pad(noise, (0, 1))[i : i + 1, own]
            jump = predictor.jump(own_noise, clean, Places(own, torch.full_like(own, start)))
            assert torch.allclose(states[i], jump[0], atol=1e-12)
            assert torch.allclose(states[i, 0], clean_states[0, -1], atol=1e-12)


def clean_logits(model, input_ids):
    states, weight, bias = model.next_token_factors(model.read_clean(input_ids)[0][:, :-1])
    return states @ weight.T + bias


def test_a_jump_over_one_token_is_the_clean_stream():
    model, input_ids = jumping_model(), make_ids(3)
    noise = torch.rand(3, LENGTH - 1, generator=seeded(1), dtype=torch.float64)
    assert torch.allclose(logits(model, input_ids, noise, 1), clean_logits(model, input_ids), atol=1e-12)


def test_the_loss_is_that_of_a_jump_by_the_noise_that_leads_to_the_text():
    model, input_ids = jumping_model(), make_ids(3)
    uniforms = torch.rand(3, LENGTH, generator=seeded(2), dtype=torch.float64)
    starts = torch.tensor([[0, 0, 2, 2, 2]])
    losses, next_token = objective.jump_losses(model, input_ids, starts, uniforms)
    targets, weights = input_ids[:, 1:], torch.softmax(clean_logits(model, input_ids), -1)
    noise = noise_of(weights, targets, uniforms[:, 1:], model.token_order)
    assert torch.equal(draw_from(weights, noise, model.token_order), targets)
    _, clean = model.read_clean(input_ids)
    log_p = torch.log_softmax(model.jump(noise, clean, Places(POSITIONS, torch.tensor([1, 2, 2, 2]))).logits, -1)
    assert torch.allclose(losses, -log_p.gather(-1, targets[..., None])[..., 0])
    assert torch.allclose(next_token, -weights.gather(-1, targets[..., None])[..., 0].log())


def test_a_step_on_jumps_trains_the_predictor_and_no_embedding():
    model, input_ids = jumping_model(clock="ramp:2"), make_ids(4)
    output = model(input_ids, jumps=True, next_token_weight=0.5, generator=seeded(0))
    names = set(gradients(output.loss, model))
    assert {"predictor.noise_embedding.linear_1.weight", "predictor.noise_embedding.linear_2.bias"} <= names
    assert not any(name.startswith(("forward_process", "embeddings", "time_sampler")) for name in names)
    assert output.jump.shape == output.next_token.shape == (4,)


def test_jumps_are_refused_where_there_are_none():
    with pytest.raises(ValueError, match="`jumps` is True, but this model has no `jumps`"):
        make_model("nfdm", predictor="two_stream", prediction_type="categorical")(make_ids(2), jumps=True)
    with pytest.raises(ValueError, match="`known` has no meaning for jumps"):
        jumping_model()(make_ids(2), torch.eye(2, LENGTH, dtype=torch.bool), jumps=True)
    with pytest.raises(ValueError, match="`jumps` is True with `predictor` 'bert'"):
        make_config("nfdm", jumps=True)


def test_an_order_by_likeness_holds_every_token_once_and_keeps_clusters_together():
    centres = 10 * torch.randn(4, 6, generator=seeded(0))
    kinds = torch.randint(4, (60,), generator=seeded(1))
    order = order_by_likeness(centres[kinds] + torch.randn(60, 6, generator=seeded(2)))
    assert sorted(order.tolist()) == list(range(60))
    assert (kinds[order].diff() != 0).sum() == 3
    assert order_by_likeness(torch.ones(5, 3)).sort().values.tolist() == list(range(5))
