"""The loop that a reader copies: it runs, learns, and leaves a checkpoint that writes."""

import re
import runpy
import sys
from pathlib import Path

from diffusers_text_nfdm import NFDMTextPipeline


SCRIPT = Path(__file__).parents[2] / "examples" / "minimal_train.py"


def test_a_few_steps_lower_both_losses_and_leave_a_pipeline(tmp_path, monkeypatch, capsys):
    losses = {}
    for steps in (1, 12):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(tmp_path / str(steps)), str(steps)])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        printed = capsys.readouterr().out.splitlines()
        losses[steps] = [float(number) for number in re.findall(r"[\d.]+(?= nats|$)", printed[0])]
        assert printed[0].startswith(f"step {steps}: bound ") and len(printed) == 5
    assert len(losses[1]) == 2 and all(late < early for early, late in zip(losses[1], losses[12]))
    assert len(NFDMTextPipeline.from_pretrained(tmp_path / "12")(num_samples=2).texts) == 2
