"""Texts by jumps: the noise decides them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from tiny import make_pipeline, seeded

from diffusers_text_nfdm import JumpScheduler, exact_likelihood, jump_likelihood
from diffusers_text_nfdm.likelihood.jumps import jump_nats
from diffusers_text_nfdm.models.token_choice import draw_from, token_probabilities
from diffusers_text_nfdm.networks.two_stream_predictor import TextCache
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


@pytest.mark.parametrize("jump_length", [1, 2, 3, 5])
def test_without_a_limit_texts_are_the_clean_streams_with_the_same_noise(jump_length):
    pipe, z = pipeline(JumpScheduler(jump_length, min_p=0.05)), latents(40)
    output = pipe(latents=z, output_type="seq")
    assert torch.equal(output.sequences, token_by_token(pipe, token_noise(z), min_p=0.05))
    ended = (output.sequences == 1).cumsum(1) - (output.sequences == 1).long() > 0
    written = (~ended).sum(1) - 1
    assert (output.calls * (jump_length + 1) >= written).all() and (output.calls <= written).all()


@pytest.fixture(scope="module")
def verified():
    return pipeline(JumpScheduler(3, min_p=0.05))


def beginnings(lengths, seed):
    """Token ids without END, of which the first `lengths` are known, and noise for the others."""
    ids = torch.randint(4, 11, (len(lengths), LENGTH), generator=seeded(seed))
    ids[:, 0] = 0
    return ids, torch.arange(LENGTH) < torch.tensor(lengths)[:, None], latents(len(lengths), seed)


@given(
    st.lists(st.integers(1, LENGTH - 1), min_size=1, max_size=4),
    st.integers(1, LENGTH),
    st.one_of(st.none(), st.integers(1, LENGTH)),
    st.integers(0, 2**31),
)
@settings(max_examples=25, deadline=None)
def test_any_beginnings_are_continued_and_texts_do_not_depend_on_their_batch(verified, lengths, size, most, seed):
    verified.scheduler = JumpScheduler(size, min_p=0.05)
    ids, known, z = beginnings(lengths, seed)
    options = {"num_inference_steps": most, "output_type": "seq"}
    together = verified(input_ids=ids, known=known, latents=z, **options)
    assert torch.equal(together.sequences[known], ids[known])
    if most is None:
        assert torch.equal(together.sequences, token_by_token(verified, token_noise(z), 0.05, ids, known))
    else:
        assert (together.calls <= most).all()
    for i in range(len(lengths)):
        row = slice(i, i + 1)
        alone = verified(input_ids=ids[row], known=known[row], latents=z[row], **options)
        assert torch.equal(alone.sequences[0], together.sequences[i]) and alone.calls[0] == together.calls[i]


def test_a_call_is_one_pass_over_the_network(verified):
    passes = []
    hook = verified.model.predictor.layers[0].register_forward_hook(lambda *_: passes.append(1))
    output = verified(num_samples=8, generator=seeded(0), output_type="seq", return_trajectory=True)
    hook.remove()
    assert len(passes) == output.num_function_evaluations == output.calls.max() == len(output.trajectory)
    assert torch.equal(output.trajectory[-1][output.sequences != 3], output.sequences[output.sequences != 3])


@torch.no_grad()
def call_by_call(pipe, noise, fronts, min_p=0.05):
    """Every call over the whole text: what was drawn, then noise, up to the front."""
    model, scheduler, predictor = pipe.model, JumpScheduler(min_p=min_p), pipe.model.predictor
    text = torch.zeros(noise.shape, dtype=torch.long)
    for before, front in zip([1, *fronts], fronts):
        positions = torch.arange(front - 1).expand(len(text), -1)
        clean = predictor.clean_inputs(text, model.embed(text))
        inputs = torch.where((torch.arange(LENGTH) < before)[:, None], clean, predictor.noise_inputs(noise))
        states = predictor.read_on(inputs[:, : front - 1], positions, TextCache(predictor, len(text), LENGTH))
        states, weight, bias = model.next_token_factors(states)
        text[:, 1:front] = scheduler.draw_by_noise(states @ weight.T + bias, noise[:, 1:front], model.token_order)
    ended = (text == 1).cumsum(1) - (text == 1).long() > 0
    return text.masked_fill(ended, 3)


@pytest.mark.parametrize(("most", "fronts"), [(1, [9]), (2, [6, 9]), (3, [5, 7, 9]), (4, [4, 6, 8, 9])])
def test_a_limited_number_of_calls_draws_all_tokens_up_to_its_fronts(verified, most, fronts):
    """With a jump length of 1 the fronts are those of the calls, but for texts of which more is verified."""
    verified.scheduler, z = JumpScheduler(1, min_p=0.05), latents(40)
    output = verified(latents=z, num_inference_steps=most, output_type="seq")
    expected = call_by_call(verified, token_noise(z), fronts)
    assert torch.equal(output.sequences, expected) and (output.calls <= most).all()
    whole = token_by_token(verified, token_noise(z), min_p=0.05)
    # Four calls are enough for these texts.
    assert (output.sequences != whole).any() == (most < 4)


def test_tokens_are_verified_up_to_the_first_that_is_drawn_otherwise():
    scheduler, order = JumpScheduler(), torch.randperm(12, generator=seeded(1))
    logits = torch.randn(4, 6, 12, generator=seeded(0), dtype=torch.float64)
    noise = torch.rand(4, 6, generator=seeded(2), dtype=torch.float64)
    right = scheduler.draw_by_noise(logits, noise, order)
    drafted = (torch.arange(6) < 4).expand(4, -1)
    for wrong in range(7):
        draft = right.clone()
        draft[:, wrong:] = (draft[:, wrong:] + 1) % 12
        tokens, verified = scheduler.step(draft, drafted, logits, noise, order)
        assert (verified == min(wrong, 4)).all() and torch.equal(tokens, right)


def test_the_front_is_ahead_of_what_is_verified_and_in_time():
    scheduler, given, verified = JumpScheduler(4), torch.tensor([1, 5]), torch.tensor([3, 17])
    assert scheduler.front(1, None, given, verified, 20).tolist() == [7, 20]
    assert scheduler.front(1, 2, given, verified, 20).tolist() == [12, 20]
    # Jumps that are longer than an equal share wait until they are needed.
    assert scheduler.front(3, 8, given, given, 20).tolist() == [5, 9]
    assert scheduler.front(7, 8, given, given, 20).tolist() == [17, 17]
    assert scheduler.front(2, 2, given, given, 20).tolist() == [20, 20]


@pytest.mark.parametrize(("num_calls", "jump_length"), [(1, 1), (2, 1), (2, 2), (3, 1)])
def test_the_likelihood_of_jumps_is_that_of_their_texts(num_calls, jump_length):
    """Texts of up to three tokens after START: their frequencies, and the mean of `Π q` over the noise."""
    pipe = pipeline(JumpScheduler(jump_length), max_length=4)
    output = pipe(
        num_samples=6000, batch_size=2000, num_inference_steps=num_calls, generator=seeded(0), output_type="seq"
    )
    texts, counts = output.sequences.unique(dim=0, return_counts=True)
    common = counts >= 25
    texts, counts = texts[common], counts[common].double()
    generator = seeded(1)
    with torch.no_grad():
        many = texts.repeat(40, 1)
        draws = [jump_nats(pipe.model, pipe.scheduler, many, num_calls, generator) for _ in range(10)]
    nats = torch.cat([drawn.view(40, len(texts)) for drawn in draws]).T
    p = (-nats).exp().mean(1)
    options = {"num_inference_steps": num_calls, "jump_length": jump_length, "num_draws": 40}
    estimate = jump_likelihood(pipe.model, texts, **options)
    error = estimate.nats_per_story.monte_carlo_error
    assert abs(estimate.nats_per_story.value - nats.mean()) < 6 * error + 1e-9
    assert len(texts) > 10
    assert chisquare(counts, p / p.sum() * counts.sum()).pvalue > 1e-4
    # They are most of all texts, as often as their probabilities say.
    assert abs(p.sum() - counts.sum() / 6000) < 0.03
    # Jensen.
    assert (nats.mean(1) >= -p.log() - 1e-12).all()


def test_as_many_calls_as_tokens_have_the_likelihood_of_the_clean_stream():
    pipe = pipeline(JumpScheduler(2))
    texts = pipe(num_samples=10, generator=seeded(0), output_type="seq").sequences
    # Without END every token counts.
    texts = torch.where(texts == 1, 4, texts)
    options = {"num_inference_steps": LENGTH - 1, "jump_length": 2}
    jumps, clean = jump_likelihood(pipe.model, texts, **options), exact_likelihood(pipe.model, texts)
    assert jumps.nats_per_story.value == pytest.approx(clean.nats_per_story.value, rel=1e-12)
    assert jumps.nats_per_story.monte_carlo_error == pytest.approx(0, abs=1e-12)


def test_calls_are_what_was_asked_for():
    pipe = pipeline(JumpScheduler())
    assert pipe(num_samples=8, num_inference_steps=1, generator=seeded(0)).num_function_evaluations == 1
    pipe.scheduler = JumpScheduler(2)
    output = pipe(num_samples=8, num_inference_steps=4, generator=seeded(0), return_trajectory=True)
    assert output.num_function_evaluations == 4 and output.trajectory.shape == (4, 8, LENGTH)
    with pytest.raises(ValueError, match="`num_inference_steps` is 0; it must be an integer above 0"):
        pipe(num_inference_steps=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"jump_length": 0}, "`jump_length` is 0; it must be an integer of at least 1"),
        ({"jump_length": 1.5}, "`jump_length` is 1.5"),
        ({"temperature": -1}, "`temperature` is -1; it must be at least 0"),
        ({"top_k": 0}, "`top_k` is 0; it must be an integer of at least 1"),
        ({"min_p": 1}, "`min_p` is 1"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        JumpScheduler(**options)


def test_a_model_without_jumps_is_refused():
    pipe = make_pipeline("nfdm", JumpScheduler(), torch.float64, **{**OPTIONS, "jumps": False})
    with pytest.raises(ValueError, match="needs a model that can jump"):
        pipe()
    with pytest.raises(ValueError, match="The model cannot jump"):
        jump_likelihood(pipe.model, torch.zeros(1, LENGTH, dtype=torch.long), num_inference_steps=2)
