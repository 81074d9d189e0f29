"""What a training step costs, by arithmetic: operations, memory and traffic, and what a cluster would need.

    python benchmarks/scaling.py            # the tables of docs/scaling.md

The step is one on the bound of NFDM with AdaLN, the BERT predictor and embedding prediction, one time per text. A
product of an (m, k) with a (k, n) matrix counts 2 m k n operations; all else is left out.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import torch
from result_tables import markdown
from sizes import SIZES

from diffusers_text_nfdm import NFDMConfig, NFDMModel
from diffusers_text_nfdm.networks import fused_dual
from diffusers_text_nfdm.training.muon import COEFFICIENTS
from diffusers_text_nfdm.training.optimization import trunk_matrices


# Products of the forward pass and of the backward pass, for each product of a plain forward pass.
PLAIN, WITH_RATE = 1 + 2, 2 * (1 + 2)
# The same for attention, whose forward pass has two products of queries, keys and head_dim. Plain attention computes
# the scores again in the backward pass; with a rate there are 6 products forward and 12 backward, and 3 of them again.
ATTENTION, ATTENTION_WITH_RATE, ATTENTION_AGAIN = 2 + 5, 6 + 12, 3

# A model of a billion parameters, and what it would be trained on.
BILLION = {
    "vocab_size": 32_768,
    "max_length": 512,
    "embedding_dim": 256,
    "hidden_size": 2048,
    "num_hidden_layers": 18,
    "num_attention_heads": 16,
    "intermediate_size": 8192,
    "forward_hidden_size": 768,
    "forward_num_layers": 8,
    "forward_num_heads": 12,
    "forward_intermediate_size": 3072,
    "forward_time_dim": 1024,
}
TOKENS = 100e9
TOKENS_PER_STEP = 2**20
DEVICES = (8, 64, 512)


@dataclass(frozen=True)
class Device:
    """An accelerator, by its data sheet, and the share of its peak that products are assumed to reach."""

    name: str
    operations_per_second: float
    memory: float
    bytes_per_second: float
    share_of_peak: float


# Dense bfloat16; one way over a network of 400 Gbit/s for each device.
H100 = Device("H100 SXM", 989e12, 80e9, 50e9, 0.4)


def step_operations(config: NFDMConfig, batch_size: int) -> dict[str, int]:
    """Operations of all matrix products of a training step, by what they are for; "rate" is what the time derivative
    adds to the forward process.
    """
    tokens = batch_size * config.max_length
    width, length, inner = config.forward_hidden_size, config.max_length, config.forward_intermediate_size
    dim, layers = config.embedding_dim, config.forward_num_layers
    # The data's embeddings and the predicted ones.
    calls = 2
    network = layers * (4 * width**2 + 2 * width * inner) + width * 2 * dim
    scores = 2 * length * width * layers
    again = config.forward_num_heads * batch_size * length**2 > fused_dual.CHUNK_ELEMENTS
    time = config.forward_time_dim
    conditions = width * time + time**2 + time * width * (6 * layers + 2)
    # The features of the time get no gradient, which spares a product of the first layer.
    conditions_spared = width * time
    plain = calls * tokens * (PLAIN * 2 * (dim * width + network) + ATTENTION * scores)
    plain += 2 * batch_size * (PLAIN * conditions - conditions_spared)
    with_rate = calls * tokens * PLAIN * 2 * dim * width
    with_rate += calls * tokens * (WITH_RATE * 2 * network + (ATTENTION_WITH_RATE + ATTENTION_AGAIN * again) * scores)
    with_rate += 2 * batch_size * (WITH_RATE * conditions - 2 * conditions_spared)

    hidden = config.hidden_size
    trunk = config.num_hidden_layers * (4 * hidden**2 + 2 * hidden * config.intermediate_size)
    ends = 2 * (dim * hidden + hidden**2)
    attention = ATTENTION * 2 * length * hidden * config.num_hidden_layers
    predictor = tokens * (PLAIN * 2 * (trunk + ends) + attention)
    predictor += 2 * batch_size * (PLAIN * 2 * hidden**2 - hidden**2)
    return {
        "forward process": plain,
        "rate": with_rate - plain,
        "predictor": predictor,
        "vocabulary": tokens * PLAIN * 2 * dim * config.vocab_size,
    }


def muon_operations(shapes: list[tuple[int, int]], processes: int = 1) -> int:
    """Operations of Newton-Schulz on matrices of these shapes, `X Xᵀ`, its square and the product of both with X, in
    the process that has most of them: each has a share of every shape, and a matrix is not divided.
    """
    total = 0
    for (rows, columns), count in Counter(tuple(sorted(shape)) for shape in shapes).items():
        share = math.ceil(count / processes)
        total += share * len(COEFFICIENTS) * (4 * rows**2 * columns + 2 * rows**3)
    return total


def matrix_shapes(config: NFDMConfig) -> list[tuple[int, int]]:
    """Of the matrices that Muon trains."""
    return [tuple(matrix.shape) for matrix in trunk_matrices(_meta_model(config)).values()]


def parameter_count(config: NFDMConfig) -> int:
    return sum(parameter.numel() for parameter in _meta_model(config).parameters())


def state_bytes(parameters: int, matrices: int, processes: int, sharded: bool) -> float:
    """Bytes of weights, gradients, Muon's momentum (of `matrices` numbers), Adam's two moments (of the others) and
    averaged weights on a device in float32, and the copy of the model that is evaluated and saved, which is never
    sharded.
    """
    numbers = 3 * parameters + matrices + 2 * (parameters - matrices)
    return 4 * (numbers / (processes if sharded else 1) + parameters)


def traffic(parameters: int, matrices: int, processes: int, sharded: bool, weight_bytes: int = 2) -> dict[str, float]:
    """Bytes that a device sends in a step.

    Whole (DDP), gradients are summed by a ring in float32, and Muon's results are passed on. Sharded (FSDP2), weights
    are gathered for the forward and the backward pass and gradients are scattered, and the rows of Muon's matrices go
    to the process that orthogonalises them and back.
    """
    others = (processes - 1) / processes
    if sharded:
        return {
            "weights": 2 * weight_bytes * parameters * others,
            "gradients": 4 * parameters * others,
            "Muon": 2 * 2 * matrices / processes * others,
        }
    return {"weights": 0.0, "gradients": 2 * 4 * parameters * others, "Muon": 2 * matrices * others}


def _meta_model(config: NFDMConfig) -> NFDMModel:
    with torch.device("meta"):
        return NFDMModel(config)


def operations_table() -> str:
    sizes = {"tiny": SIZES["tiny"], "mid": SIZES["mid"], "paper": SIZES["paper"], "1B": BILLION}
    rows = []
    for name, options in sizes.items():
        config = NFDMConfig(**options)
        parts = step_operations(config, 2**10)
        tokens = 2**10 * config.max_length
        muon = muon_operations(matrix_shapes(config))
        rows.append(
            [name, f"{parameter_count(config) / 1e6:,.1f}"]
            + [f"{part / tokens / 1e6:,.1f}" for part in (*parts.values(), sum(parts.values()))]
            + [f"{muon / 1e12:,.2f}"]
        )
    header = ["size", "parameters, M", *parts, "step", "Muon, TFLOP a step"]
    return markdown("Operations of a training step, MFLOP per token", header, rows)


def cluster_table(device: Device = H100) -> str:
    config = NFDMConfig(**BILLION)
    parameters, shapes = parameter_count(config), matrix_shapes(config)
    matrices = sum(math.prod(shape) for shape in shapes)
    texts = TOKENS_PER_STEP // config.max_length
    operations = sum(step_operations(config, texts).values())
    steps = TOKENS / TOKENS_PER_STEP
    speed = device.operations_per_second * device.share_of_peak
    rows = []
    for processes in DEVICES:
        computing = (operations / processes + muon_operations(shapes, processes)) / speed
        for sharded in (False, True):
            sending = sum(traffic(parameters, matrices, processes, sharded).values())
            rows.append(
                [
                    processes,
                    "FSDP2" if sharded else "DDP",
                    f"{texts / processes:g}",
                    f"{state_bytes(parameters, matrices, processes, sharded) / 1e9:.1f}",
                    f"{sending / 1e9:.1f}",
                    f"{sending / device.bytes_per_second:.2f}",
                    f"{computing:.2f}",
                    f"{steps * max(computing, sending / device.bytes_per_second) / 3600:.1f}",
                ]
            )
    title = (
        f"{parameters / 1e9:.2f}B parameters, {TOKENS / 1e9:.0f}B tokens, {TOKENS_PER_STEP:,} a step, "
        f"{device.name} at {device.share_of_peak:.0%} of its peak"
    )
    header = "devices,,texts each,states GB,sent GB a step,sending s,computing s,hours".split(",")
    return markdown(title, header, rows)


if __name__ == "__main__":
    print(operations_table(), cluster_table(), sep="\n\n")
