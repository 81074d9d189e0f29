"""Tokens with times of their own: those that stand still do not move, and the others arrive where they should."""

from itertools import product

import pytest
import torch
from gaussian_data import GaussianData, order_of_convergence
from tiny import CONTEXT, DIM, LENGTH, MODELS, VARIANCE_PRESERVING, VOCAB, make_process, seeded

from diffusers_text_nfdm import (
    MarkovChainScheduler,
    RampClock,
    ReverseODEScheduler,
    ReverseSDEScheduler,
    SharedClock,
)
from diffusers_text_nfdm.clocks import BatchClock, make_clock
from diffusers_text_nfdm.models import Prediction


BATCH, SIX = 3, 6
SCHEDULERS = {
    "star": lambda: MarkovChainScheduler(),
    "chain": lambda: MarkovChainScheduler(0.5),
    "deterministic": lambda: MarkovChainScheduler(0.0),
    "ancestral": lambda: MarkovChainScheduler("snr"),
    "tokens": lambda: MarkovChainScheduler(0.5, prediction="tokens"),
    "sde": lambda: ReverseSDEScheduler(),
    "euler": lambda: ReverseODEScheduler("euler"),
    "heun": lambda: ReverseODEScheduler("heun"),
    "adaptive": lambda: ReverseODEScheduler("adaptive", rtol=0.1, atol=0.1),
}
CLOCKS = ["ramp:0.5", "ramp:4", "random:4", "ramp:40", "blocks:1", "blocks:2"]
PROCESSES = {name: make_process(name, max_length=SIX).requires_grad_(False) for name in MODELS}
# NFDM has no signal-to-noise ratio, and the adaptive method is not for texts in blocks. It takes many steps: one model
# of each process is enough for it.
RUNS = [
    (name, scheduler, clock)
    for name in MODELS
    for scheduler in SCHEDULERS
    for clock in CLOCKS
    if not (scheduler == "ancestral" and name not in VARIANCE_PRESERVING)
    and not (scheduler == "adaptive" and (clock.startswith("blocks") or name not in ("nfdm", "mulan", "diffusion-lm")))
]


def batch_clock(name: str, known: torch.Tensor | None = None) -> BatchClock:
    order = torch.rand(BATCH, SIX, dtype=torch.float64, generator=seeded(5))
    return BatchClock(make_clock(name, SIX), SIX, known, order)


def prediction(z: torch.Tensor) -> Prediction:
    """Some prediction of every token that depends on z."""
    weight = torch.randn(VOCAB, DIM, dtype=z.dtype, generator=seeded(6))
    return Prediction(factors=(z, weight, torch.zeros(VOCAB, dtype=z.dtype)), table=weight)


def states(name: str, scheduler, clock: BatchClock, num_steps: int = 13):
    """The latents before the first call of `step` and after every one, and `(u, u')` of the step that it was a part
    of.
    """
    scheduler.set_timesteps(num_steps, clock=clock)
    context = torch.randn(BATCH, CONTEXT, dtype=torch.float64, generator=seeded(1))
    options = {"forward_process": PROCESSES[name], "generator": seeded(2)}
    options["context"] = context if name.startswith("mulan") else None
    z = torch.randn(BATCH, SIX, DIM, dtype=torch.float64, generator=seeded(3))
    yield z, None
    for u in scheduler.timesteps:
        adaptive = getattr(scheduler, "_state", None)
        before = None if adaptive is None else (adaptive.u, adaptive.u - adaptive.h)
        z = scheduler.step(prediction(z), u, z, **options).prev_sample
        if before is None:
            index = scheduler._step_index
            before = (1.0, 1.0) if index is None else (scheduler._grid[index - 1], scheduler._grid[index])
        yield z, before


@pytest.mark.parametrize("name, scheduler_name, clock_name", RUNS)
def test_tokens_whose_times_do_not_change_stay_as_they_are_bit_for_bit(name, scheduler_name, clock_name):
    scheduler, clock = SCHEDULERS[scheduler_name](), batch_clock(clock_name)
    run = states(name, scheduler, clock)
    z, _ = next(run)
    stood = moved = 0
    for after, (u, next_u) in run:
        t, s = (scheduler.token_times(x, z).value.expand(BATCH, SIX) for x in (u, next_u))
        if scheduler_name == "adaptive":
            # A stage of the next step may have begun: count those that stand still in it, too.
            state = scheduler._state
            s = torch.minimum(s, scheduler.token_times(state.u - state.h, z).value)
        still = t == s
        assert torch.equal(after[still], z[still])
        stood, moved = stood + int(still.sum()), moved + int((after != z).any(-1).sum())
        z = after
    assert moved >= BATCH * SIX and torch.isfinite(z).all()
    assert stood > 0 or clock_name == "ramp:0.5"


@pytest.mark.parametrize("name, scheduler_name, clock_name", RUNS + [("nfdm", name, "shared") for name in SCHEDULERS])
def test_known_tokens_stay_as_they_are_bit_for_bit(name, scheduler_name, clock_name):
    if (name, scheduler_name) == ("nfdm", "ancestral"):
        name = "mulan"
    known = torch.rand(BATCH, SIX, generator=seeded(4)) < 0.5
    known[:, 2] = False
    run = states(name, SCHEDULERS[scheduler_name](), batch_clock(clock_name, known))
    first, _ = next(run)
    for z, _ in run:
        assert torch.equal(z[known], first[known])
    assert (z[~known] != first[~known]).all() and torch.isfinite(z).all()


