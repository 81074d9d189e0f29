"""The paper's figures, of untrained checkpoints."""

import importlib
import importlib.util
import math
from pathlib import Path

import pytest
import torch
from tiny import make_ids, make_model, make_pipeline


SCRIPT = Path(__file__).parents[2] / "evaluation" / "figures.py"
SPECIAL = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 3}


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("figures", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_model_gets_its_pictures(script, tmp_path, capsys):
    models = {"nfdm": "nfdm", "mulan-rescaled": "mulan-rescaled"}
    for folder, name in models.items():
        make_pipeline(name, **SPECIAL).save_pretrained(tmp_path / "tables" / "runs" / folder / "pipeline")
    alone = tmp_path / "additive"
    make_pipeline("nfdm-additive", **SPECIAL).save_pretrained(alone)
    output = tmp_path / "figures"
    options = ["--output", str(output), "--num_texts", "4", "--sampling", "star:3"]
    assert script.main([str(tmp_path / "tables"), str(alone), *options]) == 0
    kinds = ("volatility", "trajectory")
    expected = {f"{kind}-{name}.png" for kind in kinds for name in ("nfdm", "mulan-rescaled", "additive")}
    expected |= {"gamma-mulan-rescaled.png", "transformations.png", "claims.md"}
    assert {path.name for path in output.iterdir()} == expected
    printed, claims = capsys.readouterr().out, (output / "claims.md").read_text()
    assert str(output / "transformations.png") in printed and claims in printed
    rows = [line.strip("| ").split(" | ") for line in claims.splitlines()]
    assert all(len(row) == 5 for row in rows) and {row[4] for row in rows[2:]} <= {"yes", "**no**"}
    # Without Diffusion-LM there is no fixed process to compare with.
    assert {row[2] for row in rows[2:]} == {*models, "additive"} and "F.2.3" not in claims


def test_the_trajectory_has_all_options_of_its_sampling(script, tmp_path, monkeypatch, capsys):
    make_pipeline("nfdm", **SPECIAL).save_pretrained(tmp_path / "nfdm")
    called = []
    draw = script.NFDMTextPipeline.__call__
    monkeypatch.setattr(
        script.NFDMTextPipeline, "__call__", lambda self, **options: called.append(options) or draw(self, **options)
    )
    options = [str(tmp_path / "nfdm"), "--output", str(tmp_path / "figures"), "--num_texts", "4", "--sampling"]
    assert script.main([*options, "ode:3:clock=ramp:2:method=heun"]) == 0
    assert (called[0]["clock"], called[0]["num_inference_steps"]) == ("ramp:2", 3)
    capsys.readouterr()
    for sampling in ("ancestral", "masked:8"):
        assert script.main([*options, sampling]) == 1
        assert "the figures are of diffusion models" in capsys.readouterr().err


@pytest.fixture
def claims(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("figure_claims")


def found(claims, *names, **changes):
    models = {name: (make_model(name, **changes), make_ids(6)) for name in names}
    return models, {(claim.model, claim.claim.split(" (")[0]): claim for claim in claims.claims(models)}


def test_claims_that_hold_for_all_weights_hold(claims):
    """The mean SNR of the rescaled schedule, the spikes of the fixed one, and γ that cannot fall."""
    _, rows = found(claims, "mulan", "mulan-rescaled", "diffusion-lm")
    assert rows["mulan-rescaled", "the mean SNR over tokens is that of Diffusion-LM"].holds
    assert rows["mulan", "γ rises with t"].holds
    assert rows["diffusion-lm", "its schedule is steep at the ends"].holds
    assert rows["diffusion-lm", "g² has spikes near t = 0 and t = 1"].holds
    assert ("mulan", "the mean SNR over tokens is that of Diffusion-LM") not in rows


def test_a_network_that_ignores_time_does_not_change_with_it(claims):
    models = {name: (make_model(name), make_ids(6)) for name in ("nfdm", "nfdm-additive")}
    turning = {claim.model: claim.holds for claim in claims.claims(models) if "chang" in claim.claim}
    assert turning == {"nfdm": True, "nfdm-additive": False}
    for model, _ in models.values():
        for name, parameter in model.forward_process.network.named_parameters():
            if "time" in name or "modulation" in name:
                torch.nn.init.zeros_(parameter)
    still = {claim.model: claim.holds for claim in claims.claims(models) if "chang" in claim.claim}
    assert still == {"nfdm": False, "nfdm-additive": True}


def test_nothing_is_claimed_of_a_process_that_no_network_deforms(claims):
    models = {"undeformed": make_model("nfdm", forward_num_layers=0), "fixed": make_model("diffusion-lm")}
    rows = claims.claims({name: (model, make_ids(6)) for name, model in models.items()})
    assert {claim.model for claim in rows} == {"fixed"}


def test_relative_curvature_of_the_process_without_a_network(claims):
    """`std = δ^(1-t)` alone is curved; see tests/test_straightness.py."""
    model, ids = make_model("nfdm", delta=0.2), make_ids(3)
    for parameter in model.forward_process.network.output.parameters():
        torch.nn.init.zeros_(parameter)
    embeddings, _ = claims.model_inputs(model, ids)
    noise = torch.randn(embeddings.shape, generator=torch.Generator().manual_seed(0)).to(embeddings)
    factor = -math.log(0.2) * (1 - 0.2**2) / 2 - 0.8**2
    expected = factor * noise.square().sum() / (0.8 * noise - embeddings).square().sum()
    with torch.no_grad():
        assert claims.relative_curvature(model, embeddings, None) == pytest.approx(expected.item(), rel=1e-3)


def test_a_folder_without_checkpoints_is_refused(script, tmp_path, capsys):
    assert script.main([str(tmp_path), "--output", str(tmp_path / "figures")]) == 1
    assert "neither a pipeline nor a folder runs" in capsys.readouterr().err
