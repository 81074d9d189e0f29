"""The two-stream predictor: who sees whom, and all blocks of a text in one call as each alone."""

import pytest
import torch
from tiny import MODELS, VOCAB, make_inputs, make_model, relative_error, seeded

from diffusers_text_nfdm import BlockClock
from diffusers_text_nfdm.networks.two_stream_predictor import Places, Rotation, sees_clean, sees_noisy


LENGTH, BLOCK, TEXTS = 6, 2, 3
EXTRAS = {"embedding": {}, "categorical": {"prediction_type": "categorical", "decoder": "gaussian"}}


def two_stream(name, extras, **overrides):
    return make_model(name, max_length=LENGTH, predictor="two_stream", **{**EXTRAS[extras], **overrides})


def texts():
    return torch.randint(VOCAB, (TEXTS, LENGTH), generator=seeded(0))


def noisy(name):
    """Latents, a time for every token, and contexts."""
    torch.manual_seed(1)
    z, context = make_inputs(name, TEXTS, length=LENGTH)
    return z, torch.rand(TEXTS, LENGTH, dtype=torch.float64), context


# --- who sees whom ---


def seen(visible):
    return [[int(x) for x in row] for row in visible]


def in_blocks(length, size):
    return Places.whole(length)._replace(starts=BlockClock(size).fixed_windows(length).starts[0])


def test_places_in_windows_are_known_by_where_their_window_starts():
    places = in_blocks(6, 2)
    assert places.positions.tolist() == [0, 1, 2, 3, 4, 5] and places.starts.tolist() == [0, 0, 2, 2, 4, 4]
    assert Places.whole(3).starts.tolist() == [0, 0, 0]
    window = places.part(slice(2, 4))
    assert window.positions.tolist() == [2, 3] and window.starts.tolist() == [2, 2]
    assert window.settled is None and window.given is None
    settled = torch.eye(3, 6).bool()
    some = places._replace(settled=settled, given=~settled).part(slice(2, 4))
    assert torch.equal(some.settled, settled[:, 2:4]) and torch.equal(some.given, ~settled[:, 2:4])


def test_a_noisy_token_sees_the_clean_tokens_of_earlier_blocks():
    six = torch.arange(6)
    assert seen(sees_clean(in_blocks(6, 2), six)) == [
        [0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0, 0],
    ]
    assert seen(sees_clean(in_blocks(6, 3).part(slice(3, 5)), six[:4])) == [[1, 1, 1, 0], [1, 1, 1, 0]]
    assert seen(sees_clean(in_blocks(3, 1), six[:3])) == [[0, 0, 0], [1, 0, 0], [1, 1, 0]]
    assert seen(sees_clean(Places.whole(2), six[:2])) == [[0, 0], [0, 0]]


def test_a_noisy_token_sees_the_noisy_tokens_of_its_own_block():
    assert seen(sees_noisy(in_blocks(4, 2))) == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
    assert seen(sees_noisy(Places.whole(4))) == [[1, 1, 1, 1]] * 4
    assert seen(sees_noisy(in_blocks(4, 1))) == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]


def test_what_has_settled_sees_what_stands_still_before_it_and_is_seen_by_its_window():
    places = Places.whole(4)
    places = Places(places.positions[None], in_blocks(4, 2).starts[None], torch.tensor([[True, False, True, True]]))
    assert seen(sees_noisy(places)[0]) == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    assert seen(sees_clean(places, torch.arange(4))[0]) == [[0, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0]]


def test_what_is_given_sees_what_is_given_before_it_and_every_window_sees_it():
    given = torch.tensor([[True, False, False, True, False, True]])
    settled = given | torch.tensor([[False, False, False, False, True, False]])
    places = Places(torch.arange(6)[None], in_blocks(6, 2).starts[None], settled, given)
    # Of what is given, a window sees as noisy tokens those that are not before it.
    assert seen(sees_noisy(places)[0]) == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 1, 0, 1],
        [0, 0, 1, 1, 0, 1],
        [1, 0, 0, 1, 0, 0],
        [0, 0, 0, 0, 1, 0],
        [1, 0, 0, 1, 0, 1],
    ]
    assert seen(sees_clean(places, torch.arange(4))[0]) == [
        [0, 0, 0, 0],
        [0, 0, 0, 0],
        [1, 1, 0, 0],
        [0, 0, 0, 0],
        [1, 1, 1, 1],
        [0, 0, 0, 0],
    ]


def test_texts_may_have_places_of_their_own():
    places = Places(torch.tensor([[0, 1, 2], [3, 4, 5]]), torch.tensor([[0, 0, 2], [3, 4, 4]]))
    assert [seen(text) for text in sees_noisy(places)] == [
        [[1, 1, 0], [1, 1, 0], [0, 0, 1]],
        [[1, 0, 0], [0, 1, 1], [0, 1, 1]],
    ]
    assert [seen(text) for text in sees_clean(places, torch.arange(4))] == [
        [[0, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0]],
        [[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1]],
    ]


