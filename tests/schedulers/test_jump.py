"""Texts by jumps, alone and verified: the noise decides them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from tiny import make_pipeline, seeded

from diffusers_text_nfdm import DraftVerifyScheduler, JumpScheduler, jump_likelihood
from diffusers_text_nfdm.likelihood.jumps import jump_nats
from diffusers_text_nfdm.models.token_choice import draw_from, token_probabilities
from diffusers_text_nfdm.pipelines.jumps import token_noise


LENGTH = 9
OPTIONS = {
    "prediction_type": "categorical", "predictor": "two_stream", "jumps": True, "max_length": LENGTH,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 3,
}  # fmt: skip


def pipeline(scheduler, **options):
    pipe = make_pipeline("nfdm", scheduler, torch.float64, **{**OPTIONS, **options})
    pipe.model.token_order.copy_(torch.randperm(len(pipe.model.token_order), generator=seeded(5)))
    return pipe


def latents(n, seed=0):
    return torch.randn(n, LENGTH, 4, generator=seeded(seed), dtype=torch.float64)


@torch.no_grad()
def token_by_token(pipe, noise, min_p=0.0, beginnings=None, known=None):
    """The clean stream's texts, each token drawn by its noise, but those of beginnings."""
    model, scheduler = pipe.model, JumpScheduler(min_p=min_p)
    text = torch.full(noise.shape, 3)
    text[:, 0] = 0
    for i in range(1, LENGTH):
        states, weight, bias = model.next_token_factors(model.read_clean(text[:, :i])[0][:, -1])
        text[:, i] = scheduler.draw_by_noise(states @ weight.T + bias, noise[:, i], model.token_order)
        if known is not None:
            text[:, i] = torch.where(known[:, i], beginnings[:, i], text[:, i])
    ended = (text == 1).cumsum(1) - (text == 1).long() > 0
    return text.masked_fill(ended, 3)


def test_what_is_cut_off_is_drawn_anew_and_the_rest_stays_what_its_noise_decides():
    scheduler, order = JumpScheduler(min_p=0.2), torch.randperm(12, generator=seeded(1))
    logits = 1.5 * torch.randn(12, generator=seeded(0), dtype=torch.float64).expand(40_000, -1)
    noise = torch.rand(40_000, generator=seeded(2), dtype=torch.float64)
    tokens = scheduler.draw_by_noise(logits, noise, order)
    kept = scheduler.probabilities(logits[0])
    whole = draw_from(token_probabilities(logits), noise, order)
    assert 2 < (kept > 0).sum() < 10 and (kept[tokens] > 0).all()
    stays = kept[whole] > 0
    assert torch.equal(tokens[stays], whole[stays]) and not stays.all()
    counts = torch.bincount(tokens, minlength=12).double()[kept > 0]
    assert chisquare(counts, kept[kept > 0] * 40_000).pvalue > 1e-4


@pytest.mark.parametrize("block_size", [2, 3, 5])
def test_verified_jumps_are_the_clean_streams_texts_with_the_same_noise(block_size):
    pipe, z = pipeline(DraftVerifyScheduler(block_size, min_p=0.05, drafts="jumps")), latents(40)
    output = pipe(latents=z, output_type="seq")
    assert torch.equal(output.sequences, token_by_token(pipe, token_noise(z), min_p=0.05))
    ended = (output.sequences == 1).cumsum(1) - (output.sequences == 1).long() > 0
    written = (~ended).sum(1) - 1
    assert (output.calls * block_size >= written).all() and (output.calls <= written).all()


@pytest.fixture(scope="module")
def verified():
    return pipeline(DraftVerifyScheduler(3, min_p=0.05, drafts="jumps"))


def beginnings(lengths, seed):
    """Token ids without END, of which the first `lengths` are known, and noise for the others."""
    ids = torch.randint(4, 11, (len(lengths), LENGTH), generator=seeded(seed))
    ids[:, 0] = 0
    return ids, torch.arange(LENGTH) < torch.tensor(lengths)[:, None], latents(len(lengths), seed)


