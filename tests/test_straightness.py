"""The curvature of the paths from text to noise: zero for straight ones, and what it is of the others."""

import math

import pytest
import torch
from tiny import DIM, LENGTH, MODELS, VOCAB, at_rate_one, make_ids, make_inputs, make_model, make_process, seeded
from torch import nn

from diffusers_text_nfdm import objective
from diffusers_text_nfdm.clocks import hold_known, make_clock
from diffusers_text_nfdm.forward_processes import NFDMProcess
from diffusers_text_nfdm.networks.dual import Dual


DELTA = 0.2


class Formula(nn.Module):
    """A network of the forward process that is a formula `E, t -> m, s`."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def conditions(self, times):
        return times

    def forward(self, embeddings, times, block_size):
        t, rate = (x[..., None].expand_as(embeddings) for x in times)
        return Dual(*torch.func.jvp(lambda t: torch.cat(self.function(embeddings, t), -1), (t,), (rate,)))


def straight(E, t):
    """`m = 0` and the `s` that makes `std = δ + (1 - δ) t`."""
    bump = t * (1 - t)
    s = (torch.log(DELTA + (1 - DELTA) * t) - (1 - t) * math.log(DELTA)) / torch.where(bump > 0, bump, 1)
    return torch.zeros_like(E), s


def wavy(E, t):
    return torch.sin(E + 9 * t), torch.cos(E * t)


def curvature(process, embeddings, noise, times, context=None):
    """`objective.path_curvature` of a process."""
    ends = (process.initial_marginal(embeddings, context), process.terminal_marginal(embeddings, context))
    path = process.path(times, context)(embeddings)
    return objective.path_curvature(path.velocity(noise), *(end.sample(noise) for end in ends), times.rate)


def legendre(number):
    """Nodes and weights of Gauss' rule on [0, 1]."""
    import numpy

    nodes, weights = numpy.polynomial.legendre.leggauss(number)
    return torch.tensor((nodes + 1) / 2), torch.tensor(weights / 2)


@pytest.mark.parametrize("clock", ["shared", "ramp:2", "random:3"])
def test_a_straight_path_has_none_along_any_clock(clock):
    process = NFDMProcess(Formula(straight), nn.Identity(), DELTA)
    embeddings, noise = torch.randn(2, 9, LENGTH, DIM, dtype=torch.float64)
    u, order = torch.rand(2, 9, LENGTH, dtype=torch.float64)
    known = torch.rand(9, LENGTH) < 0.2
    times = hold_known(make_clock(clock, LENGTH).single_times(u[:, :1], LENGTH, known, order), known)
    assert (times.rate > 0).any()
    found = curvature(process, embeddings, noise, times)
    torch.testing.assert_close(found, torch.zeros_like(found), rtol=0, atol=1e-20)


def test_the_process_without_a_network_is_curved_by_its_noise_alone():
    """`std = δ^(1-t)`: the velocity's variance over t is `((1 - δ²)/2 · (-log δ) - (1 - δ)²) ε²`."""
    network = make_process("nfdm").network
    for parameter in network.output.parameters():
        nn.init.zeros_(parameter)
    process = NFDMProcess(network, nn.Identity(), DELTA)
    embeddings, noise = torch.randn(2, 1, LENGTH, DIM, dtype=torch.float64)
    nodes, weights = legendre(20)
    values = curvature(process, embeddings.expand(20, -1, -1), noise.expand(20, -1, -1), at_rate_one(nodes))
    factor = -math.log(DELTA) * (1 - DELTA**2) / 2 - (1 - DELTA) ** 2
    torch.testing.assert_close(weights @ values, factor * noise[0].square().sum(-1), rtol=1e-10, atol=0)


