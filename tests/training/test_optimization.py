import copy
import math

import pytest
import torch
from accelerate.utils import DistributedType
from hypothesis import given
from hypothesis import strategies as st
from tiny import relative_error

from diffusers_text_nfdm import MuLANConfig, MuLANModel, NFDMConfig, NFDMModel
from diffusers_text_nfdm.training import TrainingArguments
from diffusers_text_nfdm.training.muon import COEFFICIENTS, Muon, orthogonalize
from diffusers_text_nfdm.training.optimization import (
    ExponentialMovingAverage,
    build_optimizers,
    check_combination,
    learning_rate_factor,
    trunk_matrices,
)
from runs import MULAN, NFDM, PREDICTOR


# Of the singular values, beside the norm, that the iteration promises to bring near 1.
SMALLEST = 0.003
SHAPES = [(6, 10), (10, 6), (6, 10), (8, 8), (3, 12)]


def steps_of(optimizer_class, shapes, dtype=torch.float32, steps=4, **options):
    """Parameters after some steps with given gradients."""
    generator = torch.Generator().manual_seed(1)
    parameters = [torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in shapes]
    optimizer = optimizer_class(parameters, lr=0.1, momentum=0.9, **options)
    start = [parameter.detach().clone() for parameter in parameters]
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=dtype)
        optimizer.step()
    return [parameter.detach() - before for parameter, before in zip(parameters, start)]


def reference_step(matrix, gradient, buffer, lr, momentum, weight_decay):
    """Muon of a single matrix, as its authors state it."""
    buffer = momentum * buffer + (1 - momentum) * gradient
    x = (1 - momentum) * gradient + momentum * buffer
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / (x @ x.T).norm().sqrt()
    for a, b, c in COEFFICIENTS:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    x = x.T if tall else x
    return (1 - lr * weight_decay) * matrix - lr * math.sqrt(max(1, x.shape[0] / x.shape[1])) * x, buffer


def test_coefficients_are_the_nearest_to_one_on_what_the_step_before_leaves():
    lower, upper = SMALLEST, 1.0
    for a, b, c in COEFFICIENTS:
        s = torch.linspace(lower, 1.02 * upper, 1_000_001, dtype=torch.float64)
        error = a * s + b * s**3 + c * s**5 - 1
        # The best of three coefficients is as far off at four points, with signs that alternate: Chebyshev.
        inner = [error[100:-100].max(), error[100:-100].min()]
        largest = error.abs().max()
        for value, sign in zip((error[0], *inner, error[-1]), (-1, 1, -1, 1)):
            assert value.item() == pytest.approx(sign * largest.item(), rel=1e-4)
        lower, upper = 1 - largest.item(), 1 + largest.item()
    assert (lower, upper) == pytest.approx((0.779, 1.221), abs=5e-4)


