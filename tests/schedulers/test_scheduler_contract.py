"""What diffusers expects of a scheduler, and the time grids."""

import json

import pytest
import torch
from tiny import DIM, LENGTH, logged_warnings, make_model, make_process, seeded

from diffusers_text_nfdm import MarkovChainScheduler, ReverseODEScheduler, ReverseSDEScheduler
from diffusers_text_nfdm.schedulers import TextDiffusionSchedulerOutput
from diffusers_text_nfdm.time_samplers import BucketTimeSampler, UniformTimeSampler


SCHEDULERS = {
    "star": (MarkovChainScheduler, {}),
    "chain": (MarkovChainScheduler, {"noise_fraction": 0.3}),
    "deterministic": (MarkovChainScheduler, {"noise_fraction": 0.0, "time_grid": "learned"}),
    "ancestral": (MarkovChainScheduler, {"noise_fraction": "snr"}),
    "sde": (ReverseSDEScheduler, {}),
    "scaled-sde": (ReverseSDEScheduler, {"volatility_scale": 0.5, "start_time": 0.9, "time_grid": "learned"}),
    "euler": (ReverseODEScheduler, {}),
    "heun": (ReverseODEScheduler, {"method": "heun", "start_time": 0.8}),
    "adaptive": (ReverseODEScheduler, {"method": "adaptive", "rtol": 0.5, "atol": 0.25}),
}
PROCESS = make_process("diffusion-lm", torch.float32)


@pytest.fixture(params=SCHEDULERS)
def scheduler(request):
    scheduler_class, options = SCHEDULERS[request.param]
    return scheduler_class(**options)


def public(config):
    return {name: value for name, value in config.items() if not name.startswith("_")}


def run(scheduler, num_steps=4, **options):
    scheduler.set_timesteps(num_steps, time_sampler=UniformTimeSampler())
    z, generator = torch.randn(2, LENGTH, DIM, generator=seeded(0)), seeded(1)
    for t in scheduler.timesteps:
        z = scheduler.step(0.5 * z, t, z, forward_process=PROCESS, generator=generator, **options)[0]
    return z


# --- saving, loading, exchanging ---


def test_save_and_load_keep_class_and_options(scheduler, tmp_path):
    scheduler.save_pretrained(tmp_path)
    with logged_warnings() as messages:
        loaded = type(scheduler).from_pretrained(tmp_path)
    assert public(loaded.config) == public(scheduler.config) and not messages
    assert json.loads((tmp_path / "scheduler_config.json").read_text())["_class_name"] == type(scheduler).__name__
    assert torch.equal(run(loaded), run(scheduler))


@pytest.mark.parametrize("new", [MarkovChainScheduler, ReverseODEScheduler, ReverseSDEScheduler])
@pytest.mark.parametrize("old", SCHEDULERS)
def test_exchange_by_config_logs_nothing_and_carries_what_both_know(old, new):
    old_class, options = SCHEDULERS[old]
    before = old_class(**options)
    with logged_warnings() as messages:
        after = new.from_config(before.config)
        back = old_class.from_config(after.config)
    assert messages == []
    assert {**public(after.config), **options} == public(after.config)
    assert {name: back.config[name] for name in public(before.config)} == public(before.config)
    # Only the options that a class has of its own matter to what it does.
    own = {name: value for name, value in options.items() if name in new().config}
    assert torch.equal(run(after), run(new(**own)))


def test_exchange_by_config_takes_overrides(scheduler):
    with logged_warnings() as messages:
        heun = ReverseODEScheduler.from_config(scheduler.config, method="heun", start_time=0.7)
    assert (heun.config.method, heun.config.start_time, messages) == ("heun", 0.7, [])


def test_an_option_that_no_scheduler_has_is_reported(scheduler):
    with logged_warnings() as messages:
        MarkovChainScheduler.from_config({**scheduler.config, "beta_start": 0.1})
    assert len(messages) == 1 and "beta_start" in messages[0]


# --- step ---


def test_tuple_and_output_hold_the_same(scheduler):
    assert torch.equal(run(scheduler, return_dict=False), run(scheduler, return_dict=True))
    scheduler.set_timesteps(4, time_sampler=UniformTimeSampler())
    z = torch.randn(2, LENGTH, DIM)
    output = scheduler.step(z, next(iter(scheduler.timesteps)), z, forward_process=PROCESS)
    assert isinstance(output, TextDiffusionSchedulerOutput) and output.prev_sample is output[0]


def test_attributes_that_diffusers_reads(scheduler):
    z = torch.randn(2, LENGTH, DIM)
    assert scheduler.init_noise_sigma == 1.0 and scheduler.scale_model_input(z, 0.5) is z
    calls_per_step = {"heun": 2, "adaptive": 3}.get(getattr(scheduler.config, "method", None), 1)
    assert scheduler.order == calls_per_step


def test_step_needs_timesteps_first(scheduler):
    z = torch.randn(2, LENGTH, DIM)
    with pytest.raises(ValueError, match="`set_timesteps` must be called before `step`"):
        scheduler.step(z, 1.0, z, forward_process=PROCESS)


