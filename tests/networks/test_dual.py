"""Forward mode by hand: every operation against `torch.func.jvp`, and without a rate against the plain operation."""

import pytest
import torch
import torch.nn.functional as F
from tiny import at_rate_one, randomize, relative_error
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from diffusers_text_nfdm.networks import dual
from diffusers_text_nfdm.networks.dual import Dual
from diffusers_text_nfdm.networks.time_embedding import TimeEmbedding, fourier_features
from diffusers_text_nfdm.networks.transformer import TIME_CONDITIONINGS, Transformer, modulate


LENGTH = 6
LINEAR = randomize(nn.Linear(6, 6).double())
NORM = randomize(nn.LayerNorm(6).double())
BARE_NORM = nn.LayerNorm(6, elementwise_affine=False).double()


def plain_attention(query_key_value, num_heads):
    q, k, v = (x.unflatten(-1, (num_heads, -1)).transpose(-2, -3) for x in query_key_value.chunk(3, dim=-1))
    return F.scaled_dot_product_attention(q, k, v).transpose(-2, -3).flatten(-2)


# name: (operation on duals, the plain operation, shapes of its arguments)
OPERATIONS = {
    "add": (dual.add, torch.add, [(3, 5, 6), (3, 5, 6)]),
    "add, broadcast": (dual.add, torch.add, [(3, 5, 6), (3, 1, 6)]),
    "add product": (dual.add_product, torch.addcmul, [(3, 5, 6)] * 3),
    "add product, broadcast": (dual.add_product, torch.addcmul, [(2, 3, 5, 6), (2, 3, 5, 6), (3, 1, 6)]),
    "modulate": (modulate, lambda x, shift, scale: x * (1 + scale) + shift, [(2, 3, 5, 6), (3, 1, 6), (3, 1, 6)]),
    "linear": (lambda x: dual.linear(x, LINEAR), LINEAR, [(3, 5, 6)]),
    "silu": (dual.silu, F.silu, [(3, 5, 6)]),
    "gelu": (dual.gelu, F.gelu, [(3, 5, 6)]),
    "layer norm": (lambda x: dual.layer_norm(x, NORM), NORM, [(3, 5, 6)]),
    "layer norm without scale": (lambda x: dual.layer_norm(x, BARE_NORM), BARE_NORM, [(3, 5, 6)]),
    "attention": (lambda x: dual.attention(x, 2), lambda x: plain_attention(x, 2), [(3, 5, 12)]),
    "attention, leading axes": (lambda x: dual.attention(x, 3), lambda x: plain_attention(x, 3), [(2, 3, 5, 18)]),
    "map_linear": (lambda x: x.map_linear(lambda y: y.transpose(-1, -2)), lambda y: y.transpose(-1, -2), [(3, 5, 6)]),
}


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_carries_the_derivative_of_the_plain_operation(name):
    operation, plain, shapes = OPERATIONS[name]
    values, rates = zip(*((2 * normal(*shape), normal(*shape)) for shape in shapes))
    with sdpa_kernel(SDPBackend.MATH):
        value, rate = torch.func.jvp(plain, values, rates)
    actual = operation(*map(Dual, values, rates))
    assert actual.rate.shape == actual.value.shape
    torch.testing.assert_close(actual.value, value, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(actual.rate, rate, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_on_constants_is_the_plain_operation_and_constant(name):
    operation, plain, shapes = OPERATIONS[name]
    values = [normal(*shape) for shape in shapes]
    actual = operation(*map(Dual, values))
    assert actual.rate is None
    torch.testing.assert_close(actual.value, plain(*values), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("name", ["add", "add, broadcast", "add product", "add product, broadcast", "modulate"])
@pytest.mark.parametrize("moving", [0, 1])
def test_a_missing_rate_means_zero(name, moving):
    operation, _, shapes = OPERATIONS[name]
    values, rates = [normal(*shape) for shape in shapes], [None] * len(shapes)
    rates[moving] = normal(*shapes[moving])
    actual = operation(*map(Dual, values, rates))
    zero_filled = [torch.zeros_like(v) if r is None else r for v, r in zip(values, rates)]
    expected = operation(*map(Dual, values, zero_filled))
    assert actual.rate.shape == actual.value.shape
    torch.testing.assert_close(actual.rate, expected.rate, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("name", OPERATIONS)
def test_gradients_of_value_and_rate_equal_finite_differences(name):
    operation, _, shapes = OPERATIONS[name]
    inputs = [normal(*shape).requires_grad_() for shape in shapes for _ in range(2)]
    assert torch.autograd.gradcheck(lambda *x: tuple(operation(*map(Dual, x[::2], x[1::2]))), inputs, fast_mode=True)
    # Each output alone too, as a loss of the rates only would use it.
    for i in range(2):
        assert torch.autograd.gradcheck(
            lambda *x, i=i: operation(*map(Dual, x[::2], x[1::2]))[i], inputs, fast_mode=True
        )


def test_fourier_features_are_cosines_and_sines_of_a_thousand_t_and_their_rate_is_the_derivative():
    t = torch.tensor([[0.0, 0.123, 1.0]], dtype=torch.float64)
    rates = torch.tensor([[1.0, 0.0, 2.5]], dtype=torch.float64)
    value, rate = torch.func.jvp(lambda t: fourier_features(Dual(t), 8).value, (t,), (rates,))
    actual = fourier_features(Dual(t, rates), 8)
    torch.testing.assert_close(actual.value, value, rtol=0, atol=0)
    assert relative_error(actual.rate, rate) < 1e-13
    angles = 1000 * t[..., None] * 10_000.0 ** (-torch.arange(4) / 4.0).double()
    torch.testing.assert_close(actual.value, torch.cat([angles.cos(), angles.sin()], -1), rtol=1e-9, atol=1e-9)
    assert fourier_features(Dual(t), 8).rate is None


def test_fourier_features_tell_neighbouring_times_apart_whatever_the_weights_are():
    grid = Dual(torch.linspace(0, 1, 1001)[:, None])
    assert fourier_features(grid, 8).value.dtype == torch.float32
    assert len(fourier_features(grid, 8).value.unique(dim=0)) == 1001
    embedding = randomize(TimeEmbedding(32, 32).bfloat16())
    assert len(embedding(grid).value.unique(dim=0)) > 990


def make_transformer(time_conditioning):
    return randomize(
        Transformer(
            input_dim=4,
            output_dim=3,
            hidden_size=8,
            num_layers=2,
            num_heads=2,
            intermediate_size=12,
            max_length=7,
            time_conditioning=time_conditioning,
            time_dim=10,
        ).double()
    )


TIMES = {
    "no rate": lambda: Dual(torch.rand(3, 1, dtype=torch.float64)),
    "one time": lambda: at_rate_one(torch.rand(3, dtype=torch.float64)),
    "a time for every token": lambda: Dual(*torch.rand(2, 3, LENGTH, dtype=torch.float64)),
}


@pytest.mark.parametrize("kind", TIMES)
@pytest.mark.parametrize("time_conditioning", TIME_CONDITIONINGS)
def test_transformer_treats_leading_axes_as_separate_calls(time_conditioning, kind):
    network, times = make_transformer(time_conditioning), TIMES[kind]()
    conditions, with_rate = network.conditions(times), times.rate is not None and time_conditioning != "none"
    stack = normal(2, 3, LENGTH, 4)
    for block_size in (None, 2):
        if block_size is not None and times.value.shape[1] == 1 and time_conditioning != "none":
            conditions = network.conditions(times.map_linear(lambda x: x.expand(-1, LENGTH)))
        together = network(stack, conditions, block_size)
        apart = [network(embeddings, conditions, block_size) for embeddings in stack]
        assert together.value.shape == (2, 3, LENGTH, 3)
        assert (together.rate is not None) == with_rate
        torch.testing.assert_close(together.value, torch.stack([x.value for x in apart]), rtol=1e-12, atol=1e-12)
        if with_rate:
            torch.testing.assert_close(together.rate, torch.stack([x.rate for x in apart]), rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("kind", ["one time", "a time for every token"])
@pytest.mark.parametrize("time_conditioning", ["adaln", "additive", "head"])
def test_transformer_with_rate_has_the_value_of_the_plain_call_and_its_derivative(time_conditioning, kind):
    network, times, embeddings = make_transformer(time_conditioning), TIMES[kind](), normal(3, LENGTH, 4)

    def plain(t):
        return network(embeddings, network.conditions(Dual(t))).value

    with sdpa_kernel(SDPBackend.MATH):
        value, rate = torch.func.jvp(plain, (times.value,), (times.rate,))
    actual = network(embeddings, network.conditions(times))
    torch.testing.assert_close(actual.value, value, rtol=1e-12, atol=1e-12)
    assert relative_error(actual.rate, rate) < 1e-12


@pytest.mark.parametrize("time_conditioning", ["adaln", "additive", "head"])
def test_transformer_in_blocks_sees_each_block_alone(time_conditioning):
    """Values and rates of a block are those of a text that is elsewhere another one."""
    network, times = make_transformer(time_conditioning), TIMES["a time for every token"]()
    embeddings = normal(3, LENGTH, 4)
    before = network(embeddings, network.conditions(times), block_size=2)
    other, (t, rate) = embeddings.clone(), (x.clone() for x in times)
    for x in (other, t, rate):
        x[:, 2:] = 1 - x[:, 2:]
    after = network(other, network.conditions(Dual(t, rate)), block_size=2)
    for x, y in zip(before, after):
        assert torch.equal(x[:, :2], y[:, :2]) and not torch.isclose(x[:, 2:], y[:, 2:]).all(-1).any()


@pytest.mark.parametrize("time_conditioning", TIME_CONDITIONINGS)
def test_transformer_depends_on_position_and_other_tokens_and_on_time_if_it_has_one(time_conditioning):
    network, t, embeddings = make_transformer(time_conditioning), TIMES["no rate"]().value, normal(3, LENGTH, 4)

    def call(embeddings, t):
        return network(embeddings, network.conditions(Dual(t))).value

    out = call(embeddings, t)
    assert not torch.allclose(call(embeddings.flip(1), t).flip(1), out)
    changed = embeddings.clone()
    changed[:, -1] += 1
    assert not torch.allclose(call(changed, t)[:, 0], out[:, 0])
    assert torch.equal(call(embeddings, t + 0.01), out) == (time_conditioning == "none")
