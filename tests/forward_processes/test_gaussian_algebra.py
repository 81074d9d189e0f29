"""What follows from a Gaussian marginal and its rates: noise, score, KL, and drifts that carry the marginal along."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import DIM, LENGTH, MODELS, make_inputs, make_process
from torch.distributions import Normal, kl_divergence

from diffusers_text_nfdm.forward_processes import Marginal
from diffusers_text_nfdm.networks.dual import Dual


PROCESSES = {name: make_process(name) for name in MODELS}
# One time per text, or one per token.
token_times = st.sampled_from([1, LENGTH]).flatmap(
    lambda count: st.lists(st.lists(st.floats(0, 1), min_size=count, max_size=count), min_size=1, max_size=6)
)


@given(st.sampled_from(list(MODELS)), token_times, st.integers(0, 2))
def test_noise_to_latent_and_back_is_the_identity(name, times, num_leading_axes):
    t = torch.tensor(times, dtype=torch.float64)
    embeddings, context = make_inputs(name, len(t))
    embeddings = embeddings + torch.randn(*[2] * num_leading_axes, *embeddings.shape, dtype=torch.float64)
    marginal = PROCESSES[name].marginal(embeddings, t, context)
    noise = torch.randn_like(embeddings)
    z = marginal.sample(noise)
    assert z.shape == embeddings.shape
    torch.testing.assert_close(marginal.noise(z), noise, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(marginal.sample(marginal.noise(z)), z, rtol=1e-12, atol=1e-12)


@given(st.sampled_from(list(MODELS)), token_times)
def test_score_is_the_gradient_of_the_log_density(name, times):
    t = torch.tensor(times, dtype=torch.float64)
    embeddings, context = make_inputs(name, len(t))
    marginal = PROCESSES[name].marginal(embeddings, t, context)
    z = marginal.sample(torch.randn_like(embeddings)).detach().requires_grad_()
    (expected,) = torch.autograd.grad(Normal(marginal.mean, marginal.std).log_prob(z).sum(), z)
    torch.testing.assert_close(marginal.score(z), expected, rtol=1e-9, atol=1e-9)


def test_kl_to_standard_normal_is_that_of_torch_distributions():
    mean, std = torch.randn(50, dtype=torch.float64), torch.rand(50, dtype=torch.float64) + 0.01
    expected = kl_divergence(Normal(mean, std), Normal(torch.zeros_like(mean), torch.ones_like(std)))
    torch.testing.assert_close(Marginal(mean, std).kl_to_standard_normal(), expected, rtol=1e-12, atol=1e-12)


def _runge_kutta(slope, offset, noise, mean, variance, step):
    """Mean and variance under `dz = (offset + slope z) dt + sqrt(noise) dw`, coefficients given at every half step."""

    def rate(i, mean, variance):
        return offset[i] + slope[i] * mean, 2 * slope[i] * variance + noise[i]

    for i in range(0, len(slope) - 2, 2):
        k1 = rate(i, mean, variance)
        k2 = rate(i + 1, mean + step / 2 * k1[0], variance + step / 2 * k1[1])
        k3 = rate(i + 1, mean + step / 2 * k2[0], variance + step / 2 * k2[1])
        k4 = rate(i + 2, mean + step * k3[0], variance + step * k3[1])
        mean = mean + step / 6 * (k1[0] + 2 * k2[0] + 2 * k3[0] + k4[0])
        variance = variance + step / 6 * (k1[1] + 2 * k2[1] + 2 * k3[1] + k4[1])
    return mean, variance


CLOCKS = {
    "shared": torch.ones(1, dtype=torch.float64),
    "of the tokens": torch.tensor([1.0, 0.0, 0.5, 0.25, 0.75], dtype=torch.float64),
}


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("name", MODELS)
def test_ode_and_sde_drifts_carry_the_marginal_to_itself_for_every_volatility(name, clock):
    # The drifts are linear in z, so the moments obey ODEs exactly: `dm = offset + slope m`, `dV = 2 slope V + g²`.
    # The step resolves NFDM's fastest time feature, 1000 radians per unit of t.
    num_steps, start, stop = 2000, 0.3, 0.5
    rates = CLOCKS[clock]
    t = start + rates * torch.linspace(0, stop - start, 2 * num_steps + 1, dtype=torch.float64)[:, None]
    times = Dual(t, rates.expand_as(t))
    embeddings, context = (None if x is None else x.expand(len(t), *x.shape[1:]) for x in make_inputs(name, 1))
    process = PROCESSES[name]
    with torch.no_grad():
        path = process.path(times, context)(embeddings)
        own = process.squared_volatility(times, context).expand_as(embeddings)

    forward, backward = [], []
    z = torch.zeros_like(embeddings)
    for share in (0.0, 0.5, 1.0, 2.0):
        squared = share * own

        def line(squared):
            offset = path.reverse_drift(z, squared)
            return path.reverse_drift(z + 1, squared) - offset, offset

        # Forward in time the score has the other sign.
        slope, offset = line(-squared)
        forward.append((slope, offset, squared))
        # Backward in time the drift changes sign and the noise does not.
        slope, offset = line(squared)
        backward.append((-slope.flip(0), -offset.flip(0), squared.flip(0)))
    torch.testing.assert_close(path.reverse_drift(z, torch.zeros(())), path.ode_drift(z))

    step = (stop - start) / num_steps
    for systems, first, last in ((forward, 0, -1), (backward, -1, 0)):
        stacked = (torch.stack(x, dim=1).numpy() for x in zip(*systems))
        mean, std = path.mean[first].numpy(), path.std[first].numpy()
        mean, variance = _runge_kutta(*stacked, mean, std**2, step)
        assert mean.shape == (4, LENGTH, DIM)
        expected = path.mean[last].expand(4, -1, -1), path.std[last].square().expand(4, -1, -1)
        torch.testing.assert_close(torch.from_numpy(mean), expected[0], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(torch.from_numpy(variance), expected[1], rtol=1e-6, atol=1e-6)
        moving = (rates > 0).expand(LENGTH)
        for ends in (path.mean[[first, last]], path.std[[first, last]]):
            assert ends.diff(dim=0)[:, moving].abs().amin() > 1e-5  # so that standing still would not pass
