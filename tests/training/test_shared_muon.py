"""Muon on two gloo processes that share its work, whole (DDP) and sharded (FSDP2): the update of one process."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from runs import NFDM, PREDICTOR, environment


STEPS = 20
# Wide, tall, square; of one shape one, two and three; rows that two processes cannot share evenly, and a single row.
SHAPES = [(6, 4), (4, 6), (4, 6), (5, 3), (1, 4), (7, 7), (7, 7), (7, 7)]


def work(rank: int, folder: Path) -> None:
    """Compare with one process that trains alone; runs in each of the two processes."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    differences = {"matrices": matrices(), "model": model()}
    if dist.get_rank() == 0:
        (folder / "differences.json").write_text(json.dumps(differences))
    dist.destroy_process_group()


def matrices() -> dict[str, float]:
    """Largest difference of matrices after steps with the same gradients, between -1 and 1 at first."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    from diffusers_text_nfdm.training.muon import Muon
    from diffusers_text_nfdm.training.optimization import whole

    mesh = init_device_mesh("cpu", (2,))
    results = {}
    for kind in ("alone", "whole", "sharded"):
        generator = torch.Generator().manual_seed(0)

        def draw(kind=kind, generator=generator):
            drawn = [2 * torch.rand(shape, generator=generator) - 1 for shape in SHAPES]
            return [distribute_tensor(x, mesh, [Shard(0)]) for x in drawn] if kind == "sharded" else drawn

        parameters = [nn.Parameter(x) for x in draw()]
        # The last as GPT-2 stores them.
        groups = [{"params": parameters[:-1]}, {"params": parameters[-1:], "transposed": True}]
        muon = Muon(groups, lr=0.02, momentum=0.9, weight_decay=0.1)
        muon.process_group = dist.group.WORLD if kind == "whole" else None
        for _ in range(STEPS):
            for parameter, gradient in zip(parameters, draw()):
                parameter.grad = gradient
            muon.step()
        results[kind] = [whole(parameter.detach()) for parameter in parameters]
    return {kind: largest_difference(results[kind], results["alone"]) for kind in ("whole", "sharded")}


def model() -> dict[str, float]:
    """Largest difference of the weights of a model after steps on the same batches."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    from diffusers_text_nfdm import NFDMConfig, NFDMModel
    from diffusers_text_nfdm.training import TrainingArguments
    from diffusers_text_nfdm.training.muon import Muon
    from diffusers_text_nfdm.training.optimization import build_optimizers, whole

    torch.manual_seed(0)
    alone = NFDMModel(NFDMConfig(vocab_size=11, max_length=8, **PREDICTOR, **NFDM))
    models = {"alone": alone, "whole": copy.deepcopy(alone), "sharded": copy.deepcopy(alone)}
    mesh = init_device_mesh("cpu", (2,))
    for module in reversed(list(models["sharded"].modules())):
        if type(module).__name__ in alone._no_split_modules:
            fully_shard(module, mesh=mesh)
    fully_shard(models["sharded"], mesh=mesh)
    called = {**models, "whole": DistributedDataParallel(models["whole"])}
    settings = TrainingArguments(use_muon=True, learning_rate=1e-3, muon_learning_rate=2e-3)
    optimizers = {
        kind: build_optimizers(model, settings, None if kind == "alone" else dist.group.WORLD)
        for kind, model in models.items()
    }
    assert all(isinstance(second, Muon) for _, second in optimizers.values())
    start = [parameter.detach().clone() for parameter in alone.parameters()]
    for step in range(STEPS):
        ids = torch.randint(11, (4, 8), generator=torch.Generator().manual_seed(step))
        draws = alone.draw(4, torch.Generator().manual_seed(step))
        for kind, model in called.items():
            rows = (0, 4) if kind == "alone" else (2 * dist.get_rank(), 2 * dist.get_rank() + 2)
            model(ids[slice(*rows)], draws=draws.slice(*rows)).loss.backward()
            for optimizer in optimizers[kind]:
                optimizer.step()
                optimizer.zero_grad()
    # The biases of the keys have no gradient but rounding, by which Adam divides.
    compared = [
        index
        for index, (name, _) in enumerate(alone.named_parameters())
        if "key.bias" not in name and "query_key_value.bias" not in name
    ]
    after = {kind: [whole(p.detach()) for p in model.parameters()] for kind, model in models.items()}
    results = {
        kind: largest_difference(*([after[k][i] for i in compared] for k in (kind, "alone")))
        for kind in ("whole", "sharded")
    }
    return {**results, "moved": largest_difference(after["alone"], start)}


def largest_difference(some: list[torch.Tensor], others: list[torch.Tensor]) -> float:
    return max((x - y).abs().max().item() for x, y in zip(some, others, strict=True))


def test_two_processes_that_share_the_work_train_as_one(tmp_path):
    env = environment()
    env["PYTHONPATH"] += f":{Path(__file__).parent}:{Path(__file__).parents[1]}"
    command = [sys.executable, __file__, str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-4000:]
    differences = json.loads((tmp_path / "differences.json").read_text())
    assert max(differences["matrices"].values()) < 1e-5
    moved = differences["model"].pop("moved")
    assert moved > 1e-2 and max(differences["model"].values()) < 1e-5


if __name__ == "__main__":
    torch.set_num_threads(1)
    # Forked: what takes longest, the imports, is done once for both.
    torch.multiprocessing.start_processes(work, (Path(sys.argv[1]),), nprocs=2, start_method="fork")
