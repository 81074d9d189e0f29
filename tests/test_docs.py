"""Pages whose examples run, and which name only what exists."""

import json
import re
from pathlib import Path


ROOT = Path(__file__).parents[1]


def test_the_example_on_the_page_prints_its_table(tmp_path, monkeypatch, capsys):
    code = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "likelihood.md").read_text(encoding="utf-8"), re.S)
    assert len(code) == 1
    monkeypatch.chdir(tmp_path)
    exec(code[0], {})
    printed = capsys.readouterr().out
    assert "bits per character" in printed and "diffusion (nats per story)" in printed
    assert json.loads((tmp_path / "likelihood.json").read_text())["protocol"]["texts"] == 64


def test_the_paper_index_names_only_what_exists():
    page = (ROOT / "docs" / "paper_index.md").read_text(encoding="utf-8")
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    assert len(tests) > 8
    for path, name in tests:
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{name}"
    package = ROOT / "src" / "diffusers_text_nfdm"
    paths = set(re.findall(r"`((?:examples/)?[\w/]+(?:\.py|/))`", page))
    assert len(paths) > 15
    for path in paths:
        assert (ROOT / path).exists() or (package / path).exists(), path
    source = "".join(path.read_text(encoding="utf-8") for path in package.rglob("*.py"))
    names = set(re.findall(r"`(?:[a-z]\w*\.py: )?((?:[A-Z]\w+\.)?[A-Za-z_]\w{4,})(?:\(|`)", page))
    assert {"NFDMProcess.marginal", "drift_matching", "MarkovChainScheduler"} < names
    for name in names:
        for part in name.split("."):
            assert re.search(rf"\b{part}\b", source), name
    for recipe in re.findall(r"`(rocstories-[\w-]+)`", page):
        assert (package / "training" / "recipes" / f"{recipe}.yaml").is_file()
