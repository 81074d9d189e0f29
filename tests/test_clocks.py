"""Clocks: times and rates of tokens, what they refuse, and how they are written."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import LENGTH, MODELS, make_ids, make_model, seeded

from diffusers_text_nfdm import BlockClock, Clock, NFDMConfig, RampClock, SharedClock
from diffusers_text_nfdm.clocks import BatchClock, check_clock, check_known, hold_known, make_clock
from diffusers_text_nfdm.networks.dual import Dual


CLOCKS = ["shared", "ramp:0", "ramp:0.5", "ramp:3", "random:2", "ramp:100", "blocks:1", "blocks:4", "blocks:12"]
TWELVE = 12


def times_along(clock: Clock, points: int = 401, **options) -> tuple[torch.Tensor, Dual]:
    u = torch.linspace(0, 1, points, dtype=torch.float64)[:, None]
    order = torch.rand(1, TWELVE, dtype=torch.float64, generator=seeded(0)).expand(points, -1)
    times = clock.token_times(u, TWELVE, order=order, **options)
    return u, times.map_linear(lambda x: x.expand(points, TWELVE))


@pytest.mark.parametrize("name", CLOCKS)
def test_token_times_go_from_text_to_noise_and_never_back(name):
    _, times = times_along(make_clock(name, TWELVE))
    assert not times.value[0].any() and (times.value[-1] == 1).all()
    assert (times.value.diff(dim=0) >= 0).all() and (times.rate >= 0).all()


@pytest.mark.parametrize("name", CLOCKS)
def test_rates_are_the_slopes_of_the_times(name):
    """The integral of every rate is the way from 0 to 1, and inside a piece it is the difference quotient."""
    clock, h = make_clock(name, TWELVE), 1e-6
    u = torch.rand(200, 1, dtype=torch.float64, generator=seeded(1)) * (1 - h)
    order = torch.rand(200, TWELVE, dtype=torch.float64, generator=seeded(2))
    before, after = (clock.token_times(x, TWELVE, order=order) for x in (u, u + h))
    same_piece = (before.rate > 0) == (after.rate > 0)
    slopes = (after.value - before.value) / h
    assert torch.allclose(slopes[same_piece], before.rate.expand_as(slopes)[same_piece], atol=1e-6)
    assert same_piece.double().mean() > 0.9
    _, times = times_along(clock, points=100_001)
    assert torch.allclose(times.rate.mean(0), torch.ones(TWELVE, dtype=torch.float64), atol=3e-3)


def test_a_ramp_settles_the_text_from_left_to_right():
    u, times = times_along(RampClock(3))
    assert (times.value.diff(dim=1) >= 0).all()
    in_motion = (times.rate > 0).sum(1)
    # About length / width tokens, once the front is inside the text.
    assert in_motion.max() <= TWELVE / 3 + 1
    assert torch.equal(
        times.value[200], (4 * u[200] - 3 * torch.linspace(1, 0, TWELVE, dtype=torch.float64)).clamp(0, 1)
    )


def test_a_ramp_of_width_zero_is_the_shared_clock():
    _, ramp = times_along(RampClock(0))
    _, shared = times_along(SharedClock())
    assert torch.equal(ramp.value, shared.value)


def test_a_ramp_in_random_order_has_an_order_for_every_text():
    order = torch.rand(50, TWELVE, dtype=torch.float64, generator=seeded(3))
    u = torch.full((50, 1), 0.5, dtype=torch.float64)
    offsets = RampClock(3, order="random").token_offsets(u, TWELVE, None, order)
    assert torch.equal(offsets.argsort(1, descending=True), order.argsort(1))
    expected = torch.linspace(0, 1, TWELVE, dtype=torch.float64)
    assert torch.allclose(offsets.sort(1).values, expected.expand(50, -1))


def test_offsets_of_ones_own_are_taken_as_they_are():
    offsets = [0.0, 1.0, 0.25, 0.5] * 3
    clock = make_clock({"name": "ramp", "width": 2, "offsets": offsets}, TWELVE)
    u, times = times_along(clock)
    assert torch.allclose(times.value, (3 * u - 2 * torch.tensor(offsets, dtype=torch.float64)).clamp(0, 1))
    assert make_clock(clock.to_config(), TWELVE) == clock


def test_blocks_move_one_after_the_other():
    clock = BlockClock(4)
    u, times = times_along(clock, points=301)
    blocks = times.value[:, ::4]
    assert torch.equal(times.value, blocks.repeat_interleave(4, 1))
    for block in range(3):
        assert torch.allclose(blocks[:, block], (3 * u[:, 0] - (2 - block)).clamp(0, 1), atol=1e-12)
    assert ((times.rate > 0)[:, ::4].sum(1) <= 1).all()


@pytest.mark.parametrize("blocks", [1, 2, 3, 7, 60, 64, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_block_is_finished_when_the_next_one_begins_whatever_the_rounding(blocks, dtype):
    clock = BatchClock(BlockClock(1), blocks, in_windows=True)
    grid = clock.clock.time_grid(2 * blocks, blocks)
    for step, u in enumerate(grid[:-1]):
        t, s = (clock(torch.tensor([[time]], dtype=dtype)).value for time in (u, grid[step + 1]))
        block = step // 2
        assert not t[0, :block].any() and (t[0, block + 1 :] == 1).all()
        window = clock.step_windows(u, t, s)
        if blocks == 1:
            assert window is None and not clock.has_windows and clock.mixing is None
        else:
            assert window.tokens == slice(block, block + 1) and window.written == window.seen == block
            assert window.windows.starts.tolist() == [list(range(blocks))] and window.windows.mixing == 1


# --- windows ---


def known_tokens(seed: int, texts: int) -> torch.Tensor | None:
    """A mask for every text with at least one unknown token; none for an even seed."""
    if seed % 2 == 0:
        return None
    known = torch.rand(texts, TWELVE, generator=seeded(seed)) < torch.rand(texts, 1, generator=seeded(seed + 1))
    known[torch.arange(texts), torch.randint(TWELVE, (texts,), generator=seeded(seed + 2))] = False
    return known


@settings(max_examples=60)
@given(st.floats(0.1, 40), st.integers(0, 2**31))
def test_a_ramp_is_a_row_of_windows_at_all_of_its_times_at_once(width, seed):
    """At the global times `(u + k) / (1 + w)` every token moves exactly once, at its parallel time."""
    clock, texts = RampClock(width), 5
    known = known_tokens(seed, texts)
    u = 1e-4 + (1 - 2e-4) * torch.rand(texts, 1, dtype=torch.float64, generator=seeded(seed + 3))
    (t, rate), (starts, mixing) = clock.parallel_times(u, TWELVE, known)
    unknown = torch.ones(texts, TWELVE, dtype=torch.bool) if known is None else ~known
    assert (rate == 1).all() and mixing == 1
    batch_clock = BatchClock(clock, TWELVE, known, in_windows=True)
    times_moved = torch.zeros(texts, TWELVE)
    # At the last of them only tokens move whose time in the window is before u.
    for k in range(int(width) + 2):
        now = (u + k) / (1 + width)
        inside = (now <= 1).expand(texts, TWELVE)
        single = batch_clock(now.clamp_max(1))
        moving = (single.rate > 0) & inside
        times_moved += moving
        torch.testing.assert_close(single.value[moving], t[moving], rtol=0, atol=1e-9)
        torch.testing.assert_close(single.rate[moving], rate[moving] * (1 + width), rtol=1e-12, atol=0)
        for i in range(texts):
            if moving[i].any():
                positions = moving[i].nonzero()[:, 0]
                assert (starts[i][moving[i]] == positions[0]).all(), "a window is known by where it starts"
                between = slice(int(positions[0]), int(positions[-1]) + 1)
                assert (starts[i, between] == positions[0]).all(), "its tokens follow one another"
                assert (moving[i] | ~unknown[i])[between].all()
                # Those before are text, those behind noise, or known.
                assert not single.value[i, : positions[0]].any()
                assert ((single.value[i] == 1) | ~unknown[i])[between.stop :].all()
    assert torch.equal(times_moved, unknown.float()), "each token exactly once"


def test_parallel_times_of_a_ramp_are_uniform():
    u = (torch.arange(1000, dtype=torch.float64)[:, None] + 0.5) / 1000
    for width in (0.5, 3, 8.3):
        (t, _), _ = RampClock(width).parallel_times(u, TWELVE)
        expected = u.expand_as(t)
        assert (t.sort(0).values - expected).abs().max() < 1e-3 + 1e-9


def test_by_a_density_the_parallel_times_have_its_weight():
    def density(times):
        return Dual(times.value**2, 2 * times.value * times.rate)

    u = torch.rand(4, 1, dtype=torch.float64, generator=seeded(0))
    (plain, _), windows = RampClock(3).parallel_times(u**2, TWELVE)
    (t, rate), same = RampClock(3).parallel_times(u, TWELVE, density=density)
    assert torch.equal(t, plain) and torch.equal(rate, (2 * u).expand_as(t)) and torch.equal(windows[0], same[0])


@pytest.mark.parametrize("name", ["shared", "ramp:0", "random:2", "blocks:12"])
def test_other_clocks_have_one_window_at_one_time(name):
    clock, order = make_clock(name, TWELVE), torch.rand(3, TWELVE, dtype=torch.float64, generator=seeded(0))
    u = torch.rand(3, 1, dtype=torch.float64, generator=seeded(1))
    times, windows = clock.parallel_times(u, TWELVE, None, order)
    single = clock.single_times(u, TWELVE, None, order)
    assert windows is None and not BatchClock(clock, TWELVE, None, order, in_windows=True).has_windows
    assert torch.equal(times.value.expand(3, TWELVE), single.value.expand(3, TWELVE))


@settings(max_examples=60)
@given(st.floats(0.1, 40), st.integers(0, 2**31), st.integers(1, 20))
def test_a_step_along_a_ramp_asks_for_what_moves_and_for_what_is_given(width, seed, steps):
    known = known_tokens(seed, 3)
    clock = BatchClock(RampClock(width), TWELVE, known, in_windows=True)
    grid = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
    given = torch.zeros(3, TWELVE, dtype=torch.bool) if known is None else known
    written = 0
    for u, next_u in zip(grid, grid[1:]):
        t, s = (clock(time.expand(3, 1)).value for time in (u, next_u))
        step = clock.step_windows(float(u), t, s)
        assert written <= step.written <= step.seen
        written, starts = step.written, step.windows.starts
        assert not t[:, :written].any(), "what is written stands still in all texts"
        asked = torch.zeros(3, TWELVE, dtype=torch.bool)
        asked[:, step.tokens] = True
        assert asked[s < t].all()
        for i in range(3):
            moving = (s[i] < t[i]).nonzero()[:, 0]
            if len(moving):
                first, last = int((t[i] > 0).nonzero()[0]), int(moving[-1])
                window = torch.arange(TWELVE)[starts[i] == first]
                assert window.tolist() == list(range(first, last + 1)) and first <= step.seen
                # What is behind the window begins one of its own.
                assert last + 1 == TWELVE or starts[i, last + 1] == last + 1
                if given[i, first:].any():
                    assert asked[i][given[i]].all()


def test_steps_are_shared_out_evenly_to_the_blocks():
    grid = BlockClock(4).time_grid(7, TWELVE)
    assert len(grid) == 8 and grid[0] == 1 and grid[-1] == 0
    assert grid[3] == pytest.approx(2 / 3) and grid[5] == pytest.approx(1 / 3)


@settings(deadline=None)
@given(st.sampled_from(CLOCKS[:6]), st.integers(0, 2**31), st.floats(0, 1))
def test_unknown_tokens_share_the_whole_time_and_known_ones_have_none(name, seed, u):
    known = torch.rand(3, TWELVE, generator=seeded(seed)) < 0.5
    known[:, seed % TWELVE] = False
    order = torch.rand(3, TWELVE, dtype=torch.float64, generator=seeded(seed + 1))
    clock = BatchClock(make_clock(name, TWELVE), TWELVE, known, order)
    times = clock(torch.full((3, 1), u, dtype=torch.float64))
    assert not times.value[known].any() and not times.rate[known].any()
    ends = [clock(torch.full((3, 1), end, dtype=torch.float64)).value for end in (0.0, 1.0)]
    assert not ends[0].any() and (ends[1][~known] == 1).all()
    # The first of the unknown tokens moves at once.
    start = clock(torch.full((3, 1), 1 - 1e-9, dtype=torch.float64))
    assert (start.rate > 0).any(1).all()


@pytest.mark.parametrize("name", CLOCKS)
def test_a_clock_is_what_its_config_says(name):
    clock = make_clock(name, TWELVE)
    assert make_clock(clock.to_config(), TWELVE) == clock
    assert make_clock(clock, TWELVE) is clock


@pytest.mark.parametrize(
    "clock, message",
    [
        ("hourglass", "The clock is 'hourglass'; it must be 'shared'"),
        ("ramp", "The clock is 'ramp'"),
        ("ramp:-1", "`width` of a ramp is -1.0; it must be a number of at least 0"),
        ("ramp:nan", "`width` of a ramp is nan"),
        ("blocks:5", "`size` of blocks is 5; it must divide the 12 tokens"),
        ("blocks:0", "`size` of blocks is 0; it must be an integer of at least 1"),
        ("blocks:2.5", "The clock is 'blocks:2.5'"),
        (7, "The clock is 7"),
        ({"name": "ramp"}, "a dict must be"),
        ({"name": "ramp", "width": 2, "offsets": [0.5] * 3}, "3 numbers; texts of this model have 12 tokens"),
        ({"name": "ramp", "width": 2, "offsets": [1.5] * 12}, "must be numbers in \\[0, 1\\]"),
        ({"name": "ramp", "width": 2, "offsets": ["a"]}, "must be numbers in \\[0, 1\\]"),
    ],
)
def test_what_is_no_clock_is_refused(clock, message):
    with pytest.raises(ValueError, match=message):
        make_clock(clock, TWELVE)


class Custom(Clock):
    """A clock of one's own, from a function of u."""

    def __init__(self, function):
        self.function = function

    def token_times(self, u, length, known=None, order=None):
        times = self.function(u)
        slopes = torch.cat([times.diff(dim=0), times.diff(dim=0)[-1:]])
        return Dual(times, slopes * (len(u) - 1))

    def to_config(self):
        return "custom"


