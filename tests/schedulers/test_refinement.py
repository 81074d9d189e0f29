"""Refinement: what is committed, within which budget, and what is left alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from tiny import make_pipeline, seeded

from diffusers_text_nfdm import RefinementScheduler
from diffusers_text_nfdm.models.token_choice import log_frequencies
from diffusers_text_nfdm.networks.two_stream_predictor import Places


LENGTH = 9
OPTIONS = {
    "prediction_type": "categorical", "predictor": "two_stream", "max_length": LENGTH,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 3,
}  # fmt: skip


def pipeline(scheduler, name="nfdm", **options):
    return make_pipeline(name, scheduler, torch.float64, **{**OPTIONS, **options})


@given(st.integers(0, 2**31), st.floats(0, 5))
@settings(max_examples=60, deadline=None)
def test_the_first_open_token_is_committed_and_others_as_far_as_the_budget_goes(seed, budget):
    generator = seeded(seed)
    logits = 4 * torch.randn(5, 7, 6, generator=generator, dtype=torch.float64)
    open_tokens = torch.rand(5, 7, generator=generator) < 0.6
    open_tokens[:, 3] = True
    uniforms = torch.rand(5, 7, generator=generator, dtype=torch.float64)
    tokens, committed, log_probability = RefinementScheduler(7, budget).step(logits, open_tokens, uniforms)
    log_p = torch.log_softmax(logits, -1).gather(-1, tokens[..., None])[..., 0]
    torch.testing.assert_close(log_probability, torch.where(committed, log_p, 0).sum(-1))
    entropy = torch.distributions.Categorical(logits=logits).entropy()
    assert not (committed & ~open_tokens).any()
    for row in range(5):
        places = open_tokens[row].nonzero()[:, 0].tolist()
        first, others = places[0], places[1:]
        assert committed[row, first]
        taken = [i for i in others if committed[row, i]]
        left = [i for i in others if not committed[row, i]]
        spent = sum(entropy[row, i].item() for i in taken)
        assert spent <= budget + 1e-9
        if left:
            # Those that are left are no surer, and the next one would break the budget.
            least = min(entropy[row, i].item() for i in left)
            assert all(entropy[row, i] <= least + 1e-12 for i in taken) and spent + least > budget - 1e-9


def test_a_token_that_is_drawn_alone_has_the_models_distribution():
    """With no budget every call draws the next token, given the clean ones before it."""
    pipe = pipeline(RefinementScheduler(block_length=1, entropy_budget=0))
    output = pipe(num_samples=4000, batch_size=1000, generator=seeded(0), output_type="seq")
    # A window of one token, of which nothing is seen, given START.
    clean = pipe.model.read_clean(torch.zeros(1, 1, dtype=torch.long))[1]
    prediction = pipe.model.predict_unseen(clean, Places(torch.tensor([1]), torch.tensor([1])))
    expected = torch.softmax(prediction.logits, -1)[0, 0].detach()
    counts = torch.bincount(output.sequences[:, 1], minlength=len(expected)).double()
    assert chisquare(counts, expected * 4000).pvalue > 1e-4
    ended = (output.sequences == 1).cumsum(1) - (output.sequences == 1).long() > 0
    assert (output.sequences[ended] == 3).all()
    assert torch.equal(output.calls, (~ended).sum(1) - 1)


@pytest.mark.parametrize("name", ["nfdm", "mulan"])
@given(seed=st.integers(0, 2**31))
@settings(max_examples=8, deadline=None)
def test_known_tokens_come_back_and_a_text_does_not_depend_on_its_batch(name, seed):
    pipe = pipeline(RefinementScheduler(block_length=3, entropy_budget=1.0), name)
    generator = seeded(seed)
    ids = torch.randint(4, 11, (4, LENGTH), generator=generator)
    ids[:, 0] = 0
    known = torch.rand(4, LENGTH, generator=generator) < torch.rand(4, 1, generator=generator)
    known[:, 0], known[:, 5] = True, False
    together = pipe(input_ids=ids, known=known, generator=[seeded(i) for i in range(4)], output_type="seq")
    assert torch.equal(together.sequences[known], ids[known])
    for i in range(4):
        rows = slice(i, i + 1)
        alone = pipe(input_ids=ids[rows], known=known[rows], generator=[seeded(i)], output_type="seq")
        assert torch.equal(alone.sequences[0], together.sequences[i]) and alone.calls[0] == together.calls[i]


GAP_IDS = torch.tensor([[0, 5, 6, 7, 8, 9, 4, 1, 3]])
GAP_KNOWN = torch.tensor([[True] * 3 + [False] * 2 + [True] * 4])


def conditional(model, ids, known, temperature=1.0, contrast=0.0):
    """Every completion of one text, and its exact probability under the clean stream given what is known, with
    knobs.
    """
    unknown = (~known[0]).nonzero()[:, 0]
    values = torch.cartesian_prod(*[torch.arange(model.config.vocab_size)] * len(unknown)).view(-1, len(unknown))
    texts = ids.repeat(len(values), 1)
    texts[:, unknown] = values
    nats = model.clean_stream(texts, None, next_token=True)[1].sum(-1).detach()
    frequent = log_frequencies(model)[texts[:, unknown]].sum(-1)
    exact = torch.softmax(-nats / temperature - contrast * frequent, -1)
    # Behind END there is nothing to draw.
    exact = torch.where((texts[:, unknown] == 1).any(-1), 0, exact)
    return texts, exact / exact.sum()


def filled(pipe, ids, known, number):
    """How many of the texts in which the gap of two tokens was filled have each filling, `(121,)`."""
    options = {"batch_size": 100, "generator": seeded(0), "output_type": "seq"}
    output = pipe(input_ids=ids.repeat(number, 1), known=known.repeat(number, 1), **options)
    assert torch.equal(output.sequences[:, known[0]], ids[:, known[0]].expand(number, -1))
    # Two calls at most write the gap, and one reads it.
    assert (output.calls <= 3 * pipe.scheduler.config.candidates).all()
    gaps = output.sequences[:, 3:5]
    gaps = gaps[(gaps != 1).all(-1)]
    return torch.bincount(gaps[:, 0] * 11 + gaps[:, 1], minlength=121).double()


def distance(counts, exact):
    """Total variation."""
    return (counts / counts.sum() - exact).abs().sum().item() / 2


def test_of_many_candidates_one_is_taken_as_the_clean_stream_would():
    """Total variation to the exact conditional distribution falls towards that of as many exact draws."""
    distances = []
    for candidates in (1, 16, 128):
        pipe = pipeline(RefinementScheduler(block_length=3, entropy_budget=5.0, candidates=candidates))
        _, exact = conditional(pipe.model, GAP_IDS, GAP_KNOWN)
        counts = filled(pipe, GAP_IDS, GAP_KNOWN, 400)
        distances.append(distance(counts, exact))
    draws = torch.multinomial(exact, int(counts.sum()), True, generator=seeded(1))
    by_chance = distance(torch.bincount(draws, minlength=121).double(), exact)
    assert distances[0] > 5 * by_chance
    assert distances[0] > 2 * distances[1] > 2 * distances[2]
    assert distances[2] < 1.5 * by_chance


# With a cut that leaves all tokens.
@pytest.mark.parametrize("knobs", [{"temperature": 2.5}, {"contrast": 1.0}], ids=str)
def test_the_candidate_is_taken_by_the_knobs_that_it_was_drawn_by(knobs):
    options = {"block_length": 3, "entropy_budget": 5.0, "candidates": 64, "top_k": 11}
    pipe = pipeline(RefinementScheduler(**options, **knobs))
    counts = filled(pipe, GAP_IDS, GAP_KNOWN, 300)
    _, exact = conditional(pipe.model, GAP_IDS, GAP_KNOWN, **knobs)
    _, plain = conditional(pipe.model, GAP_IDS, GAP_KNOWN)
    assert distance(counts, exact) < 0.75 * distance(counts, plain)


def test_candidates_do_not_depend_on_the_batch_and_leave_a_trace():
    pipe = pipeline(RefinementScheduler(block_length=3, candidates=4))
    options = {"output_type": "seq", "return_trajectory": True}
    together = pipe(num_samples=3, generator=[seeded(i) for i in range(3)], **options)
    for i in range(3):
        alone = pipe(num_samples=1, generator=[seeded(i)], **options)
        assert torch.equal(alone.sequences[0], together.sequences[i]) and alone.calls[0] == together.calls[i]
    assert torch.equal(together.trajectory[-1], together.sequences)


def test_a_larger_budget_takes_fewer_calls_and_the_most_calls_are_kept_to():
    calls = [
        pipeline(RefinementScheduler(4, budget))(num_samples=30, generator=seeded(0)).calls.double().mean()
        for budget in (0.0, 2.5, 100.0)
    ]
    assert calls[0] > calls[1] > calls[2]
    pipe = pipeline(RefinementScheduler(4, 0.0))
    assert pipe(num_samples=5, num_inference_steps=2, generator=seeded(0)).num_function_evaluations == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_length": 0}, "`block_length` is 0; it must be an integer of at least 1"),
        ({"entropy_budget": -1}, "`entropy_budget` is -1; it must be a number of at least 0"),
        ({"entropy_budget": "much"}, "`entropy_budget` is 'much'"),
        ({"candidates": 0}, "`candidates` is 0; it must be an integer of at least 1"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        RefinementScheduler(**options)
