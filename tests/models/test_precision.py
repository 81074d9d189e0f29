"""Low precision and the ends of the time interval: everything stays finite, and latents and times stay float32."""

import pytest
import torch
from tiny import MODELS, PREDICTION_TYPES, at_rate_one, make_ids, make_model, relative_error, seeded


ENDS = [0.0, 1e-7, 1e-3, 0.5, 1 - 1e-3, 1 - 1e-7, 1.0]
PRECISIONS = ("float32", "bfloat16", "autocast")


def evaluate(name, precision, t=None, **overrides):
    model = make_model(name, torch.bfloat16 if precision == "bfloat16" else torch.float32, **overrides)
    ids = make_ids(len(ENDS))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "autocast"):
        return model, model(ids, t=t, generator=seeded(0))


@pytest.mark.parametrize("decoder", ["linear", "gaussian"])
@pytest.mark.parametrize("kind", PREDICTION_TYPES)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients_are_finite_at_the_ends_of_time(name, precision, kind, decoder):
    model, output = evaluate(name, precision, torch.tensor(ENDS), prediction_type=kind, decoder=decoder)
    assert output.non_finite_terms() is None
    assert output.bound.isfinite().all() and output.loss.isfinite()
    output.loss.backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), key


@pytest.mark.parametrize("kind", PREDICTION_TYPES)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", MODELS)
def test_latents_times_and_terms_stay_float32(name, precision, kind):
    model, output = evaluate(name, precision, prediction_type=kind)
    for key, value in output.items():
        assert value.dtype == torch.float32, key
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "autocast"):
        embeddings, draws = model.embed(make_ids(3)), model.draw(3)
        context, _ = model.encode_context(embeddings, draws.context_noise)
        times = model.time_sampler(at_rate_one(draws.uniforms))
        path = model.forward_process.path(times, context)(embeddings)
        z = path.sample(draws.noise)
        tensors = {
            "embeddings": embeddings,
            "t": times.value,
            "weight": times.rate,
            "mean": path.mean,
            "std": path.std,
            "mean_rate": path.mean_rate,
            "log_std_rate": path.log_std_rate,
            "z": z,
            "volatility": model.forward_process.squared_volatility(times, context),
            "prediction": model.denoise(z, times.value, context).embeddings,
            "logits": model.decode(z, context),
        }
    for key, tensor in tensors.items():
        assert tensor.dtype == torch.float32, key


@pytest.mark.parametrize("decoder", ["linear", "gaussian"])
@pytest.mark.parametrize("kind", PREDICTION_TYPES)
@pytest.mark.parametrize("name", MODELS)
def test_autocast_rounds_in_the_networks_only(name, kind, decoder):
    # Silent networks: what is left is the arithmetic around them, which autocast must not touch.
    results = {}
    for precision in ("float32", "autocast"):
        model = make_model(name, torch.float32, prediction_type=kind, decoder=decoder, stabilized_prediction=False)
        with torch.no_grad():
            (model.predictor.output if kind == "categorical" else model.predictor.output[2]).weight.zero_()
            if name.startswith("nfdm"):
                model.forward_process.network.output.weight.zero_()
            if name.startswith("mulan"):
                model.forward_process.coefficients[2].weight.zero_()
        torch.manual_seed(0)
        ids = make_ids(16)
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "autocast"):
            results[precision] = model(ids, t=torch.linspace(0, 1, 16), generator=seeded(0))
    for term in ("reconstruction", "diffusion"):
        expected, actual = (results[precision][term] for precision in PRECISIONS[::2])
        torch.testing.assert_close(actual.mean(), expected.mean(), rtol=0.01, atol=1e-3)


@pytest.mark.parametrize("options", [{}, {"next_token_weight": 0.5}, {"cross_entropy": True}], ids=str)
@pytest.mark.parametrize("clock", ["ramp:8", "shared"])
def test_gradients_of_a_two_stream_step_are_those_of_float32_up_to_bfloat16(clock, options):
    model = make_model(
        "nfdm",
        torch.float32,
        vocab_size=50,
        max_length=24,
        hidden_size=64,
        intermediate_size=128,
        predictor="two_stream",
        prediction_type="categorical",
        decoder="gaussian",
    )
    ids, draws = torch.randint(50, (16, 24), generator=seeded(1)), model.draw(16, seeded(0))
    gradients = []
    for enabled in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            loss = model(ids, clock=clock, draws=draws, **options).loss
        loss.backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    expected, rounded = gradients
    # A number is off by up to 2^-9 of itself, and a gradient passes some tens of roundings.
    assert 1e-4 < relative_error(rounded, expected) < 0.03
    assert torch.cosine_similarity(rounded, expected, dim=0) > 0.999
