"""The notebook docs/tour.ipynb, from top to bottom."""

import json
import re
from pathlib import Path

from matplotlib.figure import Figure


ROOT = Path(__file__).parents[1]
TOUR = json.loads((ROOT / "docs" / "tour.ipynb").read_text(encoding="utf-8"))


def test_it_is_kept_without_outputs():
    assert TOUR["nbformat"] == 4 and len({cell["id"] for cell in TOUR["cells"]}) == len(TOUR["cells"])
    for cell in TOUR["cells"]:
        assert cell["cell_type"] == "markdown" or (cell["outputs"] == [] and cell["execution_count"] is None)


def test_it_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    (tmp_path / "checkpoints").symlink_to(ROOT / "checkpoints")
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path / "docs")
    monkeypatch.setenv("MPLBACKEND", "agg")
    names = {}
    for cell in TOUR["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    printed = capsys.readouterr().out
    assert len(re.findall(r"^\d+ calls: ", printed, re.M)) == 3 and "[None, None, None]" in printed
    assert "One windy Friday, Leo " in printed
    coldest = re.search(r"^\['(.+)', '(.+)'\]$", printed, re.M)
    assert coldest[1] == coldest[2]
    # What is given around a gap comes back.
    before, after = re.search(r"^prompt: (.*)\[GAP\](.*) $", printed, re.M).groups()
    filled = re.search(r"^filled: (.*)$", printed, re.M)[1]
    assert filled.startswith(before) and filled.endswith(after) and "[GAP]" not in filled
    model, truth = map(float, re.search(r"model ([\d.]+) nats per story, truth ([\d.]+)", printed).groups())
    assert truth < model + 3 and model < 1.1 * truth
    assert isinstance(names["figure"], Figure)
