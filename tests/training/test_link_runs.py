"""Runs whose drafts are linked at the end."""

import shutil

import pytest
import torch
from safetensors.torch import load_file

from diffusers_text_nfdm import NFDMTextPipeline
from diffusers_text_nfdm.training import train
from runs import arguments


LINKED = {
    "model_config": {"predictor": "two_stream", "prediction_type": "categorical"},
    "next_token_weight": 1.0,
    "clocks": {"ramp:4": 1.0},
    "link_steps": 4,
}


def weights(folder):
    return load_file(folder / "pipeline" / "model" / "model.safetensors")


def test_a_run_releases_a_model_with_a_link_and_trains_nothing_else_for_it(data, tmp_path):
    for name, steps in (("plain", 0), ("linked", 4)):
        assert train(arguments(data, tmp_path / name, **{**LINKED, "link_steps": steps})) is not None
    plain, linked = weights(tmp_path / "plain"), weights(tmp_path / "linked")
    assert set(linked) - set(plain) == {
        f"predictor.token_link.{part}.{kind}" for part in ("input", "output") for kind in ("weight", "bias")
    }
    assert all(torch.equal(linked[name], weight) for name, weight in plain.items())
    assert linked["predictor.token_link.output.weight"].any()
    assert NFDMTextPipeline.from_pretrained(tmp_path / "linked" / "pipeline").model.config.token_link


def test_a_stopped_run_may_be_given_a_link_when_it_goes_on(data, tmp_path):
    assert train(arguments(data, tmp_path / "parts", stop_after_steps=3, **{**LINKED, "link_steps": 0})) is None
    assert train(arguments(data, tmp_path / "parts", resume="latest", **LINKED)) is not None
    assert train(arguments(data, tmp_path / "whole", **LINKED)) is not None
    parts, whole = weights(tmp_path / "parts"), weights(tmp_path / "whole")
    assert set(parts) == set(whole) and all(torch.equal(parts[name], whole[name]) for name in whole)


def test_a_run_that_was_killed_before_its_release_gets_the_same_link(data, tmp_path):
    assert train(arguments(data, tmp_path / "run", **LINKED)) is not None
    whole = weights(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "pipeline")
    (tmp_path / "run" / "summary.json").unlink()
    assert train(arguments(data, tmp_path / "run", resume="latest", **LINKED)) is not None
    again = weights(tmp_path / "run")
    assert all(torch.equal(again[name], weight) for name, weight in whole.items())


def test_a_run_that_starts_from_a_linked_model_leaves_the_link_behind(data, tmp_path):
    train(arguments(data, tmp_path / "first", **LINKED))
    start = {"model_name_or_path": str(tmp_path / "first" / "pipeline")}
    train(arguments(data, tmp_path / "second", **{**LINKED, "link_steps": 0}, **start))
    assert not any("token_link" in name for name in weights(tmp_path / "second"))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"link_steps": 4}, "`link_steps` is 4; it needs `predictor` 'two_stream'"),
        ({**LINKED, "link_steps": -1}, "`link_steps` is -1; it must be at least 0"),
        (
            {**LINKED, "model_config": {**LINKED["model_config"], "token_link": True}},
            "`token_link` is True in the `model_config`; a link is fitted after all else, by `link_steps`",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(options, message, data, tmp_path):
    with pytest.raises(ValueError, match=message):
        arguments(data, tmp_path, **options)