@pytest.mark.parametrize("name", MODELS)
def test_velocity_is_the_derivative_of_z_for_fixed_noise(name):
    process, (embeddings, context) = make_process(name), make_inputs(name, 3)
    noise, t = torch.randn_like(embeddings), torch.rand(3, 1, dtype=torch.float64) * 0.8 + 0.1
    found = process.path(at_rate_one(t), context)(embeddings).velocity(noise)

    def z(t):
        return process.marginal(embeddings, t, context).sample(noise)

    jacobian = torch.autograd.functional.jacobian(z, t)[..., 0]
    torch.testing.assert_close(found, torch.stack([jacobian[i, ..., i] for i in range(3)]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["wavy", "mulan"])
@torch.no_grad()
def test_it_averages_to_the_variance_of_the_velocity_over_time(name):
    """Half the squared difference of the velocities at two independent times, on average over both."""
    number = 60
    process = NFDMProcess(Formula(wavy), nn.Identity(), DELTA) if name == "wavy" else make_process(name)
    embeddings, context = make_inputs(name, 1)
    noise, (nodes, weights) = torch.randn_like(embeddings), legendre(number)
    embeddings, noise, context = (
        x if x is None else x.expand(number, *x.shape[1:]) for x in (embeddings, noise, context)
    )
    mean = weights @ curvature(process, embeddings, noise, at_rate_one(nodes), context)
    velocity = process.path(at_rate_one(nodes), context)(embeddings).velocity(noise)
    pairs = 0.5 * (velocity[:, None] - velocity[None]).square().sum(-1)
    torch.testing.assert_close(mean, torch.einsum("i,j,ijs->s", weights, weights, pairs), rtol=1e-6, atol=0)
    # Times drawn where the bound wants them, here `t = u²`, are weighted by their rate `r = 2u`.
    times = Dual(nodes[:, None] ** 2, 2 * nodes[:, None])
    torch.testing.assert_close(
        weights @ curvature(process, embeddings, noise, times, context), mean, rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("clock", ["shared", "ramp:2"])
def test_it_is_weighted_into_the_loss_and_leaves_the_bound_alone(clock):
    model, ids = make_model("nfdm", clock=clock), make_ids(4)
    draws = model.draw(4, seeded(0))
    known = torch.zeros(4, LENGTH, dtype=torch.bool)
    known[:, 1] = True
    without, with_it = (model(ids, known=known, draws=draws, straightness_weight=w) for w in (0.0, 0.3))
    assert without.curvature is None and with_it.curvature.shape == (4,) and (with_it.curvature > 0).any()
    assert torch.equal(with_it.bound, without.bound)
    torch.testing.assert_close(with_it.loss, without.loss + 0.3 * with_it.curvature.mean(), rtol=1e-14, atol=0)
    times, _ = model.token_times(model.clock(), draws, known)
    expected = curvature(model.forward_process, model.embed(ids), draws.noise, times)
    assert not expected[:, 1].any()
    torch.testing.assert_close(with_it.curvature, expected.sum(-1), rtol=1e-12, atol=0)


def test_its_gradient_is_the_difference_quotient():
    model, ids = make_model("nfdm"), make_ids(3)
    draws = model.draw(3, seeded(0))

    def value():
        return model(ids, draws=draws, straightness_weight=1.0).curvature.sum()

    parameters = list(model.forward_process.network.parameters()) + [model.embeddings.weight]
    gradients = torch.autograd.grad(value(), parameters)
    generator, step = seeded(1), 1e-6
    directions = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in parameters]
    values = []
    with torch.no_grad():
        for sign in (1, -2):
            for parameter, direction in zip(parameters, directions):
                parameter.add_(direction, alpha=sign * step)
            values.append(value())
    expected = (values[0] - values[1]) / (2 * step)
    found = sum((g * d).sum() for g, d in zip(gradients, directions))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("option", [{"cross_entropy": True}, {"next_token_only": True, "next_token_weight": 1.0}])
def test_it_is_refused_where_no_path_is_trained(option):
    model = make_model("nfdm", prediction_type="categorical", predictor="two_stream")
    with pytest.raises(ValueError, match="`straightness_weight` is 0.5, but only the bound has paths"):
        model(torch.randint(VOCAB, (2, LENGTH)), straightness_weight=0.5, **option)
