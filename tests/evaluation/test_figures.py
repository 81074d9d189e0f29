"""The paper's figures, of untrained checkpoints."""

import importlib.util
from pathlib import Path

import pytest
from tiny import make_pipeline


SCRIPT = Path(__file__).parents[2] / "evaluation" / "figures.py"
SPECIAL = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 3}


@pytest.fixture
def script():
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
    assert {path.name for path in output.iterdir()} == expected | {"gamma-mulan-rescaled.png", "transformations.png"}
    assert str(output / "transformations.png") in capsys.readouterr().out


def test_a_folder_without_checkpoints_is_refused(script, tmp_path, capsys):
    assert script.main([str(tmp_path), "--output", str(tmp_path / "figures")]) == 1
    assert "neither a pipeline nor a folder runs" in capsys.readouterr().err
