"""What FSDP needs of this library, on two gloo processes.

Accelerate has no FSDP on CPUs: version 1 insists on an accelerator, and version 2 is silently replaced by DDP. So the
model is sharded by PyTorch itself, as Accelerate would.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from runs import environment


def work(folder: Path) -> None:
    """Train sharded and whole side by side, and compare; runs in each of the two processes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    from diffusers_text_nfdm import NFDMConfig, NFDMModel
    from diffusers_text_nfdm.training.optimization import ExponentialMovingAverage, whole
    from runs import NFDM, PREDICTOR

    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()

    def make():
        torch.manual_seed(0)
        return NFDMModel(NFDMConfig(vocab_size=11, max_length=8, **PREDICTOR, **NFDM))

    plain, sharded, released, resumed = make(), make(), make(), make()
    mesh = init_device_mesh("cpu", (2,))
    for model in (sharded, resumed):
        for module in reversed(list(model.modules())):
            if type(module).__name__ in model._no_split_modules:
                fully_shard(module, mesh=mesh)
        fully_shard(model, mesh=mesh)
    averages = [ExponentialMovingAverage(model, 0.9) for model in (plain, sharded)]
    optimizers = [torch.optim.Adam(model.parameters(), lr=1e-3) for model in (plain, sharded)]
    for step in range(3):
        ids = torch.randint(11, (4, 8), generator=torch.Generator().manual_seed(step))
        draws = plain.draw(4, torch.Generator().manual_seed(step))
        rows = (2 * rank, 2 * rank + 2)
        plain(ids, draws=draws).loss.backward()
        sharded(ids[slice(*rows)], draws=draws.slice(*rows)).loss.backward()
        norms = [whole(torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)) for m in (plain, sharded)]
        torch.testing.assert_close(*norms, rtol=1e-4, atol=0)
        for model, optimizer, average in zip((plain, sharded), optimizers, averages):
            optimizer.step()
            optimizer.zero_grad()
            average.update(model)
    assert all(isinstance(average, DTensor) for average in averages[1].average)
    averages[1].copy_to(released)
    state = averages[1].state_dict()
    again = ExponentialMovingAverage(resumed, 0.9)
    again.load_state_dict(state, updates=3)
    differences = {}
    for (name, mine), expected, saved, loaded in zip(
        released.named_parameters(), averages[0].average, state.values(), again.average, strict=True
    ):
        assert torch.equal(mine, saved) and torch.equal(whole(loaded), saved)
        differences[name] = (mine - expected).abs().max().item()
    if rank == 0:
        (folder / "differences.json").write_text(json.dumps(differences))
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_averaged_weights_of_a_sharded_model(tmp_path):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        __file__,
        str(tmp_path),
    ]
    env = environment()
    env["PYTHONPATH"] += f":{Path(__file__).parent}:{Path(__file__).parents[1]}"
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-4000:]
    differences = json.loads((tmp_path / "differences.json").read_text())
    # As in `assert_close_weights`: the biases of the keys have no gradient but rounding.
    known = {
        name: value
        for name, value in differences.items()
        if "key.bias" not in name and "query_key_value.bias" not in name
    }
    assert max(known.values()) < 1e-5 and len(known) > 40


if __name__ == "__main__":
    torch.set_num_threads(1)
    work(Path(sys.argv[1]))