def test_scores_of_turned_queries_and_keys_depend_on_their_distance_alone():
    query, key = torch.randn(2, 1, 8, dtype=torch.float64).expand(-1, 5, -1)
    positions = torch.arange(5)
    scores = (Rotation.at(positions - 1, 8)(query) @ Rotation.at(positions, 8)(key).mT)[0, 0]
    for distance in range(-4, 5):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-5, atol=1e-5)
    assert len(scores.round(decimals=4).unique()) == 9


# --- blocks ---


@pytest.mark.parametrize("self_conditioning", [False, True])
@pytest.mark.parametrize("block_size", [1, 2, 3])
@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_all_blocks_at_once_are_predicted_as_each_alone(name, extras, block_size, self_conditioning):
    """What training computes in one call sampling computes block by block, with keys and values that it keeps."""
    model, ids = two_stream(name, extras, self_conditioning=self_conditioning), texts()
    z, t, context = noisy(name)
    windows = BlockClock(block_size).fixed_windows(LENGTH)
    together = model.denoise(z, t, context, model.clean_stream(ids, windows)[0], windows=windows)
    clean = None
    for start in range(0, LENGTH, block_size):
        part = slice(start, start + block_size)
        alone = model.denoise(z, t, context, clean, windows=windows, window=part)
        assert relative_error(alone.embeddings[:, part], together.embeddings[:, part]) < 1e-12
        if extras == "categorical":
            assert relative_error(alone.logits, together.logits[:, part]) < 1e-12
        outside = torch.ones(LENGTH, dtype=torch.bool)
        outside[part] = False
        assert not alone.embeddings[:, outside].any()
        _, clean = model.read_clean(ids[:, part], clean)


@pytest.mark.parametrize("self_conditioning", [False, True])
@pytest.mark.parametrize("extras", EXTRAS)
@torch.no_grad()
def test_clean_tokens_are_read_along_with_noisy_ones_as_before_them(extras, self_conditioning):
    """Also where some tokens are given, and by whatever is read next."""
    model, ids = two_stream("mulan", extras, self_conditioning=self_conditioning), texts()
    z, t, context = noisy("mulan")
    windows, known = BlockClock(BLOCK).fixed_windows(LENGTH), torch.zeros(TEXTS, LENGTH, dtype=torch.bool)
    known[0, 4] = True
    options = {"windows": windows, "known": known, "window": slice(4, 6)}
    _, start = model.read_clean(ids[:, :1])
    _, before = model.read_clean(ids[:, 1:4], start)
    later = model.read_later(ids[:, 1:4], start)
    assert (len(later), later.num_read, start.num_read) == (4, 1, 1)
    expected, along = (model.denoise(z, t, context, clean, **options) for clean in (before, later))
    assert relative_error(along.embeddings, expected.embeddings) < 1e-12
    assert later.num_read == 4 and start.num_read == 1
    for pair, expected_pair in zip(later.keys_values, before.keys_values):
        for value, expected_value in zip(pair, expected_pair):
            assert relative_error(value, expected_value) < 1e-12
    # What is still unread is read with the clean tokens behind it.
    unread = model.read_later(ids[:, 1:3], start)
    states, clean = model.read_clean(ids[:, 3:4], unread)
    assert relative_error(states, model.read_clean(ids[:, :4])[0][:, 3:]) < 1e-12 and clean.num_read == 4


@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("name", ["nfdm", "mulan"])
@torch.no_grad()
def test_a_block_depends_on_the_tokens_before_it_and_its_own_latents_and_times(name, extras):
    model, ids = two_stream(name, extras), texts()
    z, t, context = noisy(name)

    def predict(ids, z, t):
        windows = BlockClock(BLOCK).fixed_windows(LENGTH)
        clean, _ = model.clean_stream(ids, windows)
        return model.denoise(z, t, context, clean, windows=windows).embeddings

    def blocks_that_change(*inputs):
        changed = (predict(*inputs) != before).any(-1)
        return changed.unflatten(1, (-1, BLOCK)).any(-1).nonzero().tolist()

    before = predict(ids, z, t)
    # Block 1 of text 0: its tokens, its latents, its times.
    part = slice(BLOCK, 2 * BLOCK)
    other_ids, other_z, other_t = ids.clone(), z.clone(), t.clone()
    other_ids[0, part] = (ids[0, part] + 1) % VOCAB
    other_z[0, part] += 1
    other_t[0, part] = 1 - t[0, part]
    assert blocks_that_change(ids, z, t) == []
    assert blocks_that_change(other_ids, z, t) == [[0, 2]]
    assert blocks_that_change(ids, other_z, t) == [[0, 1]]
    assert blocks_that_change(ids, z, other_t) == [[0, 1]]


