"""Lattices: the posterior of a chain against all its paths, what a candidate sees, and the limit of one token."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import LENGTH, VOCAB, make_config, make_ids, make_model, seeded

from diffusers_text_nfdm import objective
from diffusers_text_nfdm.clocks import Windows
from diffusers_text_nfdm.likelihood import estimate_likelihood, exact_likelihood
from diffusers_text_nfdm.models.lattice import TokenLattice
from diffusers_text_nfdm.networks.linear_cross_entropy import linear_cross_entropy
from diffusers_text_nfdm.networks.two_stream_predictor import Places


LATTICE = {
    "predictor": "two_stream",
    "prediction_type": "categorical",
    "decoder": "gaussian",
    "self_conditioning": True,
    "lattice_candidates": 4,
}
DOUBLE = {"dtype": torch.float64}


def lattice_model(**options):
    return make_model("nfdm", **{**LATTICE, "forward_num_layers": 0, **options})


def random_chain(generator, tokens=4, vocab=3, batch=2):
    """A first distribution, transitions and evidence, as logits; `weight` is the identity."""
    states = 2 * torch.randn(batch, tokens, vocab, generator=generator, **DOUBLE)
    transitions = 2 * torch.randn(batch, vocab, tokens, vocab, generator=generator, **DOUBLE)
    evidence = 3 * torch.randn(batch, tokens, vocab, generator=generator, **DOUBLE)
    candidates = torch.stack([torch.randperm(vocab, generator=generator) for _ in range(batch * tokens)]).view(
        batch, tokens, vocab
    )
    return states, transitions, candidates, evidence


def infer(states, transitions, candidates, evidence, first):
    vocab = states.shape[-1]
    # `transitions` are by token; candidates come in an order of their own.
    index = candidates.mT[..., None].expand_as(transitions) if candidates.shape[-1] == vocab else None
    rows = transitions if index is None else transitions.gather(1, index)
    weight, bias = torch.eye(vocab, **DOUBLE), torch.zeros(vocab, **DOUBLE)
    return TokenLattice.infer(states, rows, candidates, evidence, weight, bias, first)


def path_weights(states, transitions, evidence, first, b):
    """The weight of every text of tokens under the chain and the evidence."""
    states, transitions = torch.log_softmax(states, -1), torch.log_softmax(transitions, -1)
    tokens, vocab = states.shape[1:]
    weights = {}
    for path in itertools.product(range(vocab), repeat=tokens):
        total = 0.0
        for i, token in enumerate(path):
            new = i == 0 or first[b, i]
            total += (states[b, i, token] if new else transitions[b, path[i - 1], i - 1, token]).item()
            total += evidence[b, i, token].item()
        weights[path] = math.exp(total)
    return weights


@given(st.integers(0, 2**31), st.integers(0, 3))
@settings(max_examples=25, deadline=None)
def test_with_all_tokens_as_candidates_the_posterior_is_that_of_all_paths(seed, start):
    generator = seeded(seed)
    states, transitions, candidates, evidence = random_chain(generator)
    first = torch.zeros(2, 4, dtype=torch.bool)
    # A second window begins there, for one of the texts.
    first[1, start] = True
    posterior = torch.softmax(infer(states, transitions, candidates, evidence, first).logits, -1)
    for b in range(2):
        weights = path_weights(states, transitions, evidence, first, b)
        total = sum(weights.values())
        for i in range(4):
            for token in range(3):
                expected = sum(weight for path, weight in weights.items() if path[i] == token) / total
                assert posterior[b, i, token].item() == pytest.approx(expected, abs=1e-9)


def test_texts_are_drawn_as_often_as_the_chain_has_them():
    states, transitions, candidates, evidence = random_chain(seeded(3), tokens=3, batch=1)
    first = torch.zeros(1, 3, dtype=torch.bool)
    lattice = infer(states, transitions, candidates, evidence, first)
    number = 20_000
    many = TokenLattice(
        *(
            x.expand(number, *x.shape[1:])
            for x in (lattice.logits, lattice.candidates, lattice.messages, lattice.evidence, lattice.states)
        ),
        lattice.weight,
        lattice.bias,
        lattice.first.expand(number, -1),
    )
    drawn = many.draw(torch.rand(number, 3, generator=seeded(0), **DOUBLE))
    weights = path_weights(states, transitions, evidence, first, 0)
    total = sum(weights.values())
    for path, weight in weights.items():
        p = weight / total
        share = (drawn == torch.tensor(path)).all(-1).double().mean().item()
        assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / number) + 1e-4
    best = many.draw(None, temperature=0)
    assert (best == best[0]).all()


def test_excluded_tokens_are_not_drawn():
    states, transitions, candidates, evidence = random_chain(seeded(4))
    lattice = infer(states, transitions, candidates, evidence, torch.zeros(2, 4, dtype=torch.bool))
    excluded = torch.tensor([[True, False, False], [False, True, False]])
    for seed in range(20):
        drawn = lattice.draw(torch.rand(2, 4, generator=seeded(seed), **DOUBLE), excluded)
        assert (drawn[0] != 0).all() and (drawn[1] != 1).all()


@given(st.integers(0, 2**31), st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_where_nothing_depends_on_the_token_before_every_token_is_inferred_by_itself(seed, number):
    generator = seeded(seed)
    states, _, candidates, evidence = random_chain(generator)
    candidates = candidates[..., :number]
    transitions = torch.zeros(2, number, 4, 3, **DOUBLE)
    transitions[:, :, :-1] = states[:, None, 1:]
    weight, bias = torch.eye(3, **DOUBLE), torch.zeros(3, **DOUBLE)
    first = torch.zeros(2, 4, dtype=torch.bool)
    lattice = TokenLattice.infer(states, transitions, candidates, evidence, weight, bias, first)
    expected = torch.softmax(torch.log_softmax(states, -1) + evidence, -1)
    assert torch.allclose(torch.softmax(lattice.logits, -1), expected, atol=1e-9)


def test_where_no_candidate_explains_what_follows_nothing_comes_back():
    """Certain evidence for a token that the transitions of float32 have as 0."""
    states, transitions = torch.zeros(1, 2, 3), torch.zeros(1, 2, 2, 3)
    transitions[:, :, 0] = torch.tensor([0.0, 0.0, -200.0])
    evidence = torch.tensor([[[0.0, 0.0, 0.0], [0.0, 0.0, 1000.0]]])
    candidates = torch.tensor([[[0, 1], [0, 1]]])
    first = torch.zeros(1, 2, dtype=torch.bool)
    lattice = TokenLattice.infer(states, transitions, candidates, evidence, torch.eye(3), torch.zeros(3), first)
    posterior = torch.softmax(lattice.logits, -1)
    assert torch.allclose(posterior[0, 0], torch.full((3,), 1 / 3)) and posterior[0, 1, 2] == 1


def test_a_candidate_is_read_as_if_it_stood_in_the_place_of_its_token():
    model, ids = lattice_model(), make_ids(2)
    predictor, (_, clean) = model.predictor, model.read_clean(ids)
    positions = torch.arange(LENGTH)
    places = Places(positions, positions - positions % 3)
    own = torch.randn(2, LENGTH, model.config.hidden_size, generator=seeded(1), **DOUBLE)
    chosen = torch.randint(VOCAB, (2, 2, LENGTH), generator=seeded(2))
    inputs = predictor.clean_inputs(chosen, own)
    states, following = predictor.read_windows(own, clean, places, inputs)
    assert torch.equal(states, predictor.read_windows(own, clean, places)[0])
    for i in range(LENGTH - 1):
        if places.starts[i + 1] != places.starts[i]:
            continue
        for k in range(2):
            with_candidate = own.clone()
            with_candidate[:, i] = inputs[:, k, i]
            expected = predictor.read_windows(with_candidate, clean, places)[0][:, i + 1]
            assert torch.allclose(following[:, k, i], expected, atol=1e-10)


def test_the_first_state_of_a_window_is_that_of_the_clean_stream():
    model, ids = lattice_model(), make_ids(2)
    states, clean = model.read_clean(ids)
    positions = torch.arange(LENGTH)
    places = Places(positions, positions - positions % 2)
    own = torch.randn(2, LENGTH, model.config.hidden_size, generator=seeded(1), **DOUBLE)
    read = model.predictor.read_windows(own, clean, places)[0]
    assert torch.allclose(read[:, 2::2], states[:, 1:-1:2][:, : read[:, 2::2].shape[1]], atol=1e-10)


def test_a_state_sees_nothing_of_its_own_token_nor_of_those_behind_it():
    model, ids = lattice_model(), make_ids(1)
    clean = model.read_clean(ids)[1]
    positions = torch.arange(LENGTH)
    places = Places(positions, torch.zeros_like(positions))
    own = torch.randn(1, LENGTH, model.config.hidden_size, generator=seeded(1), **DOUBLE)
    before = model.predictor.read_windows(own, clean, places)[0]
    for j in range(LENGTH):
        changed = own.clone()
        changed[:, j] += 1
        after = model.predictor.read_windows(changed, clean, places)[0]
        assert torch.equal(after[:, : j + 1], before[:, : j + 1])


def test_one_token_at_a_time_costs_the_cross_entropy_of_the_clean_stream():
    model = make_model("diffusion-lm", max_length=4, embedding_dim=8, embedding_sphere=True, **LATTICE)
    with torch.no_grad():
        # The posterior of a single token is exact where the gate is one.
        model.prediction.gate.weight.zero_()
        model.prediction.gate.bias.zero_()
    ids = torch.randint(VOCAB, (2, 4), generator=seeded(0))
    nothing = torch.zeros(1, 1, model.config.hidden_size, **DOUBLE)
    begin = Places(torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long))
    state = model.predictor.read_windows(nothing, model.predictor.nothing_read(1), begin)[0]
    # The clean stream is given the first token, which the bound counts.
    first, _ = linear_cross_entropy(*model.next_token_factors(state.expand(2, -1, -1)), ids[:, :1])
    expected = exact_likelihood(model, ids).nats_per_story.value + first.mean().item()
    estimate = estimate_likelihood(model, ids, clock="blocks:1", num_draws=512, seed=1).nats_per_story
    assert estimate.monte_carlo_error < 1 and abs(estimate.value - expected) < 4 * estimate.monte_carlo_error


def test_the_losses_of_the_parts_are_those_of_a_plain_reading():
    model, ids = lattice_model().train(), make_ids(2)
    draws = model.draw(2, seeded(0))
    draws.self_conditioned.fill_(1.0)
    times, windows = model.token_times(model.clock("ramp:2"), draws)
    seen, followed, next_token = objective.lattice_losses(model, ids, times.value, draws, windows)
    states, clean = model.read_clean(ids)
    expected, _ = linear_cross_entropy(*model.next_token_factors(states[:, :-1]), ids[:, 1:])
    assert torch.allclose(next_token, expected)
    starts = windows.starts.expand(ids.shape)
    first = torch.arange(LENGTH) == starts
    # Where a window begins only clean tokens are seen, and nothing is followed.
    assert torch.allclose(seen[:, 1:][first[:, 1:]], expected[first[:, 1:]])
    assert (followed[first[:, 1:]] == 0).all() and (followed[~first[:, 1:]] > 0).all()


def test_a_step_on_lattices_trains_the_predictor_alone():
    model = lattice_model().train()
    output = model(make_ids(2), clock="ramp:2", lattices=True, next_token_weight=1.0, generator=seeded(0))
    output.loss.backward()
    trained = {name.split(".")[0] for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert trained == {"predictor", "token_bias"}
    assert torch.allclose(output.loss, (output.lattice + output.next_token).mean())


def test_in_evaluation_tokens_are_inferred_together_and_in_training_from_left_to_right():
    model, ids = lattice_model(), make_ids(2)
    draws = model.draw(2, seeded(0))
    times, windows = model.token_times(model.clock("ramp:2"), draws)
    clean = model.clean_stream(ids, windows)[0]
    z = model.forward_process.marginal(model.embed(ids), times.value).sample(draws.noise)
    together = model.denoise(z, times.value, None, clean, windows=windows)
    assert together.lattice is not None
    one_way = model.train().denoise(z, times.value, None, clean, windows=windows)
    assert one_way.lattice is None
    last = torch.cat(
        [
            windows.starts.expand(ids.shape)[:, 1:] != windows.starts.expand(ids.shape)[:, :-1],
            torch.ones(2, 1, dtype=torch.bool),
        ],
        1,
    )
    assert not torch.allclose(together.embeddings[~last], one_way.embeddings[~last])
    given_behind = torch.zeros_like(ids, dtype=torch.bool)
    given_behind[:, -1] = True
    assert model.eval().denoise(z, times.value, None, clean, windows=windows, known=given_behind).lattice is None


def test_the_bound_given_a_beginning_is_that_of_the_rest_of_the_text():
    """What is known costs nothing, and the tokens behind it cost what they do in a text of which it is clean."""
    model, ids = lattice_model(volatility="markovian", delta=0.1), make_ids(2)
    known = torch.arange(LENGTH).expand(2, -1) < 3
    draws = model.draw(2, seeded(0))
    times, windows = model.token_times(model.clock("ramp:2"), draws, known)
    terms = objective.bound(model, ids, times, draws, known, windows)
    assert (terms.diffusion[known] == 0).all() and (terms.diffusion[~known] > 0).all()
    other = ids.clone()
    other[:, 0] = (ids[:, 0] + 1) % VOCAB
    changed = objective.bound(model, other, times, draws, known, windows)
    assert not torch.allclose(changed.diffusion[~known], terms.diffusion[~known])


def test_a_text_that_is_one_window_is_first_read_from_left_to_right():
    """The second call sees what the reading says, and so what is before a token and what is behind it."""
    model, ids = lattice_model(**DOUBLE), make_ids(2)
    draws, t = model.draw(2, seeded(0)), torch.full((2, 1), 0.4, dtype=torch.float64)
    z = model.forward_process.marginal(model.embed(ids), t).sample(draws.noise)
    windows = Windows(torch.zeros(1, LENGTH, dtype=torch.long), None)
    reading = model.train().denoise(z, t, None, windows=windows).states
    prediction = model.eval().denoise(z, t, None)
    assert prediction.lattice is None
    assert torch.allclose(prediction.logits, model.denoise(z, t, None, None, reading).logits)
    other = z.clone()
    other[:, -1] += 1
    changed = model.denoise(other, t, None).states
    assert not torch.allclose(changed[:, 0], prediction.states[:, 0])
    moved = model.train().denoise(other, t, None, windows=windows).states
    assert torch.equal(moved[:, :-1], reading[:, :-1])
    # The reading is two calls.
    for clock, calls in (("shared", 3), ("ramp:2", 2)):
        estimate = estimate_likelihood(model, ids, clock=clock, num_draws=2, time_sampler="learned")
        assert estimate.num_function_evaluations == 2 * 2 * calls


def test_along_the_shared_clock_the_parts_of_a_lattice_are_those_of_the_whole_text():
    model, ids = lattice_model(**DOUBLE), make_ids(2)
    draws, t = model.draw(2, seeded(0)), torch.full((2,), 0.4, dtype=torch.float64)
    whole = model(ids, clock="shared", t=t, draws=draws, lattices=True)
    assert torch.equal(whole.lattice, model(ids, clock="ramp:2", t=t, draws=draws, lattices=True).lattice)
    windows = Windows(torch.zeros(1, LENGTH, dtype=torch.long), None)
    seen, followed, _ = objective.lattice_losses(model, ids, t[:, None], draws, windows)
    assert torch.allclose(whole.lattice, seen.sum(-1) + followed.sum(-1))
    draws.noise = draws.noise.clone()
    draws.noise[:, 0] += 1
    changed, after, _ = objective.lattice_losses(model, ids, t[:, None], draws, windows)
    assert torch.equal(changed[:, 0], seen[:, 0]) and torch.equal(after[:, 0], followed[:, 0])
    assert (changed[:, 1:] != seen[:, 1:]).all() and (after[:, 1:] != followed[:, 1:]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lattice_candidates": -1}, "`lattice_candidates` is -1"),
        ({"prediction_type": "embedding", "self_conditioning": False}, "candidates follow a clean stream"),
        ({"self_conditioning": False}, "a first call has to name them"),
        ({"condition_length": 2}, "a model with a condition infers each token by itself"),
    ],
)
def test_configurations_without_a_lattice_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make_config("nfdm", **{**LATTICE, **options})


def test_arguments_that_do_not_fit_are_refused():
    model, ids = lattice_model(), make_ids(2)
    with pytest.raises(ValueError, match="`known` has no meaning for jumps and lattices"):
        model(ids, known=torch.eye(2, LENGTH).bool(), clock="ramp:2", lattices=True)
    with pytest.raises(ValueError, match="this model has no `lattice_candidates`"):
        make_model("nfdm", predictor="two_stream", prediction_type="categorical")(ids, clock="ramp:2", lattices=True)