@pytest.mark.parametrize("name", [name for name in SCHEDULERS if name != "adaptive"])
def test_a_step_beyond_time_zero_is_refused(name):
    scheduler = SCHEDULERS[name][0](**SCHEDULERS[name][1])
    z = run(scheduler)
    with pytest.raises(ValueError, match="reached time 0: call `set_timesteps`"):
        scheduler.step(z, 0.0, z, forward_process=PROCESS)


def test_nothing_of_a_run_reaches_the_next_one(scheduler):
    fresh = run(type(scheduler)(**public(scheduler.config)))
    assert torch.equal(run(scheduler), fresh) and torch.equal(run(scheduler), fresh)
    # Nor of one that stopped in the middle of a step.
    scheduler.set_timesteps(7, time_sampler=UniformTimeSampler())
    z = torch.randn(3, LENGTH, DIM)
    scheduler.step(z, next(iter(scheduler.timesteps)), z, forward_process=PROCESS)
    assert torch.equal(run(scheduler), fresh)


@pytest.mark.parametrize("name", ["star", "sde", "euler"])
def test_a_run_may_begin_inside_the_grid(name):
    scheduler = SCHEDULERS[name][0](**SCHEDULERS[name][1])
    scheduler.set_timesteps(8)
    z = torch.randn(2, LENGTH, DIM)
    inside = scheduler.step(z, scheduler.timesteps[5], z, forward_process=PROCESS, generator=seeded(0)).prev_sample
    scheduler.set_timesteps(timesteps=scheduler._grid[5:-1])
    first = scheduler.step(z, scheduler.timesteps[0], z, forward_process=PROCESS, generator=seeded(0)).prev_sample
    assert torch.equal(inside, first)


# --- time grids ---


@pytest.mark.parametrize("name", SCHEDULERS)
def test_predictor_calls_per_run(name):
    scheduler = SCHEDULERS[name][0](**SCHEDULERS[name][1])
    scheduler.set_timesteps(6, time_sampler=UniformTimeSampler())
    assert scheduler.num_inference_steps == 6
    if name == "adaptive":
        assert not hasattr(scheduler.timesteps, "__len__")
    else:
        assert len(scheduler.timesteps) == (11 if name == "heun" else 6)
        assert scheduler.timesteps.dtype == torch.float64 and (scheduler.timesteps > 0).all()


@pytest.mark.parametrize("scheduler_class", [MarkovChainScheduler, ReverseSDEScheduler, ReverseODEScheduler])
def test_uniform_grid_is_equally_spaced_and_tokens_wait_at_the_start_time(scheduler_class):
    scheduler, z = scheduler_class(), torch.randn(2, LENGTH, DIM, dtype=torch.float64)
    scheduler.set_timesteps(5)
    expected = torch.tensor([1, 0.8, 0.6, 0.4, 0.2], dtype=torch.float64)
    torch.testing.assert_close(scheduler.timesteps, expected)
    start = 1.0 if scheduler_class is MarkovChainScheduler else 0.999
    times = torch.cat([scheduler.token_times(u, z).value for u in scheduler.timesteps], dim=1)
    torch.testing.assert_close(times, expected.clamp_max(start).expand(2, -1))
    assert scheduler.timesteps[0] == 1 and (times[:, 0] == start).all()


@pytest.mark.parametrize("scheduler_class", [ReverseSDEScheduler, ReverseODEScheduler])
def test_a_token_that_has_not_started_has_no_rate(scheduler_class):
    scheduler, z = scheduler_class(start_time=0.8), torch.randn(2, LENGTH, DIM)
    scheduler.set_timesteps(10)
    for u, t, rate in ((1.0, 0.8, 0.0), (0.9, 0.8, 0.0), (0.7, 0.7, 1.0), (0.0, 0.0, 1.0)):
        times = scheduler.token_times(u, z)
        torch.testing.assert_close(times.value, torch.full((2, 1), t))
        assert (times.rate == rate).all()


def test_heun_asks_at_both_ends_of_each_step_but_the_last():
    scheduler = ReverseODEScheduler("heun", start_time=1.0)
    scheduler.set_timesteps(4)
    expected = torch.tensor([1, 0.75, 0.75, 0.5, 0.5, 0.25, 0.25], dtype=torch.float64)
    torch.testing.assert_close(scheduler.timesteps, expected)