@torch.no_grad()
def test_without_blocks_every_token_sees_every_other_and_no_clean_one():
    model = two_stream("nfdm", "categorical")
    assert model.clean_stream(texts(), None) == (None, None)
    z, t, _ = noisy("nfdm")
    before = model.denoise(z, t).logits
    for token in range(LENGTH):
        moved = z.clone()
        moved[:, token] += 1
        assert (model.denoise(moved, t).logits != before).any(-1).all()


# --- the clean stream ---


@torch.no_grad()
def test_the_clean_stream_is_an_autoregressive_model():
    """Its `-log p(x_i | x_<i)` is the same read token by token, and depends on no later token."""
    model, ids = two_stream("nfdm", "categorical"), texts()
    _, losses = model.clean_stream(ids, None, next_token=True)
    assert losses.shape == (TEXTS, LENGTH - 1)
    before, output = None, model.predictor.output
    for i in range(LENGTH - 1):
        states, before = model.read_clean(ids[:, i : i + 1], before)
        log_p = torch.log_softmax(states[:, 0] @ output.weight.T + output.bias + model.token_bias, -1)
        expected = -log_p.gather(-1, ids[:, i + 1, None])[:, 0]
        torch.testing.assert_close(losses[:, i], expected, rtol=1e-10, atol=1e-12)
    changed = ids.clone()
    changed[:, -1] = (ids[:, -1] + 1) % VOCAB
    after = model.clean_stream(changed, None, next_token=True)[1]
    assert torch.equal(after[:, :-1], losses[:, :-1]) and (after[:, -1] != losses[:, -1]).all()


@pytest.mark.parametrize("clock", ["shared", "ramp:2", "blocks:2"])
@pytest.mark.parametrize("cross_entropy", [False, True])
def test_the_next_token_is_added_to_the_loss_by_its_weight(cross_entropy, clock):
    model, ids = two_stream("mulan", "categorical"), texts()
    options = {"draws": model.draw(TEXTS, seeded(0)), "clock": clock, "cross_entropy": cross_entropy}
    without, with_it = model(ids, **options), model(ids, next_token_weight=0.25, **options)
    expected = model.clean_stream(ids, None, next_token=True)[1].sum(-1)
    assert without.next_token is None
    torch.testing.assert_close(with_it.next_token, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(with_it.loss, without.loss + 0.25 * expected.mean(), rtol=1e-12, atol=0)
    if not cross_entropy:
        assert torch.equal(with_it.bound, without.bound)


def test_the_next_token_is_refused_without_a_distribution_over_tokens():
    with pytest.raises(ValueError, match="`next_token_weight` is 0.25.*'two_stream'.*'categorical'"):
        two_stream("nfdm", "embedding")(texts(), next_token_weight=0.25)


@torch.no_grad()
def test_both_streams_hold_the_token_before_at_its_place():
    """At time 1 the first token of a window is seen by no one, so its state is that of the clean stream but for the
    time of its own token: what the clean stream learns of the next token holds for the noisy one.
    """
    model, ids = two_stream("nfdm", "categorical"), texts()
    model.predictor.own_time_embedding.requires_grad_(False)
    for parameter in (*model.predictor.own_time_embedding.parameters(), *model.predictor.own_input.parameters()):
        parameter.zero_()
    states, clean = model.read_clean(ids)
    windows = BlockClock(1).fixed_windows(LENGTH)
    z, _, _ = noisy("nfdm")
    noise = model.denoise(z, torch.ones(TEXTS, LENGTH, dtype=torch.float64), None, clean, windows=windows)
    size = model.config.hidden_size
    # Each noisy state sees itself besides, which is a copy of the clean one before it: softmax counts that one twice.
    alone = model.denoise(z[:, :], torch.ones(TEXTS, 1, dtype=torch.float64).expand(-1, LENGTH), None, clean,
                          windows=windows, window=slice(1, 2))  # fmt: skip
    torch.testing.assert_close(alone.factors[0][..., :size], noise.factors[0][:, 1:2, :size], rtol=1e-10, atol=1e-12)
    # With one clean token there is nothing else to see: the two agree.
    torch.testing.assert_close(noise.factors[0][:, 1, :size], states[:, 0], rtol=1e-10, atol=1e-12)


# --- the rest ---


def test_attention_without_a_mask_is_refused():
    model = two_stream("nfdm", "categorical")
    model.set_attn_implementation("eager")
    with pytest.raises(ValueError, match="needs attention 'sdpa'.*'eager'"):
        model(texts())


@pytest.mark.parametrize("predictor", ["bert", "two_stream"])
@pytest.mark.parametrize("name", MODELS)
def test_the_modules_that_must_not_be_split_are_there(name, predictor):
    """Accelerate refuses to shard a model without them."""
    model = make_model(name, predictor=predictor)
    present = {type(module).__name__ for module in model.modules()}
    assert model._no_split_modules and set(model._no_split_modules) <= present
    assert ("PredictorLayer" in model._no_split_modules) == (predictor == "two_stream")