def test_a_clock_of_ones_own_is_checked():
    check_clock(Custom(lambda u: u * u), TWELVE)
    for function, message in (
        (lambda u: 4 * u * (1 - u) * 0.9 + u * 0.1, "is not monotone"),
        (lambda u: 0.5 * u, "does not go from text to noise"),
        (lambda u: (2 * u).clamp_max(0.5) + (2 * u - 1.5).clamp_min(0), "lets tokens pause between 0 and 1"),
        (lambda u: 2 * u, "must be in \\[0, 1\\]"),
        (lambda u: u.expand(-1, 3), "must be \\(batch, 12\\) or \\(batch, 1\\)"),
    ):
        with pytest.raises(ValueError, match=message):
            make_clock(Custom(function), TWELVE)


@pytest.mark.parametrize(
    "known, message",
    [
        ([[True]], "`known` is of type list"),
        (torch.zeros(2, LENGTH), "`known` is of type torch.float32; it must be a tensor of booleans"),
        (torch.zeros(2, LENGTH + 1, dtype=torch.bool), "`known` has shape \\(2, 6\\); it must be \\(2, 5\\)"),
        (torch.ones(2, LENGTH, dtype=torch.bool), "`known` is True for every token of text 0; nothing is left"),
    ],
)
def test_what_is_no_mask_of_known_tokens_is_refused(known, message):
    with pytest.raises(ValueError, match=message):
        check_known(known, (2, LENGTH))
    with pytest.raises(ValueError, match=message):
        make_model("nfdm")(make_ids(2), known=known)