@given(st.lists(st.integers(1, LENGTH - 1), min_size=1, max_size=4), st.integers(2, LENGTH), st.integers(0, 2**31))
@settings(max_examples=15, deadline=None)
def test_verified_jumps_continue_any_beginnings_as_the_clean_stream_does(verified, lengths, block_size, seed):
    verified.scheduler = DraftVerifyScheduler(block_size, min_p=0.05, drafts="jumps")
    ids, known, z = beginnings(lengths, seed)
    together = verified(input_ids=ids, known=known, latents=z, output_type="seq")
    assert torch.equal(together.sequences, token_by_token(verified, token_noise(z), 0.05, ids, known))
    # A text and its calls do not depend on the batch.
    for i in range(len(lengths)):
        row = slice(i, i + 1)
        alone = verified(input_ids=ids[row], known=known[row], latents=z[row], output_type="seq")
        assert torch.equal(alone.sequences[0], together.sequences[i]) and alone.calls[0] == together.calls[i]


def test_a_call_of_verified_jumps_is_one_pass_over_the_network(verified):
    passes = []
    hook = verified.model.predictor.layers[0].register_forward_hook(lambda *_: passes.append(1))
    output = verified(num_samples=8, generator=seeded(0), output_type="seq", return_trajectory=True)
    hook.remove()
    assert len(passes) == output.num_function_evaluations == output.calls.max() == len(output.trajectory)
    assert torch.equal(output.trajectory[-1][output.sequences != 3], output.sequences[output.sequences != 3])


@pytest.mark.parametrize("most", [1, 2, 3])
def test_verified_jumps_that_are_cut_off_are_the_beginnings_of_their_texts(verified, most):
    verified.scheduler = DraftVerifyScheduler(3, min_p=0.05, drafts="jumps")
    whole, cut = (
        verified(latents=latents(20), num_inference_steps=calls, output_type="seq") for calls in (LENGTH, most)
    )
    written = cut.sequences != 3
    assert torch.equal(cut.sequences[written], whole.sequences[written])
    assert torch.equal(cut.calls, whole.calls.clamp_max(most))
    # The first call has no draft to verify, so it writes one token after START.
    assert (written.sum(1) <= 2 + 3 * (most - 1)).all() and (written.sum(1) > most).sum() > 0


def test_a_draft_of_the_clean_stream_itself_is_accepted_up_to_the_first_other_token():
    scheduler, order = DraftVerifyScheduler(drafts="jumps"), torch.randperm(12, generator=seeded(1))
    logits = torch.randn(4, 6, 12, generator=seeded(0), dtype=torch.float64)
    noise = torch.rand(4, 6, generator=seeded(2), dtype=torch.float64)
    right = scheduler.draw_by_noise(logits, noise, order)
    for wrong in range(4):
        draft = right[:, :3].clone()
        draft[:, wrong:] = (draft[:, wrong:] + 1) % 12
        accepted, tokens = scheduler.step_by_noise(draft, logits, noise, order)
        assert (accepted == wrong).all() and torch.equal(tokens, right)


def test_jumps_over_one_token_are_the_clean_streams_texts():
    pipe, z = pipeline(JumpScheduler(jump_length=1)), latents(20)
    assert torch.equal(pipe(latents=z, output_type="seq").sequences, token_by_token(pipe, token_noise(z)))


def test_as_many_calls_as_tokens_correct_every_guess_of_an_untrained_model():
    """Before training a further call is a step of the fixed-point iteration, which ends at the clean stream's text."""
    pipe, z = pipeline(JumpScheduler(jump_length=LENGTH, calls_per_jump=LENGTH)), latents(20)
    for name in ("linear_2.weight", "linear_2.bias"):
        pipe.model.predictor.noise_embedding.get_parameter(name).data.zero_()
    pipe.model.predictor.guessed.data.zero_()
    output = pipe(latents=z, num_inference_steps=LENGTH, output_type="seq")
    assert torch.equal(output.sequences, token_by_token(pipe, token_noise(z)))


