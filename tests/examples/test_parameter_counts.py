"""The table of parameters."""

import runpy
from pathlib import Path

import torch

from diffusers_text_nfdm import NFDMConfig, NFDMModel


ROOT = Path(__file__).parents[2]


def test_parameter_counts_are_printed_for_every_model(capsys):
    runpy.run_path(str(ROOT / "examples" / "parameter_counts.py"), run_name="__main__")
    header, *rows = capsys.readouterr().out.splitlines()
    table = {row.split()[0]: [int(number.replace(",", "")) for number in row.split()[1:]] for row in rows}
    assert header.split()[-1] == "total"
    assert list(table) == ["NFDM", "NFDM-Additive", "MuLAN", "MuLAN-Rescaled", "Diffusion-LM"]
    with torch.device("meta"):
        model = NFDMModel(NFDMConfig())
    assert table["NFDM"][-1] == model.num_parameters()
    for *parts, other, total in table.values():
        assert sum(parts) + other == total
        # The bias of every token, and the buckets of the time sampler.
        assert other == 10_767 + 100
    assert table["Diffusion-LM"][2:4] == [0, 0]