@pytest.mark.parametrize(
    "t", [torch.full((2,), 1.5), torch.full((2, LENGTH), -0.1), torch.zeros(2, 3), torch.zeros(3)]
)
def test_times_outside_the_interval_or_of_the_wrong_shape_are_refused(t):
    with pytest.raises(ValueError, match="`t` (is|has shape)"):
        make_model("nfdm")(make_ids(2), t=t)


def test_a_clock_of_blocks_needs_a_predictor_that_reads_clean_tokens():
    with pytest.raises(ValueError, match="texts in blocks need 'two_stream'"):
        NFDMConfig(clock="blocks:8")
    with pytest.raises(ValueError, match="not 'two_stream'"):
        make_model("nfdm")(make_ids(2), clock="blocks:1")


def test_the_clock_saves_and_loads_with_the_model(tmp_path):
    model = make_model("nfdm", clock="random:3")
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=torch.float64)
    assert loaded.clock() == RampClock(3.0, order="random")
    ids = make_ids(4)
    assert torch.equal(model(ids, generator=seeded(0)).bound, loaded(ids, generator=seeded(0)).bound)
    assert not torch.equal(
        model(ids, generator=seeded(0)).bound, model(ids, clock="shared", generator=seeded(0)).bound
    )


def test_held_tokens_do_not_move():
    known = torch.tensor([[True, False, True]])
    times = hold_known(Dual(torch.full((1, 1), 0.5), torch.ones(1, 1)), known)
    assert times.value.tolist() == [[0, 0.5, 0]] and times.rate.tolist() == [[0, 1, 0]]


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from(list(MODELS)),
    st.sampled_from(["shared", "blocks:1"]) | st.floats(0, 50).map(lambda w: f"ramp:{w}"),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_whatever_the_clock_and_the_mask_nothing_is_nan_and_no_known_token_contributes(name, clock, categorical, seed):
    kind = "categorical" if categorical else "embedding"
    model, ids = make_model(name, prediction_type=kind, predictor="two_stream"), make_ids(3)
    known = torch.rand(3, LENGTH, generator=seeded(seed)) < 0.5
    known[:, seed % LENGTH] = False
    draws = model.draw(3, seeded(seed))
    output = model(ids, known=known, clock=clock, draws=draws)
    for value in (output.loss, output.bound, output.diffusion, output.reconstruction, output.prior):
        assert torch.isfinite(value).all()
    # What is drawn for known tokens does not matter.
    for noise in (draws.noise, draws.initial_noise):
        noise[known] += 1
    again = model(ids, known=known, clock=clock, draws=draws)
    assert torch.equal(output.bound, again.bound)