@pytest.mark.parametrize("calls_per_jump", [1, 2])
def test_the_likelihood_of_jumps_is_that_of_their_texts(calls_per_jump):
    """Texts of three tokens after START, by one jump: their frequencies, and the mean of `Π q` over the noise."""
    pipe = pipeline(JumpScheduler(jump_length=3, calls_per_jump=calls_per_jump), max_length=4, eos_token_id=2)
    output = pipe(num_samples=6000, batch_size=2000, generator=seeded(0), output_type="seq")
    # END is never drawn before the last place, so that no text is cut.
    whole = output.sequences[(output.sequences[:, 1:3] != 2).all(1)]
    texts, counts = whole.unique(dim=0, return_counts=True)
    common = counts >= 25
    texts, counts = texts[common], counts[common].double()
    generator = seeded(1)
    with torch.no_grad():
        draws = [jump_nats(pipe.model, texts, 3, calls_per_jump, generator) for _ in range(400)]
    nats = torch.stack(draws, dim=1)
    p = (-nats).exp().mean(1)
    estimate = jump_likelihood(pipe.model, texts, jump_length=3, calls_per_jump=calls_per_jump, num_draws=40)
    assert abs(estimate.nats_per_story.value - nats.mean()) < 6 * estimate.nats_per_story.monte_carlo_error
    assert len(texts) > 20
    assert chisquare(counts, p / p.sum() * counts.sum()).pvalue > 1e-4
    # Jensen.
    assert (nats.mean(1) >= -p.log()).all()


def test_a_text_does_not_depend_on_its_batch_and_beginnings_are_kept():
    pipe = pipeline(JumpScheduler(jump_length=3, calls_per_jump=2))
    ids = torch.randint(4, 11, (6, LENGTH), generator=seeded(1))
    ids[:, 0] = 0
    known = torch.arange(LENGTH) < torch.tensor([1, 2, 3, 4, 5, 8])[:, None]
    generators = [seeded(i) for i in range(6)]
    together = pipe(input_ids=ids, known=known, generator=generators, output_type="seq")
    assert torch.equal(together.sequences[known], ids[known])
    for i in range(6):
        alone = pipe(input_ids=ids[i : i + 1], known=known[i : i + 1], generator=[seeded(i)], output_type="seq")
        assert torch.equal(alone.sequences[0], together.sequences[i])
        assert alone.calls[0] == together.calls[i]


def test_calls_are_what_was_asked_for():
    pipe = pipeline(JumpScheduler())
    assert pipe(num_samples=8, num_inference_steps=2, generator=seeded(0)).num_function_evaluations == 2
    pipe.scheduler = JumpScheduler(calls_per_jump=2)
    output = pipe(num_samples=8, num_inference_steps=4, generator=seeded(0), return_trajectory=True)
    assert output.num_function_evaluations == 4 and output.trajectory.shape == (4, 8, LENGTH)
    with pytest.raises(ValueError, match="`num_inference_steps` is 1; with `calls_per_jump` 2"):
        pipe(num_inference_steps=1)
    with pytest.raises(ValueError, match="`num_inference_steps` is 0; it must be an integer above 0"):
        pipe(num_inference_steps=0)
    pipe.scheduler = JumpScheduler(jump_length=4)
    assert pipe(num_samples=8, generator=seeded(0)).num_function_evaluations == 2
    assert pipe(num_samples=8, num_inference_steps=4, generator=seeded(0)).num_function_evaluations == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"jump_length": 0}, "`jump_length` is 0; it must be an integer of at least 1"),
        ({"calls_per_jump": 1.5}, "`calls_per_jump` is 1.5"),
        ({"temperature": 0}, "`temperature` is 0; it must be a number above 0"),
        ({"min_p": 1}, "`min_p` is 1"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        JumpScheduler(**options)


def test_a_model_without_jumps_is_refused():
    for scheduler in (JumpScheduler(), DraftVerifyScheduler(drafts="jumps")):
        with pytest.raises(ValueError, match="needs a model that can jump"):
            pipeline_without = make_pipeline("nfdm", scheduler, torch.float64, **{**OPTIONS, "jumps": False})
            pipeline_without()
    with pytest.raises(ValueError, match="`drafts` is 'none'"):
        DraftVerifyScheduler(drafts="none")
