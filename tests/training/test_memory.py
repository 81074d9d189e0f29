"""Memory of a training step."""

import os
import subprocess
import sys

import pytest

from runs import ROOT


MEMORY = """
import resource, torch
from diffusers_text_nfdm import NFDMConfig, NFDMModel
torch.set_num_threads(1)
model = NFDMModel(NFDMConfig()).train()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    model(torch.randint(10767, (8, 64))).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss has other units elsewhere")
def test_a_training_step_at_the_sizes_of_the_paper_fits_into_6_gib():
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", MEMORY], env=environment, capture_output=True, text=True, check=True)
    gib = int(done.stdout) / 2**20
    print(f"peak memory of two steps at batch 8: {gib:.2f} GiB")
    # Weights, gradients and Adam's two moments alone are four times 99M float32 numbers.
    assert 4 * 98.9e6 * 4 / 2**30 < gib < 6