def with_singular_values(values, columns=96):
    """A matrix of `len(values)` rows with these singular values and random singular vectors."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(n, len(values), generator=generator).double() for n in (len(values), columns))
    return torch.linalg.qr(left)[0] * values @ torch.linalg.qr(right)[0].mT


SPECTRA = {
    "equal": torch.ones(64),
    "noise": torch.linalg.svdvals(torch.randn(64, 96, generator=torch.Generator().manual_seed(0))),
    "geometric": torch.logspace(0, -2, 64),
    "one large": torch.tensor([1.0] + 63 * [0.01]),
    # As of gradients: most of the norm in few directions, and a long tail.
    "power law": torch.arange(1, 65.0) ** -1.2,
    "down to the smallest": torch.cat([torch.ones(1), torch.logspace(-1, math.log10(SMALLEST), 63)]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_four_steps_end_nearer_to_an_orthogonal_matrix_than_the_five_of_torch(spectrum, dtype):
    values = SPECTRA[spectrum].double()
    # As little as the range that is promised allows, beside the norm.
    assert values.min() / values.norm() > 0.9 * SMALLEST
    matrix = with_singular_values(values)
    ours, theirs = orthogonalize(matrix[None].to(dtype), 1e-7)[0], matrix / matrix.norm()
    for _ in range(5):
        gram = theirs @ theirs.T
        theirs = 3.4445 * theirs + (-4.775 * gram + 2.0315 * gram @ gram) @ theirs
    mine, other = ((torch.linalg.svdvals(x.double()) - 1).abs() for x in (ours, theirs))
    # Those five are 0.318 off at most; rounding to bfloat16 adds to the smallest.
    assert mine.max() < (0.222 if dtype == torch.float32 else 0.318)
    assert mine.square().mean() < other.square().mean()
    # The singular vectors stay.
    polar = with_singular_values(torch.ones_like(values))
    assert torch.cosine_similarity(ours.double().flatten(), polar.flatten(), dim=0) > 0.97


def test_a_matrix_of_zeros_stays_zero():
    assert not orthogonalize(torch.zeros(2, 3, 4), 1e-7).any()


def test_muon_is_its_single_matrix_definition():
    ours = steps_of(Muon, SHAPES, weight_decay=0.1)
    generator = torch.Generator().manual_seed(1)
    matrices = [torch.randn(shape, generator=generator).double() for shape in SHAPES]
    start, buffers = [m.clone() for m in matrices], [torch.zeros_like(m) for m in matrices]
    for _ in range(4):
        for i, shape in enumerate(SHAPES):
            gradient = torch.randn(shape, generator=generator).double()
            matrices[i], buffers[i] = reference_step(matrices[i], gradient, buffers[i], 0.1, 0.9, 0.1)
    for mine, matrix, before in zip(ours, matrices, start):
        # The iteration runs in float32.
        assert relative_error(mine.double(), matrix - before) < 1e-4


def make_nfdm():
    return NFDMModel(NFDMConfig(vocab_size=11, max_length=8, **PREDICTOR, **NFDM))


def test_trunk_matrices_are_the_maps_between_hidden_states():
    trunk = "predictor.encoder.layer.0."
    expected = {
        *(f"{trunk}attention.self.{name}.weight" for name in ("query", "key", "value")),
        f"{trunk}attention.output.dense.weight",
        f"{trunk}intermediate.dense.weight",
        f"{trunk}output.dense.weight",
        *(
            f"forward_process.network.layers.0.{name}.weight"
            for name in ("attention.query_key_value", "attention.output", "mlp.linear_1", "mlp.linear_2")
        ),
    }
    assert set(trunk_matrices(make_nfdm())) == expected
    mulan = MuLANModel(MuLANConfig(vocab_size=11, max_length=8, **PREDICTOR, **MULAN))
    assert any(name.startswith("context_encoder.transformer.layers.0.") for name in trunk_matrices(mulan))


@pytest.mark.parametrize("use_muon", [True, False])
def test_every_parameter_has_one_optimizer_and_no_decay(use_muon):
    model = make_nfdm()
    settings = TrainingArguments(use_muon=use_muon, learning_rate=0.5, muon_learning_rate=0.25)
    optimizers = build_optimizers(model, settings)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    held = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(held) == sorted(id(parameter) for parameter in model.parameters())
    assert all(group["weight_decay"] == 0 and group["base_lr"] == group["lr"] for group in groups)
    assert [type(optimizer) for optimizer in optimizers] == [torch.optim.Adam, Muon][: 1 + use_muon]
    assert groups[0]["lr"] == 0.5 and (not use_muon or groups[-1]["lr"] == 0.25)


def test_the_forward_process_may_have_a_rate_of_its_own_and_then_no_muon():
    model = make_nfdm()
    settings = TrainingArguments(
        use_muon=True, learning_rate=0.5, muon_learning_rate=0.25, forward_learning_rate=0.125
    )
    groups = [group for optimizer in build_optimizers(model, settings) for group in optimizer.param_groups]
    rates = {id(parameter): group["lr"] for group in groups for parameter in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        assert (rates[id(parameter)] == 0.125) == name.startswith("forward_process.")


def test_learning_rate_grows_then_falls_to_zero():
    factors = [learning_rate_factor(step, 4, 12) for step in range(13)]
    assert factors == [0.25, 0.5, 0.75, 1.0, 1.0, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8, 0.0]
    assert [learning_rate_factor(step, 0, 2) for step in range(3)] == [1.0, 0.5, 0.0]


@given(st.integers(0, 50), st.integers(1, 100), st.integers(0, 200))
def test_learning_rate_factor_is_in_the_unit_interval(warmup, length, step):
    assert 0 <= learning_rate_factor(step, warmup, warmup + length) <= 1


def test_moving_average_formula():
    model = torch.nn.Linear(3, 2)
    ema = ExponentialMovingAverage(model, decay=0.5)
    expected = [parameter.detach().double() for parameter in model.parameters()]
    for n in range(12):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        ema.update(model)
        # (1+n)/(10+n) passes 1/2 at n = 8, so both branches are taken.
        decay = min(0.5, (1 + n) / (10 + n))
        expected = [decay * e + (1 - decay) * p.detach().double() for e, p in zip(expected, model.parameters())]
    other = copy.deepcopy(model)
    ema.copy_to(other)
    assert not torch.equal(other.weight, model.weight)
    for parameter, value in zip(other.parameters(), expected):
        torch.testing.assert_close(parameter.detach().double(), value, rtol=0, atol=1e-6)
    again = ExponentialMovingAverage(torch.nn.Linear(3, 2), decay=0.5)
    again.load_state_dict(ema.state_dict(), ema.updates)
    assert again.updates == 12 and all(torch.equal(a, b) for a, b in zip(again.average, ema.average))


@pytest.mark.parametrize(
    ("distributed_type", "is_fsdp2", "mixed_precision", "reason"),
    [
        (DistributedType.DEEPSPEED, False, "no", "keeps only the last under DeepSpeed"),
        (DistributedType.MULTI_GPU, False, "fp16", "loss scale twice"),
    ],
)
def test_muon_is_refused_where_it_would_not_be_muon(distributed_type, is_fsdp2, mixed_precision, reason):
    with pytest.raises(ValueError, match=reason):
        check_combination(distributed_type, is_fsdp2, mixed_precision, use_muon=True)
    check_combination(distributed_type, is_fsdp2, mixed_precision, use_muon=False)


def test_other_combinations():
    with pytest.raises(ValueError, match="--fsdp_version 2"):
        check_combination(DistributedType.FSDP, False, "no", use_muon=False)
    for distributed_type in (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU):
        check_combination(distributed_type, False, "bf16", use_muon=True)
    check_combination(DistributedType.FSDP, True, "bf16", use_muon=True)
