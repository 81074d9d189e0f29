"""Runs on lattices: from a checkpoint without one, in parts, and settings that do not fit."""

import pytest
import torch

from diffusers_text_nfdm import MarkovChainScheduler, NFDMTextPipeline
from diffusers_text_nfdm.training import Trainer, train
from runs import arguments, assert_same_run, metrics


TWO_STREAM = {
    "predictor": "two_stream",
    "prediction_type": "categorical",
    "clock": "ramp:8",
    "self_conditioning": True,
    "forward_num_layers": 0,
}
LATTICE = {
    "model_config": {**TWO_STREAM, "lattice_candidates": 3},
    "lattice_clocks": {"ramp:8": 0.4, "blocks:8": 0.3, "shared": 0.3},
    "lattice_share": 0.6,
}
SETTINGS = {"cross_entropy_steps": 1, "next_token_weight": 1.0, "clocks": {"ramp:8": 0.5, "shared": 0.5}}


def test_a_run_starts_from_a_checkpoint_without_a_lattice(data, tmp_path):
    train(arguments(data, tmp_path / "first", model_config=TWO_STREAM, **SETTINGS))
    teacher = tmp_path / "first" / "pipeline"
    trainer = Trainer(arguments(data, tmp_path / "run", model_name_or_path=str(teacher), **LATTICE, **SETTINGS))
    old, new = NFDMTextPipeline.from_pretrained(teacher).model.state_dict(), trainer.model.state_dict()
    assert all(torch.equal(new[name], weight) for name, weight in old.items())
    assert {name for name in new if name not in old} == {"predictor.beginning"}
    trainer.train()
    steps = metrics(tmp_path / "run")
    assert any("train/lattice" in step for step in steps) and any("train/bound" in step for step in steps)
    pipe = NFDMTextPipeline.from_pretrained(tmp_path / "run" / "pipeline")
    assert pipe.model.config.lattice_candidates == 3
    pipe.scheduler = MarkovChainScheduler(prediction="tokens", temperature=1.0)
    assert len(pipe(num_samples=2, num_inference_steps=4).texts) == 2
    # The reading from left to right is two calls, once.
    assert pipe(num_samples=2, num_inference_steps=4, clock="shared").calls.tolist() == [6, 6]


def test_prototypes_start_at_training_texts_and_go_on_from_those_of_a_checkpoint(data, tmp_path):
    options = {**LATTICE, **SETTINGS, "model_config": {**LATTICE["model_config"], "num_prototypes": 5}}
    trainer = Trainer(arguments(data, tmp_path / "run", **options))
    texts = trainer.data.train_ids()[:5]["input_ids"].long()
    assert torch.equal(trainer.model.predictor.prototypes.texts, trainer.model.embed(texts))
    trainer.train()
    pipeline = tmp_path / "run" / "pipeline"
    again = Trainer(arguments(data, tmp_path / "again", model_name_or_path=str(pipeline), **options))
    trained = NFDMTextPipeline.from_pretrained(pipeline).model.predictor.prototypes.texts
    assert torch.equal(again.model.predictor.prototypes.texts, trained)
    assert not torch.equal(trained, trainer.model.embed(texts))


def test_prototypes_are_fitted_before_training(data, tmp_path):
    config = {**LATTICE["model_config"], "num_prototypes": 5}
    runs = [
        Trainer(arguments(data, tmp_path / name, **{**LATTICE, **SETTINGS, "model_config": config}, **options)).model
        for name, options in (("start", {}), ("fitted", {"prototype_steps": 30}), ("again", {"prototype_steps": 30}))
    ]
    start, fitted, again = (model.predictor.prototypes.texts for model in runs)
    assert torch.equal(fitted, again) and not torch.equal(fitted, start)
    others = [w for name, w in runs[1].named_parameters() if "prototypes" not in name]
    unchanged = [w for name, w in runs[0].named_parameters() if "prototypes" not in name]
    assert all(torch.equal(a, b) for a, b in zip(others, unchanged))


def test_a_run_in_parts_is_the_run_in_one(data, tmp_path):
    config = {**LATTICE["model_config"], "num_prototypes": 5, "joint_decoder": True}
    options = {**LATTICE, **SETTINGS, "model_config": config, "prototype_steps": 10}
    train(arguments(data, tmp_path / "whole", **options))
    assert train(arguments(data, tmp_path / "parts", stop_after_steps=3, **options)) is None
    assert train(arguments(data, tmp_path / "parts", resume="latest", **options)) is not None
    assert_same_run(tmp_path / "whole", tmp_path / "parts", 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lattice_clocks": {"ramp:8": 1.0}}, "`lattice_clocks` is .* needs `lattice_candidates` for it"),
        ({**LATTICE, "lattice_clocks": {"ramp:8": 0.5}}, "`lattice_clocks` is .* must add up to 1, not 0.5"),
        ({**LATTICE, "lattice_share": 0}, "`lattice_share` is 0.0; it must be in"),
        ({**LATTICE, "frontier": {"all": "star:4:finish_time=0.5"}}, "`frontier` is .* needs `joint_decoder: true`"),
        (
            {**LATTICE, "scheduler_config": {"finish_time": 0.5}},
            "`scheduler_config` .* needs `joint_decoder: true`",
        ),
        ({**LATTICE, "prototype_steps": 5}, "`prototype_steps` is 5; it needs `num_prototypes`"),
        (
            {
                **LATTICE,
                "model_config": {**LATTICE["model_config"], "jumps": True},
                "jump_clocks": {"ramp:8": 1.0},
                "jump_share": 0.5,
            },
            "`jump_share` is 0.5 and `lattice_share` 0.6; together they must be at most 1",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(options, message, data, tmp_path):
    with pytest.raises(ValueError, match=message):
        arguments(data, tmp_path, **options)
