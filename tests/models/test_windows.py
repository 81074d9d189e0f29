"""Windows along a ramp: all of them in one call as each alone, and what a token must not see."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import PREDICTION_TYPES, VOCAB, make_inputs, make_model, relative_error, seeded

from diffusers_text_nfdm.clocks import BatchClock, Windows
from diffusers_text_nfdm.objective import keep_known


LENGTH, TEXTS = 9, 4
NAMES = ["nfdm", "mulan", "diffusion-lm"]
# Process, prediction and self-conditioning: all of one process, and two of each other one.
COMBINATIONS = [("nfdm", kind, twice) for kind in PREDICTION_TYPES for twice in (False, True)]
COMBINATIONS += [(name, *pair) for name in NAMES[1:] for pair in (("embedding", False), ("categorical", True))]
# Tokens that are known, in each text others.
KNOWN = {
    "none": ["", "", "", ""],
    "prefix": ["0", "012", "01234567", ""],
    "middle": ["4", "3456", "26", "12"],
    "suffix": ["8", "5678", "78", "345678"],
    "scattered": ["08", "0258", "134678", "1"],
}


def ramp_model(name, prediction_type, self_conditioning=False, clock="ramp:3"):
    return make_model(
        name,
        max_length=LENGTH,
        predictor="two_stream",
        prediction_type=prediction_type,
        self_conditioning=self_conditioning,
        time_sampler="uniform",
        clock=clock,
    )


def known_mask(places):
    known = torch.zeros(TEXTS, LENGTH, dtype=torch.bool)
    for row, positions in zip(known, places):
        row[[int(position) for position in positions]] = True
    return known if known.any() else None


def rows(x, i):
    return None if x is None else x[i : i + 1]


# --- all windows at once ---


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("name, prediction_type, self_conditioning", COMBINATIONS)
@torch.no_grad()
def test_all_windows_at_once_are_predicted_as_each_alone(name, prediction_type, self_conditioning, known):
    """Each is the state at its own global time: text before it, noise of which nothing is seen behind it."""
    model, known = ramp_model(name, prediction_type, self_conditioning), known_mask(KNOWN[known])
    ids = torch.randint(VOCAB, (TEXTS, LENGTH), generator=seeded(0))
    z, context = make_inputs(name, TEXTS, length=LENGTH)
    z = keep_known(known, model.forward_process.initial_marginal(model.embed(ids), context).mean, z)
    for width in (1.5, 3.0, 8.0, 40.0):
        clock, draws = model.clock(f"ramp:{width}"), model.draw(TEXTS, seeded(1))
        times, windows = model.token_times(clock, draws, known)
        clean, _ = model.clean_stream(ids, windows)
        together = model.denoise(z, times.value, context, clean, windows=windows, known=known)
        compared = torch.zeros(TEXTS, LENGTH)
        for i in range(TEXTS):
            for k in range(int(width) + 2):
                u = (draws.uniforms[i] + k) / (1 + width)
                if u > 1:
                    continue
                batch_clock = BatchClock(clock, LENGTH, rows(known, i), in_windows=True)
                t, s = (batch_clock(x.view(1, 1)).value for x in (u, u - 1e-7))
                moving = (s < t)[0]
                if not moving.any():
                    continue
                compared[i] += moving
                step = batch_clock.step_windows(float(u), t, s)
                assert step.written == step.seen == moving.nonzero()[0, 0]
                # Whatever the latents are that nothing may see.
                state = torch.randn(1, LENGTH, z.shape[-1], dtype=z.dtype)
                visible = moving if known is None else moving | known[i]
                state[:, visible] = z[i, visible]
                before = model.read_clean(ids[i : i + 1, : step.seen])[1] if step.seen else None
                alone = model.denoise(
                    state, t, rows(context, i), before, windows=step.windows, known=rows(known, i), window=step.tokens
                )
                actual, expected = alone.embeddings[0, moving], together.embeddings[i, moving]
                assert relative_error(actual, expected) < 1e-8
                if prediction_type == "categorical":
                    actual = alone.place(alone.logits)[0, moving]
                    assert relative_error(actual, together.logits[i, moving]) < 1e-8
        unknown = torch.ones_like(compared) if known is None else (~known).float()
        assert torch.equal(compared, unknown)


@pytest.mark.parametrize("prediction_type", PREDICTION_TYPES)
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_window_is_predicted_from_its_tokens_alone(name, prediction_type):
    """Without known tokens the predictor gets clean tokens, and the tokens of the window as its only noisy ones."""
    model, ids = ramp_model(name, prediction_type), torch.randint(VOCAB, (1, LENGTH), generator=seeded(0))
    z, context = make_inputs(name, 1, length=LENGTH)
    times, windows = model.token_times(model.clock(), model.draw(1, seeded(1)))
    together = model.denoise(z, times.value, context, model.clean_stream(ids, windows)[0], windows=windows)
    starts = windows.starts[0]
    assert len(starts.unique()) > 2
    for start in starts.unique().tolist():
        window = slice(start, start + int((starts == start).sum()))
        assert (starts[window] == start).all()
        clean = model.read_clean(ids[:, :start])[1] if start else None
        one = Windows(torch.full((1, LENGTH), start), 1)
        alone = model.denoise(z, times.value, context, clean, windows=one, window=window)
        assert relative_error(alone.embeddings[:, window], together.embeddings[:, window]) < 1e-10


# --- what a token must not see ---


@st.composite
def texts_in_windows(draw):
    """Where windows start, which tokens have settled in them, and which are given."""
    length = LENGTH - 2
    first = [True] + draw(st.lists(st.booleans(), min_size=length - 1, max_size=length - 1))
    starts = torch.where(torch.tensor(first), torch.arange(length), 0).cummax(0).values
    kinds = st.lists(st.sampled_from(["moving", "settled", "given", "noise"]), min_size=length, max_size=length)
    return starts, draw(kinds)


@settings(max_examples=150)
@given(
    texts_in_windows(),
    st.sampled_from(PREDICTION_TYPES),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**31),
)
@torch.no_grad()
def test_no_token_sees_what_it_must_not(text, prediction_type, self_conditioning, noted, seed):
    """Token by token: all that it may not see is changed at once, and what is said of it stays the same, bit for bit.

    What moves sees the clean tokens before its window, the noisy ones of its window, and what is given. What has
    settled sees clean tokens, too, and of noisy ones those that stand still up to itself; what is given sees what is
    given up to itself.
    """
    starts, kinds = text
    length = len(kinds)
    model = make_model(
        "diffusion-lm",
        max_length=length,
        predictor="two_stream",
        prediction_type=prediction_type,
        self_conditioning=self_conditioning,
        embedding_dim=4,
    )
    generator = seeded(seed)
    positions, given_tokens = torch.arange(length), torch.tensor([kind == "given" for kind in kinds])
    settled = given_tokens | torch.tensor([kind == "settled" for kind in kinds])
    noise = torch.tensor([kind == "noise" for kind in kinds])
    ids, other_ids = torch.randint(VOCAB, (2, 1, length), generator=generator)
    # Half of the time the given tokens are only noted as settled ones, and seen by their own window alone.
    known = given_tokens[None] if noted else None
    given_tokens = given_tokens & noted
    z, other_z = torch.randn(2, 1, length, 4, dtype=torch.float64, generator=generator)
    t, other_t = 0.01 + 0.98 * torch.rand(2, 1, length, dtype=torch.float64, generator=generator)
    t, other_t = (x.masked_fill(settled, 0).masked_fill(noise, 1) for x in (t, other_t))

    def predict(ids, z, t):
        windows = Windows(starts[None], 1)
        clean, _ = model.clean_stream(ids, windows)
        prediction = model.denoise(z, t, None, clean, windows=windows, known=known)
        return prediction.embeddings if prediction_type == "embedding" else prediction.logits

    expected = predict(ids, z, t)
    for i in range(length):
        same_window = starts == starts[i]
        if given_tokens[i]:
            sees_ids, sees_z = torch.zeros(length, dtype=torch.bool), given_tokens & (positions <= i)
        elif settled[i]:
            sees_ids = positions < starts[i]
            sees_z = (same_window & settled | given_tokens) & (positions <= i)
        else:
            sees_ids, sees_z = positions < starts[i], same_window | given_tokens
        changed = (
            torch.where(sees_ids, ids, other_ids),
            torch.where(sees_z[:, None], z, other_z),
            torch.where(sees_z, t, other_t),
        )
        assert torch.equal(predict(*changed)[:, i], expected[:, i]), (i, kinds, starts.tolist())


@pytest.mark.parametrize("prediction_type", PREDICTION_TYPES)
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_token_in_motion_sees_all_that_it_may(name, prediction_type):
    """Every clean token before its window, every token of its window, and every token that is given."""
    model, ids = ramp_model(name, prediction_type), torch.randint(VOCAB, (1, LENGTH), generator=seeded(0))
    z, context = make_inputs(name, 1, length=LENGTH)
    # Windows 012 345 678; 1, 5 and 7 are given, 3 has settled.
    windows = Windows((torch.arange(LENGTH) // 3 * 3)[None], 1)
    known = torch.tensor([[0, 1, 0, 0, 0, 1, 0, 1, 0]], dtype=torch.bool)
    t = torch.full((1, LENGTH), 0.7, dtype=torch.float64).masked_fill(known, 0)
    t[:, 3] = 0

    def predict(ids, z):
        clean, _ = model.clean_stream(ids, windows)
        prediction = model.denoise(z, t, context, clean, windows=windows, known=known)
        # A token whose latent says all is seen nowhere but in the states.
        return prediction.factors[0] if prediction.is_categorical else prediction.embeddings

    def changes(token, what):
        other_ids, other_z = ids.clone(), z.clone()
        if what == "ids":
            other_ids[:, token] = (ids[:, token] + 1) % VOCAB
        else:
            other_z[:, token] = -2 * z[:, token]
        changed = (predict(other_ids, other_z) != expected).any(-1)[0]
        return [i for i in (0, 2, 4, 6, 8) if changed[i]]

    expected = predict(ids, z)
    by_ids, by_latents = ([changes(token, what) for token in range(LENGTH)] for what in ("ids", "latents"))
    assert by_ids == [[4, 6, 8]] * 3 + [[6, 8]] * 3 + [[]] * 3
    # What is given is seen by windows before and around it, and behind it through what is given later.
    everyone = [0, 2, 4, 6, 8]
    assert by_latents == [[0, 2], everyone, [0, 2], [4], [4], everyone, [6, 8], everyone, [6, 8]]
