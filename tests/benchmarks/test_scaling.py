"""The arithmetic of docs/scaling.md agrees with what is counted."""

import math
import sys
from pathlib import Path

import pytest
import torch
from tiny import NFDM, SHARED, seeded

from diffusers_text_nfdm import NFDMConfig, NFDMModel
from diffusers_text_nfdm.networks import fused_dual
from diffusers_text_nfdm.training import TrainingArguments
from diffusers_text_nfdm.training.optimization import build_optimizers


sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import scaling  # noqa: E402
from timing import matrix_operations  # noqa: E402


# In each, another part is the largest.
MODELS = {
    "forward process": {"forward_hidden_size": 64, "forward_intermediate_size": 256, "forward_num_layers": 3},
    "predictor": {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 4},
    "vocabulary": {"vocab_size": 3000, "embedding_dim": 16},
    "attention": {"max_length": 160},
}
BATCH = 4


def make_config(name):
    return NFDMConfig(**{**SHARED, **NFDM, "max_length": 24, **MODELS[name]})


@pytest.mark.parametrize("again", [False, True], ids=["probabilities kept", "computed again"])
@pytest.mark.parametrize("name", MODELS)
def test_operations_of_a_step_are_those_counted(name, again, monkeypatch):
    monkeypatch.setattr(fused_dual, "CHUNK_ELEMENTS", 2**8 if again else 2**30)
    config = make_config(name)
    model = NFDMModel(config)
    ids, draws = torch.randint(config.vocab_size, (BATCH, config.max_length)), model.draw(BATCH, seeded(0))
    counted = matrix_operations(lambda: model(ids, draws=draws).loss.backward())
    parts = scaling.step_operations(config, BATCH)
    assert sum(parts.values()) == pytest.approx(counted, rel=0.02)
    if name in parts:
        own = parts[name] + (parts["rate"] if name == "forward process" else 0)
        assert own > sum(parts.values()) / 2


def test_operations_of_muon_are_those_counted():
    config = make_config("predictor")
    model = NFDMModel(config)
    _, muon = build_optimizers(model, TrainingArguments(use_muon=True))
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    assert scaling.muon_operations(scaling.matrix_shapes(config)) == matrix_operations(muon.step)


def test_a_matrix_is_orthogonalised_by_one_process():
    wide, square = [(4, 6), (6, 4), (4, 6)], [(5, 5)]
    one = scaling.muon_operations(wide[:1])
    assert scaling.muon_operations(wide) == 3 * one and scaling.muon_operations(wide, 2) == 2 * one
    assert scaling.muon_operations(wide + square, 100) == one + scaling.muon_operations(square)


def test_states_are_what_a_process_alone_holds():
    config = make_config("predictor")
    model = NFDMModel(config)
    matrices = sum(math.prod(shape) for shape in scaling.matrix_shapes(config))
    optimizers = build_optimizers(model, TrainingArguments(use_muon=True))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    held = 4 * sum(p.nbytes for p in model.parameters())  # Weights, gradients, averages and the copy that is saved.
    for optimizer in optimizers:
        optimizer.step()
        held += sum(x.nbytes for state in optimizer.state.values() for x in state.values() if x.ndim)
    assert scaling.state_bytes(scaling.parameter_count(config), matrices, 1, sharded=False) == held


def test_sharding_divides_the_states_but_for_one_copy_and_a_device_alone_sends_nothing():
    whole, shared = (scaling.state_bytes(1000, 600, 4, sharded) for sharded in (False, True))
    assert whole - shared == pytest.approx(0.75 * (whole - 4 * 1000))
    for sharded in (False, True):
        assert sum(scaling.traffic(1000, 600, 1, sharded).values()) == 0
