"""The conditional Markov chain: it keeps the marginals, and its special cases are the textbook's."""

import pytest
import torch
from tiny import DIM, LENGTH, MODELS, VARIANCE_PRESERVING, make_inputs, make_process

from diffusers_text_nfdm import MarkovChainScheduler
from diffusers_text_nfdm.networks.dual import Dual
from diffusers_text_nfdm.schedulers import TextDiffusionScheduler


RHOS = (0.0, 0.5, 0.8, 1.0)
PROCESSES = {name: make_process(name).requires_grad_(False) for name in MODELS}


def at(time, embeddings):
    return torch.full((len(embeddings), 1), time, dtype=embeddings.dtype)


def step(rho, name, z, prediction, context, t, s, generator=None):
    scheduler = MarkovChainScheduler(noise_fraction=rho)
    scheduler.set_timesteps(timesteps=[t, s])
    return scheduler.step(
        prediction, t, z, forward_process=PROCESSES[name], context=context, generator=generator
    ).prev_sample


@pytest.fixture
def new_noise(monkeypatch):
    """Lets a test choose the noise that a scheduler draws."""

    def choose(noise):
        monkeypatch.setattr(TextDiffusionScheduler, "_noise", staticmethod(lambda sample, generator: noise))

    return choose


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("name", MODELS)
def test_a_step_with_the_true_embeddings_carries_one_marginal_to_the_next(name, rho, new_noise):
    t, s = 0.7, 0.4
    embeddings, context = make_inputs(name, 2)
    before = PROCESSES[name].marginal(embeddings, at(t, embeddings), context)
    after = PROCESSES[name].marginal(embeddings, at(s, embeddings), context)
    zero, one = torch.zeros_like(embeddings), torch.ones_like(embeddings)

    def result(old, new):
        new_noise(new)
        return step(rho, name, before.sample(old), embeddings, context, t, s)

    # The step is linear in both noises: `mean + a ε_old + b ε_new`, which has variance `a² + b²`.
    mean = result(zero, zero)
    a, b = result(one, zero) - mean, result(zero, one) - mean
    torch.testing.assert_close(mean, after.mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(a.square() + b.square(), after.std.square(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(b.square(), rho * after.std.square(), rtol=1e-10, atol=1e-12)
    x, y = torch.randn_like(one), torch.randn_like(one)
    torch.testing.assert_close(result(x, y), mean + a * x + b * y, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("name", MODELS)
def test_samples_have_the_marginal_after_several_steps(name, rho):
    num_samples, times = 1500, [1.0, 0.8, 0.55, 0.3, 0.2, 0.1]
    embeddings, context = (None if x is None else x.expand(num_samples, *x.shape[1:]) for x in make_inputs(name, 1))
    process, generator = PROCESSES[name], torch.Generator().manual_seed(1)
    draw = torch.randn(embeddings.shape, generator=generator, dtype=torch.float64)
    z = process.marginal(embeddings, at(1.0, embeddings), context).sample(draw)
    scheduler = MarkovChainScheduler(noise_fraction=rho)
    scheduler.set_timesteps(timesteps=times)
    for t in times[:-1]:
        z = scheduler.step(embeddings, t, z, forward_process=process, context=context, generator=generator).prev_sample
    noise = process.marginal(embeddings, at(times[-1], embeddings), context).noise(z).flatten(1)
    # Means with variance 1, and covariances with 1 off and 2 on the diagonal: 420 numbers, all within 4.5 deviations.
    root = num_samples**0.5
    deviations = torch.eye(LENGTH * DIM, dtype=torch.float64)
    covariance = noise.T @ noise / num_samples
    assert (noise.mean(0) * root).abs().max() < 4.5
    assert ((covariance - deviations) * root / (1 + deviations).sqrt()).abs().max() < 4.5


@pytest.mark.parametrize("t, s", [(0.9, 0.6), (0.5, 0.4999), (0.2, 0.001)])
@pytest.mark.parametrize("name", ["mulan", "diffusion-lm"])
def test_snr_fraction_gives_the_posterior_of_the_textbook(name, t, s, new_noise):
    embeddings, context = make_inputs(name, 2)
    z = torch.randn_like(embeddings)
    alpha_t, sigma_t = PROCESSES[name].alpha_sigma(at(t, z), context)
    alpha_s, sigma_s = PROCESSES[name].alpha_sigma(at(s, z), context)
    # q(z_s | z_t, x) as in Variational Diffusion Models, appendix A: from α_{t|s} and σ²_{t|s}.
    alpha_ts = alpha_t / alpha_s
    variance_ts = sigma_t**2 - alpha_ts**2 * sigma_s**2
    mean = alpha_ts * sigma_s**2 / sigma_t**2 * z + alpha_s * variance_ts / sigma_t**2 * embeddings
    std = (variance_ts * sigma_s**2 / sigma_t**2).sqrt().expand_as(z)

    new_noise(torch.zeros_like(z))
    drawn_mean = step("snr", name, z, embeddings, context, t, s)
    new_noise(torch.ones_like(z))
    drawn_std = step("snr", name, z, embeddings, context, t, s) - drawn_mean
    torch.testing.assert_close(drawn_mean, mean, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(drawn_std, std, rtol=1e-6, atol=1e-10)


def test_snr_fraction_draws_nothing_anew_where_the_snr_rises_towards_noise(new_noise):
    class RisingSNR(type(PROCESSES["diffusion-lm"])):
        def gamma(self, times, context=None):
            rate = None if times.rate is None else -times.rate
            return super().gamma(Dual(1 - times.value, rate), context)

    embeddings, z = torch.randn(2, 2, LENGTH, DIM, dtype=torch.float64)
    scheduler = MarkovChainScheduler("snr")
    results = []
    for noise in (torch.zeros_like(z), torch.ones_like(z)):
        new_noise(noise)
        scheduler.set_timesteps(timesteps=[0.7, 0.4])
        results.append(scheduler.step(embeddings, 0.7, z, forward_process=RisingSNR()).prev_sample)
    assert torch.isfinite(results[0]).all() and torch.equal(*results)


@pytest.mark.parametrize("name", ["nfdm", "nfdm-additive", "nfdm-head"])
def test_snr_fraction_says_why_nfdm_has_none(name):
    z = torch.randn(1, LENGTH, DIM, dtype=torch.float64)
    with pytest.raises(ValueError, match="no signal-to-noise ratio.*noise fraction in \\[0, 1\\] instead of 'snr'"):
        step("snr", name, z, z, None, 0.7, 0.4)


@pytest.mark.parametrize("name", MODELS)
def test_star_sampling_ignores_z_and_asks_the_process_once(name, monkeypatch):
    embeddings, context = make_inputs(name, 2)
    calls, marginal = [], PROCESSES[name].marginal
    monkeypatch.setattr(PROCESSES[name], "marginal", lambda *args: calls.append(args) or marginal(*args))
    generators = (torch.Generator().manual_seed(3) for _ in range(2))
    results = [step(1.0, name, c + embeddings, embeddings, context, 0.7, 0.4, next(generators)) for c in (0, 50)]
    assert torch.equal(*results) and len(calls) == 2
    assert not torch.equal(*(step(0.8, name, c + embeddings, embeddings, context, 0.7, 0.4) for c in (0, 50)))


@pytest.mark.parametrize("name", VARIANCE_PRESERVING)
def test_without_new_noise_the_step_is_ddim_and_draws_nothing(name):
    embeddings, context = make_inputs(name, 2)
    z = torch.randn_like(embeddings)
    generator = torch.Generator().manual_seed(3)
    state, own, everyone = generator.get_state(), torch.get_rng_state(), torch.random.default_generator
    result = step(0.0, name, z, embeddings, context, 0.7, 0.4, generator)
    assert torch.equal(generator.get_state(), state) and torch.equal(everyone.get_state(), own)
    # Song et al., Denoising Diffusion Implicit Models, equation 12 with σ = 0.
    alpha_t, sigma_t = PROCESSES[name].alpha_sigma(at(0.7, z), context)
    alpha_s, sigma_s = PROCESSES[name].alpha_sigma(at(0.4, z), context)
    direction = (z - alpha_t * embeddings) / sigma_t
    torch.testing.assert_close(result, alpha_s * embeddings + sigma_s * direction, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rho", [*RHOS, "snr"])
@pytest.mark.parametrize("name", MODELS)
def test_the_last_step_gives_the_mean_at_zero_whatever_z_is(name, rho):
    embeddings, context = make_inputs(name, 2)
    scheduler = MarkovChainScheduler(noise_fraction=rho)
    scheduler.set_timesteps(1)
    result = scheduler.step(
        embeddings, 1.0, torch.randn_like(embeddings), forward_process=PROCESSES[name], context=context
    ).prev_sample
    assert torch.equal(result, PROCESSES[name].initial_marginal(embeddings, context).mean)


@pytest.mark.parametrize("rho", [-0.1, 1.1, float("nan"), "vdm", None, True])
def test_a_bad_noise_fraction_is_refused(rho):
    with pytest.raises(ValueError, match=f"`noise_fraction` is {rho!r}; it must be a number in \\[0, 1\\] or 'snr'"):
        MarkovChainScheduler(noise_fraction=rho)
