"""The posterior of a sample of stories against Bayes' rule, and the command's table."""

import importlib.util
from pathlib import Path

import pytest
import torch
from tiny import LENGTH, make_ids, make_model, make_pipeline, seeded

from diffusers_text_nfdm.models.prediction import gaussian_factors


SCRIPT = Path(__file__).parents[2] / "evaluation" / "error_by_time.py"
UNDEFORMED = {"prediction_type": "categorical", "decoder": "gaussian", "forward_num_layers": 0}


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("error_by_time", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_posterior_is_that_of_the_sample(script):
    model = make_model("nfdm", **UNDEFORMED, dtype=torch.float64)
    stories, text = make_ids(6), make_ids(2)
    t = torch.full((2, 1), 0.7, dtype=torch.float64)
    E = model.embed(text)
    z = model.forward_process.marginal(E, t).sample(torch.randn(E.shape, generator=seeded(0), dtype=torch.float64))
    alpha, sigma = model.forward_process.alpha_sigma(t, None)
    states, weight = gaussian_factors(z, (alpha, sigma), model.embedding_table())
    predicted, effective = script.sample_posterior(states @ weight.T, stories, model.embedding_table())
    candidates = model.embed(stories)
    log_likelihoods = torch.stack(
        [torch.distributions.Normal(alpha * e, sigma.expand_as(z)).log_prob(z).sum((1, 2)) for e in candidates], -1
    )
    weights = torch.softmax(log_likelihoods, -1)
    assert torch.allclose(predicted, torch.einsum("bn,nid->bid", weights, candidates))
    assert torch.allclose(effective, 1 / weights.square().sum(-1))


def test_far_from_noise_the_sample_that_holds_a_text_knows_it(script):
    model = make_model("nfdm", **UNDEFORMED)
    ids = make_ids(3)
    rows = script.errors_by_time(model, ids, ids, (0.01, 1.0))
    assert rows[0]["sample"] == pytest.approx(0, abs=1e-6) and rows[0]["stories"] == pytest.approx(1)
    assert rows[1]["stories"] == pytest.approx(3) and rows[1]["sample"] > 1
    assert set(rows[0]) == {"t", "sample", "tokens alone", "model", "stories"} and ids.shape[1] == LENGTH


def test_a_process_with_a_network_is_refused(script, tmp_path, capsys):
    make_pipeline("nfdm").save_pretrained(tmp_path)
    with pytest.raises(SystemExit):
        script.main([str(tmp_path)])
    assert "its posterior is not known" in capsys.readouterr().err