@pytest.mark.parametrize(
    "name, scheduler_name",
    # NFDM has no signal-to-noise ratio.
    [pair for pair in product(MODELS, SCHEDULERS) if pair[1] != "ancestral" or pair[0] in VARIANCE_PRESERVING],
)
def test_a_ramp_of_width_zero_is_the_shared_clock(name, scheduler_name):
    runs = []
    for clock in (RampClock(0), SharedClock()):
        runs.append([z for z, _ in states(name, SCHEDULERS[scheduler_name](), BatchClock(clock, SIX), num_steps=5)])
    if scheduler_name == "adaptive" and name not in VARIANCE_PRESERVING:
        # The flow of a random NFDM is so rough that it blows a rounding up tenfold with every call.
        runs = [run[:12] for run in runs]
    assert len(runs[0]) == len(runs[1]) > 5
    torch.testing.assert_close(torch.stack(runs[0]), torch.stack(runs[1]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("clock_name", ["shared", "ramp:0.5", "ramp:2"])
@pytest.mark.parametrize("method, order", [("euler", 1), ("heun", 2)])
def test_error_of_the_ode_solver_falls_with_its_order_along_every_ramp(method, order, clock_name):
    """Where tokens do not see each other each is carried by the flow of its own time, along every clock."""
    data, z = GaussianData(), torch.randn(3, LENGTH, DIM, dtype=torch.float64)
    clock, counts = BatchClock(make_clock(clock_name, LENGTH), LENGTH), [64, 128, 256, 512]
    exact = data.flow(z, 0.999, 0.0)
    errors = [(data.run(ReverseODEScheduler(method), z, n, clock) - exact).norm().item() for n in counts]
    assert abs(order_of_convergence(errors, counts) - order) < 0.15
    assert errors[-1] < 0.05 * exact.norm()


@pytest.mark.parametrize("scheduler_name", ["star", "chain", "deterministic", "ancestral", "tokens", "sde", "euler"])
@pytest.mark.parametrize("clock_name", CLOCKS)
def test_a_token_that_arrives_gets_no_noise(clock_name, scheduler_name):
    """With other random numbers the tokens that a step brings to t = 0 are the same."""
    clock, ends = batch_clock(clock_name), []
    times = [0.5, 1 / 3, 1 / 6] if clock_name.startswith("blocks") else [0.6, 0.3]
    for seed in (0, 1):
        scheduler = SCHEDULERS[scheduler_name]()
        scheduler.set_timesteps(timesteps=times, clock=clock)
        z = torch.randn(BATCH, SIX, DIM, dtype=torch.float64, generator=seeded(3))
        t, s = (scheduler.token_times(u, z).value for u in times[:2])
        context = torch.randn(BATCH, CONTEXT, dtype=torch.float64, generator=seeded(1))
        options = {"forward_process": PROCESSES["mulan"], "context": context, "generator": seeded(seed)}
        estimate = prediction(z) if scheduler_name == "tokens" else prediction(z).embeddings
        if scheduler_name == "tokens":
            # One token alone is possible, so that drawing it says nothing.
            estimate.factors[2][3:] = -torch.inf
            estimate.factors[2][:2] = -torch.inf
        ends.append(scheduler.step(estimate, times[0], z, **options).prev_sample)
    arrived = (t > 0) & (s == 0)
    assert torch.equal(ends[0][arrived], ends[1][arrived])
    if scheduler_name in ("star", "chain", "ancestral", "tokens", "sde"):
        moving = (t > s) & (s > 0)
        assert (ends[0][moving] != ends[1][moving]).all()


@pytest.mark.parametrize("scheduler_name", ["star", "chain", "sde", "euler", "heun"])
def test_steps_of_blocks_are_those_of_texts_as_long_as_a_block(scheduler_name):
    """Each block goes from noise to text as if it were alone, where tokens do not see each other."""
    process, blocks = make_process("diffusion-lm"), BatchClock(make_clock("blocks:2", SIX), SIX)
    z = torch.randn(BATCH, SIX, DIM, dtype=torch.float64)
    noises = [torch.randn(BATCH, 1, DIM, dtype=torch.float64) for _ in range(12)]

    def run(z, clock, num_steps, first_step):
        scheduler = SCHEDULERS[scheduler_name]()
        scheduler.set_timesteps(num_steps, clock=clock)
        scheduler._noise = lambda sample, generator: noises[first_step + scheduler._step_index - 1].expand_as(sample)
        for u in scheduler.timesteps:
            z = scheduler.step(0.5 * z, u, z, forward_process=process).prev_sample
        return z

    whole = run(z, blocks, 12, 0)
    for block in range(3):
        part = slice(2 * block, 2 * block + 2)
        torch.testing.assert_close(run(z[:, part], None, 4, 4 * block), whole[:, part], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scheduler_name", ["star", "sde", "heun"])
def test_given_times_of_blocks_must_hold_their_ends(scheduler_name):
    scheduler, clock = SCHEDULERS[scheduler_name](), BatchClock(make_clock("blocks:2", SIX), SIX)
    with pytest.raises(ValueError, match=r"`timesteps` is \[1.0, 0.5\]; along the clock 'blocks:2' .* 0.6667, 0.3333"):
        scheduler.set_timesteps(timesteps=[1.0, 0.5], clock=clock)
    scheduler.set_timesteps(timesteps=[0.9, 2 / 3, 0.5, 1 / 3], clock=clock)
    assert scheduler.num_inference_steps == 4