@pytest.mark.parametrize("scheduler_class, start", [(MarkovChainScheduler, 1.0), (ReverseSDEScheduler, 0.9)])
def test_learned_grid_has_equal_mass_between_neighbours(scheduler_class, start):
    sampler = BucketTimeSampler(7).double()
    with torch.no_grad():
        sampler.log_terms.copy_(2 * torch.randn(7))
    options = {} if start == 1.0 else {"start_time": start}
    scheduler, z = scheduler_class(time_grid="learned", **options), torch.zeros(1, LENGTH, DIM, dtype=torch.float64)
    scheduler.set_timesteps(10, time_sampler=sampler)
    grid = torch.cat([scheduler.token_times(u, z).value[0] for u in scheduler._grid])
    assert grid[0] == start and grid[-1] == 0
    # Tokens that would be beyond the start time wait there.
    started = grid < start if start < 1 else grid <= start
    assert started.sum() > 5 and (grid[~started] == start).all()
    grid, expected = grid[started], torch.linspace(1, 0, 11, dtype=torch.float64)[started]
    edges = torch.cat([torch.zeros(1, dtype=torch.float64), sampler.probabilities().cumsum(0)])
    cell = (grid * 7).long().clamp_max(6)
    cumulative = edges[cell] + (grid * 7 - cell) * (edges[cell + 1] - edges[cell])
    torch.testing.assert_close(cumulative, expected, rtol=1e-6, atol=1e-9)
    assert (grid.diff() < 0).all() and grid.diff().std() > 0.01


def test_learned_grid_of_a_bfloat16_model_is_decreasing():
    model = make_model("nfdm", torch.bfloat16)
    scheduler, z = MarkovChainScheduler(time_grid="learned"), torch.zeros(1, LENGTH, DIM)
    scheduler.set_timesteps(2000, time_sampler=model.time_sampler)
    times = torch.cat([scheduler.token_times(u, z).value[0] for u in scheduler.timesteps])
    assert times.dtype == torch.float32 and (times.diff() < 0).all()


@pytest.mark.parametrize("given", [[1.0, 0.5, 0.1], (0.3,), torch.tensor([0.75, 0.25])])
def test_given_times_are_taken_as_they_are(given):
    scheduler = MarkovChainScheduler(time_grid="learned")
    scheduler.set_timesteps(timesteps=given)
    given = torch.as_tensor(given).double()
    torch.testing.assert_close(scheduler.timesteps, given)
    times = [scheduler.token_times(u, torch.zeros(1, LENGTH, DIM)).value.item() for u in scheduler.timesteps]
    torch.testing.assert_close(torch.tensor(times), given.float())
    assert scheduler._grid[-1] == 0 and scheduler.num_inference_steps == len(given)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"num_inference_steps": 0}, "`num_inference_steps` is 0; it must be an integer above 0"),
        ({"num_inference_steps": -3}, "`num_inference_steps` is -3"),
        ({"num_inference_steps": 2.0}, "`num_inference_steps` is 2.0"),
        ({"num_inference_steps": "8"}, "`num_inference_steps` is '8'"),
        ({"num_inference_steps": True}, "`num_inference_steps` is True"),
        ({}, "either `num_inference_steps` or `timesteps`"),
        ({"num_inference_steps": 2, "timesteps": [1.0]}, "either `num_inference_steps` or `timesteps`"),
        ({"timesteps": [0.5, 0.5]}, "`timesteps` is \\[0.5, 0.5\\]; it must be decreasing times in \\(0, 1\\]"),
        ({"timesteps": [0.1, 0.9]}, "`timesteps` is \\[0.1, 0.9\\]"),
        ({"timesteps": [1.5, 0.5]}, "`timesteps` is \\[1.5, 0.5\\]"),
        ({"timesteps": [0.5, 0.0]}, "`timesteps` is \\[0.5, 0.0\\]"),
        ({"timesteps": [0.5, -0.5]}, "`timesteps` is \\[0.5, -0.5\\]"),
        ({"timesteps": [float("nan")]}, "`timesteps` is \\[nan\\]"),
        ({"timesteps": []}, "`timesteps` is \\[\\]"),
    ],
)
def test_bad_grids_are_refused(arguments, message):
    for scheduler in (MarkovChainScheduler(), ReverseODEScheduler("heun")):
        with pytest.raises(ValueError, match=message):
            scheduler.set_timesteps(**arguments)


def test_learned_grid_needs_the_time_sampler():
    with pytest.raises(ValueError, match="`time_grid` is 'learned', which needs the model's `time_sampler`"):
        MarkovChainScheduler(time_grid="learned").set_timesteps(4)


def test_adaptive_method_takes_no_times():
    with pytest.raises(ValueError, match="`timesteps` cannot be given with method 'adaptive'"):
        ReverseODEScheduler("adaptive").set_timesteps(timesteps=[1.0, 0.5])


@pytest.mark.parametrize("scheduler_class", [MarkovChainScheduler, ReverseSDEScheduler, ReverseODEScheduler])
def test_unknown_grid_is_refused(scheduler_class):
    with pytest.raises(ValueError, match="`time_grid` is 'karras'; it must be one of 'uniform', 'learned'"):
        scheduler_class(time_grid="karras")


@pytest.mark.parametrize("start", [0, -0.5, 1.5, float("nan"), "late", None])
@pytest.mark.parametrize("scheduler_class", [ReverseSDEScheduler, ReverseODEScheduler])
def test_a_bad_start_time_is_refused(scheduler_class, start):
    with pytest.raises(ValueError, match=f"`start_time` is {start!r}; it must be in \\(0, 1\\]"):
        scheduler_class(start_time=start)
