"""Sampling along every clock, around known tokens, and what is refused."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import DIM, MODELS, VOCAB, make_pipeline, seeded

from diffusers_text_nfdm import (
    BlockClock,
    MarkovChainScheduler,
    RampClock,
    ReverseODEScheduler,
    ReverseSDEScheduler,
    SharedClock,
)


LENGTH = 6
TWO_STREAM = {"max_length": LENGTH, "predictor": "two_stream", "prediction_type": "categorical"}
CLOCKS = [
    "shared",
    "ramp:0",
    "ramp:2",
    "random:2",
    "ramp:50",
    {"name": "ramp", "width": 2, "offsets": [0.0, 1.0, 0.5, 0.5, 0.0, 0.2]},
    "blocks:1",
    "blocks:3",
    "blocks:6",
    "blocks:3:ramp:1",
    "blocks:2:random:4",
]
SCHEDULERS = {
    "star": lambda: MarkovChainScheduler(),
    "chain": lambda: MarkovChainScheduler(0.5),
    "snr": lambda: MarkovChainScheduler("snr"),
    "tokens": lambda: MarkovChainScheduler(0.5, prediction="tokens"),
    "learned-grid": lambda: MarkovChainScheduler(0.0, time_grid="learned"),
    "sde": lambda: ReverseSDEScheduler(),
    "euler": lambda: ReverseODEScheduler("euler"),
    "heun": lambda: ReverseODEScheduler("heun"),
    "adaptive": lambda: ReverseODEScheduler("adaptive", rtol=1.0, atol=1.0),
}


def in_windows(clock) -> bool:
    return isinstance(clock, str) and clock.startswith(("blocks", "ramp")) and clock not in ("blocks:6", "ramp:0")


def combinations(schedulers):
    """Pairs of a scheduler and a clock; the adaptive method is not for windows."""
    return [
        (scheduler, clock)
        for scheduler in schedulers
        for clock in CLOCKS
        if scheduler != "adaptive" or not in_windows(clock)
    ]


@pytest.fixture(scope="module")
def pipelines():
    return {name: make_pipeline(name, **TWO_STREAM) for name in MODELS}


# --- clocks ---


@pytest.mark.parametrize("clock", CLOCKS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_every_model_follows_every_clock(pipelines, name, clock):
    pipe, seen = pipelines[name], []

    def watch(pipeline, step, timestep, tensors):
        seen.append(tensors["latents"])

    options = {"num_samples": 3, "num_inference_steps": 6, "clock": clock, "callback_on_step_end": watch}
    for scheduler in ("star", "tokens", "sde", "heun"):
        pipe.scheduler = SCHEDULERS[scheduler]()
        output = pipe(**options, generator=seeded(0))
        assert output.sequences.shape == (3, LENGTH) and len(output.texts) == 3
        assert output.sequences.min() >= 0 and output.sequences.max() < VOCAB
        assert len(seen) >= 6 and all(z.shape == (3, LENGTH, DIM) and torch.isfinite(z).all() for z in seen)
        seen.clear()


@pytest.mark.parametrize("predictor", ["bert", "two_stream"])
@pytest.mark.parametrize("kind", ["embedding", "categorical"])
def test_every_predictor_and_prediction_follows_every_ramp(predictor, kind):
    pipe = make_pipeline("nfdm", max_length=LENGTH, predictor=predictor, prediction_type=kind)
    for clock in CLOCKS:
        if predictor == "two_stream" or "blocks" not in clock:
            assert pipe(num_inference_steps=8, clock=clock, output_type="seq").sequences.shape == (1, LENGTH)


def test_a_clock_may_be_given_in_words_or_as_it_is(pipelines):
    pipe = pipelines["diffusion-lm"]
    pipe.scheduler = SCHEDULERS["chain"]()
    for words, clock in (("shared", SharedClock()), ("ramp:2", RampClock(2)), ("blocks:3", BlockClock(3))):
        options = {"num_samples": 2, "num_inference_steps": 8, "output_type": "latent"}
        a, b = (pipe(clock=one, generator=seeded(0), **options).latents for one in (words, clock))
        assert torch.equal(a, b)


@pytest.mark.parametrize("clock", ["ramp:2", "blocks:3"])
def test_the_clock_of_the_config_is_the_default(clock):
    pipe = make_pipeline("diffusion-lm", **TWO_STREAM, clock=clock)
    options = {"num_samples": 2, "num_inference_steps": 8, "output_type": "latent"}
    own, same, other = (pipe(generator=seeded(0), clock=one, **options).latents for one in (None, clock, "shared"))
    assert torch.equal(own, same) and not torch.allclose(own, other)


@pytest.mark.parametrize("name", ["diffusion-lm", "mulan"])
def test_a_ramp_of_width_zero_is_the_shared_clock(name):
    pipe = make_pipeline(name, SCHEDULERS["chain"](), torch.float64, **TWO_STREAM)
    options = {"num_samples": 3, "num_inference_steps": 8, "output_type": "latent"}
    shared, ramp = (pipe(generator=seeded(0), clock=clock, **options).latents for clock in ("shared", "ramp:0"))
    torch.testing.assert_close(ramp, shared, rtol=1e-9, atol=1e-9)


def test_tokens_settle_in_the_order_of_a_ramp(pipelines):
    """Along a steep ramp one token after the other comes to rest, and what it then is does not change."""
    pipe = pipelines["diffusion-lm"]
    pipe.scheduler = SCHEDULERS["star"]()
    seen = []

    def watch(pipeline, step, timestep, tensors):
        seen.append(tensors["latents"])

    pipe(num_samples=2, num_inference_steps=30, clock="ramp:50", generator=seeded(0), callback_on_step_end=watch)
    last_change = torch.stack([(a != b).any(-1).any(0) for a, b in zip(seen, seen[1:])]).long()
    last_change = [int(column.nonzero().max()) for column in last_change.T if column.any()]
    assert last_change == sorted(last_change) and len(set(last_change)) >= LENGTH - 1


def test_every_text_has_a_random_order_of_its_own(pipelines):
    pipe, seen = pipelines["diffusion-lm"], []
    pipe.scheduler, denoise = SCHEDULERS["star"](), pipe.model.denoise

    def spy(z, t, *args, **options):
        seen.append(t)
        return denoise(z, t, *args, **options)

    pipe.model.denoise = spy
    try:
        pipe(num_samples=8, num_inference_steps=8, clock="random:4", generator=seeded(0))
    finally:
        del pipe.model.denoise
    orders = seen[4].argsort(dim=-1)
    assert len(orders.unique(dim=0)) > 4
    assert (seen[0] == 1).all() and all((a >= b).all() for a, b in zip(seen, seen[1:]))


# --- what a sample depends on ---


@pytest.mark.parametrize(
    "scheduler, clock",
    combinations(["star", "snr", "tokens", "sde", "heun", "adaptive"]),
)
def test_a_sample_does_not_depend_on_its_batch(clock, scheduler):
    pipe = make_pipeline("mulan", SCHEDULERS[scheduler](), torch.float64, **TWO_STREAM)
    ids, known = torch.randint(VOCAB, (4, LENGTH), generator=seeded(1)), torch.zeros(4, LENGTH, dtype=torch.bool)
    # Texts that are at other places at the same time, one with a single token to write, one with all.
    known[0, [0, 1, 3]], known[1, [1, 4, 5]], known[2, [0, 1, 2, 3, 5]] = True, True, True
    options = {"num_inference_steps": 6, "clock": clock, "output_type": "latent"}
    for given_tokens in ({}, {"input_ids": ids, "known": known}):
        whole = pipe(num_samples=4, generator=[seeded(i) for i in range(4)], **given_tokens, **options).latents
        split = pipe(
            num_samples=4, generator=[seeded(i) for i in range(4)], batch_size=3, **given_tokens, **options
        ).latents
        torch.testing.assert_close(split, whole, rtol=1e-6, atol=1e-6)
        rows = {name: value[2:3] for name, value in given_tokens.items()}
        alone = pipe(generator=[seeded(2)], **rows, **options).latents
        torch.testing.assert_close(alone, whole[2:3], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("clock", ["shared", "ramp:2", "ramp:50", "blocks:3"])
@pytest.mark.parametrize("scheduler", ["star", "snr", "sde", "heun"])
def test_drawn_tokens_do_not_depend_on_the_batch_either(scheduler, clock):
    """Rows in which other tokens are known finish tokens at other times, some before all of them can be kept."""
    options = {"embedding_dim": 4, "self_conditioning": scheduler == "star"}
    pipe = make_pipeline("diffusion-lm", SCHEDULERS[scheduler](), torch.float64, **TWO_STREAM, **options)
    ids = torch.randint(VOCAB, (6, LENGTH), generator=seeded(1))
    known = torch.rand(6, LENGTH, generator=seeded(3)) < 0.5
    known[torch.arange(6), torch.arange(6)] = False
    known[0], known[1, 0] = False, True
    options = {"num_inference_steps": 9, "clock": clock, "output_type": "seq", "temperature": 1.0}
    whole = pipe(input_ids=ids, known=known, generator=[seeded(i) for i in range(6)], **options).sequences
    assert torch.equal(whole[known], ids[known])
    for i in range(6):
        rows = {"input_ids": ids[i : i + 1], "known": known[i : i + 1]}
        assert torch.equal(pipe(**rows, generator=[seeded(i)], **options).sequences, whole[i : i + 1])


def test_a_mask_without_known_tokens_is_no_mask(pipelines):
    pipe = pipelines["diffusion-lm"]
    pipe.scheduler = SCHEDULERS["star"]()
    ids = torch.zeros(2, LENGTH, dtype=torch.long)
    for clock in ("ramp:2", "blocks:3"):
        options = {"num_inference_steps": 6, "clock": clock, "output_type": "latent"}
        none = pipe(num_samples=2, generator=seeded(0), **options).latents
        empty = pipe(input_ids=ids, known=ids.bool(), generator=seeded(0), **options).latents
        torch.testing.assert_close(empty, none, rtol=1e-4, atol=1e-4)


# --- known tokens ---


@settings(max_examples=60)
@given(data=st.data())
def test_known_tokens_come_back_as_they_are(pipelines, data):
    pipe = pipelines[data.draw(st.sampled_from(list(MODELS)))]
    clock = data.draw(st.sampled_from(CLOCKS))
    names = [name for name in SCHEDULERS if name != "adaptive" or not in_windows(clock)]
    if "nfdm" in pipe.model.config.model_type:
        # It has no signal-to-noise ratio.
        names.remove("snr")
    pipe.scheduler = SCHEDULERS[data.draw(st.sampled_from(names))]()
    rows = st.lists(st.booleans(), min_size=LENGTH, max_size=LENGTH).filter(lambda row: not all(row))
    known = torch.tensor(data.draw(st.lists(rows, min_size=1, max_size=3)))
    ids = torch.randint(VOCAB, known.shape, generator=seeded(data.draw(st.integers(0, 99))))
    temperature = data.draw(st.sampled_from([0.0, 1.0, 5.0]))
    output = pipe(
        input_ids=ids, known=known, clock=clock, num_inference_steps=7, temperature=temperature, output_type="seq",
        generator=seeded(0), return_trajectory=True,
    )  # fmt: skip
    assert output.sequences.shape == ids.shape and torch.equal(output.sequences[known], ids[known])
    # From the first prediction on.
    assert all(torch.equal(tokens[known], ids[known]) for tokens in output.trajectory)


@pytest.mark.parametrize("scheduler, clock", combinations(SCHEDULERS))
def test_latents_of_known_tokens_are_clean_from_the_first_step_on(pipelines, scheduler, clock):
    pipe, seen = pipelines["diffusion-lm"], []
    pipe.scheduler, model = SCHEDULERS[scheduler](), pipe.model
    ids = torch.randint(VOCAB, (2, LENGTH), generator=seeded(1))
    known = torch.tensor([[True, False, False, True, True, False], [False, False, True, False, False, False]])
    pipe(
        input_ids=ids, known=known, clock=clock, num_inference_steps=7, generator=seeded(0),
        callback_on_step_end=lambda pipeline, step, u, tensors: seen.append(tensors["latents"]),
    )  # fmt: skip
    clean = model.forward_process.initial_marginal(model.embed(ids)).mean
    assert len(seen) >= 6 and all(torch.equal(latents[known], clean[known]) for latents in seen)


@pytest.mark.parametrize("clock", ["shared", "ramp:2", "blocks:3"])
def test_unknown_tokens_depend_on_the_known_ones(clock):
    """All of them, whatever the windows: what is given is seen by every one."""
    pipe = make_pipeline("diffusion-lm", SCHEDULERS["chain"](), **{**TWO_STREAM, "prediction_type": "embedding"})
    known = torch.zeros(1, LENGTH, dtype=torch.bool)
    known[:, 4] = True
    options = {"known": known, "clock": clock, "num_inference_steps": 8, "output_type": "latent"}
    ids = torch.zeros(1, LENGTH, dtype=torch.long)
    one = pipe(input_ids=ids, generator=seeded(0), **options).latents
    # What is not known is not looked at.
    same = pipe(input_ids=torch.where(known, ids, 5), generator=seeded(0), **options).latents
    assert torch.equal(one, same)
    other = pipe(input_ids=ids + 7, generator=seeded(0), **options).latents
    assert (one != other).any(-1).all()


def test_the_number_of_samples_is_that_of_the_given_texts(pipelines):
    pipe = pipelines["diffusion-lm"]
    pipe.scheduler = SCHEDULERS["star"]()
    ids = torch.zeros(5, LENGTH, dtype=torch.long)
    known = torch.eye(LENGTH).bool()[:5]
    output = pipe(input_ids=ids, known=known, num_inference_steps=2, batch_size=2)
    assert len(output.texts) == 5


# --- what is refused ---

IDS = torch.zeros(2, LENGTH, dtype=torch.long)
SOME = torch.eye(LENGTH).bool()[:2]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"clock": "blocks:4"}, "The `size` of blocks is 4; it must divide the 6 tokens"),
        ({"clock": "blocks:0"}, "The `size` of blocks is 0; it must be an integer of at least 1"),
        ({"clock": "blocks:2", "num_inference_steps": 2}, "`num_inference_steps` is 2; .*'blocks:2' .* 3 blocks"),
        ({"clock": "blocks:3", "timesteps": [1.0, 0.25]}, "`timesteps` is .*; along the clock 'blocks:3'"),
        ({"clock": "ramp:-1"}, "The `width` of a ramp is -1.0; it must be a number of at least 0"),
        ({"clock": "ramp:nan"}, "The `width` of a ramp is nan"),
        ({"clock": "spiral"}, "The clock is 'spiral'; it must be 'shared', 'ramp:WIDTH'"),
        ({"clock": 8}, "The clock is 8; it must be"),
        ({"clock": RampClock(2, offsets=[0.0, 1.0])}, "The `offsets` of a ramp are 2 numbers; .* 6 tokens"),
        ({"input_ids": IDS}, "`input_ids` and `known` go together"),
        ({"known": SOME}, "`input_ids` and `known` go together"),
        ({"input_ids": IDS, "known": SOME[:, :5]}, r"`known` has shape \(2, 5\); it must be \(2, 6\)"),
        ({"input_ids": IDS, "known": SOME[:1]}, r"`known` has shape \(1, 6\); it must be \(2, 6\)"),
        ({"input_ids": IDS, "known": SOME.long()}, "`known` is of type torch.int64; it must be a tensor of booleans"),
        ({"input_ids": IDS, "known": SOME.tolist()}, "`known` is of type list; it must be a tensor of booleans"),
        ({"input_ids": IDS, "known": torch.tensor([[False] * 6, [True] * 6])}, "`known` is True .* of text 1"),
        ({"input_ids": IDS[:, :5], "known": SOME[:, :5]}, r"`input_ids` has shape \(2, 5\)"),
        ({"input_ids": IDS + VOCAB, "known": SOME}, "`input_ids` has values from 11 to 11"),
        ({"input_ids": IDS, "known": SOME, "num_samples": 3}, "`input_ids` has 2 rows for 3 samples"),
    ],
    ids=str,
)
def test_bad_input_is_refused_by_name_and_value_before_any_work(arguments, message, monkeypatch):
    pipe = make_pipeline("diffusion-lm", **TWO_STREAM)
    monkeypatch.setattr(pipe.model, "denoise", None)
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=message):
        pipe(**arguments)
    assert torch.equal(torch.get_rng_state(), state)


def test_blocks_need_the_two_stream_predictor():
    pipe = make_pipeline("diffusion-lm", max_length=LENGTH)
    with pytest.raises(
        ValueError, match="The clock 'blocks:2' is one of blocks, .* `predictor` 'bert', not 'two_stream'"
    ):
        pipe(clock="blocks:2")


def test_a_clock_that_the_model_was_not_trained_on_is_named():
    pipe = make_pipeline("diffusion-lm", max_length=LENGTH, trained_clocks=["shared", "ramp:3"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pipe(num_inference_steps=2, clock="ramp:3")
    with pytest.warns(UserWarning, match="not trained on the clock 'ramp:5'.*shared, ramp:3"):
        pipe(num_inference_steps=2, clock="ramp:5")
