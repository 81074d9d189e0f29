"""Pages whose examples run, and which name only what exists."""

import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import diffusers_text_nfdm


ROOT = Path(__file__).parents[1]
# Labels of the paper's source, and how many of each kind are numbered.
LABELS = (
    "sec:related_work", "forwardsde", "drift", "sec:method subsec:nfdminlatentspace", "latentdiffusionF",
    "reverse_flow_hat", "NFDM elbo latent2", "mulan loss", "discrete_sampling", "maintextresults",
    "likelihoodtable", "discrete sampling", "app: nfdm exact", "NFDM-F", "reversesde", "NFDM elbo latent",
    "details of mulan", "Mulan SNR", "alpha gamma connection", "global SNR", "App: diff-LM", "s parameter",
    "x prediction loss", "Qstarch", "fig2", "g2plot", "sec: sampling", "continuous sampling", "sec: sampling sde",
    "generative sde", "sec:sampling markov chain", "reverse discrete", "this equation where we sample",
    "reverse discrete star", "implementation details", "additional results", "nfdm vs nfdm-AdaLN",
    "fig:both_models", "markovchainres", "big sigmast table", "generativesderes", "SDE ODE table",
    "samplingstepsres", "SDE 64", "sigmast 64", "gensamplesdiscussion", "goodsamples", "bad samples",
)  # fmt: skip
NUMBERS = {"Equations": 101, "Algorithms": 3, "Tables": 7, "Figures": 6}
SECTIONS = (
    "1 2 3 3.1 3.2 4 4.1 4.2 5 6 A B B.1 B.2 B.3 B.4 C D D.1 D.2 E E.1 E.2 F F.1 F.2 F.2.1 F.2.2 F.2.3 F.3"
).split()
# Beside the repository where its developers have it; not part of it.
PAPER = ROOT.parent / "shared" / "paper.tex"


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
    assert len(tests) > 30
    for path, name in tests:
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{name}"
    package = ROOT / "src" / "diffusers_text_nfdm"
    paths = set(re.findall(r"`((?:\w+/)*\w+(?:\.py|\.yaml|/))`", page)) - {"evaluations/"}
    assert len(paths) > 25 and "evaluation/paper_values.yaml" in paths
    for path in paths:
        assert (ROOT / path).exists() or (package / path).exists(), path
    source = "".join(path.read_text(encoding="utf-8") for path in package.rglob("*.py"))
    names = set(re.findall(r"`(?:[a-z]\w*\.py: )?((?:[A-Z]\w+\.)?[A-Za-z_]\w{4,})(?:\(|`)", page)) - set(LABELS)
    assert {"NFDMProcess.marginal", "drift_matching", "MarkovChainScheduler", "plot_similarity"} < names
    for name in names:
        owner, _, attribute = name.rpartition(".")
        assert re.search(rf"\b{attribute}\b", source), name
        if owner:
            owners = {vars(module)[owner] for module in package_modules() if owner in vars(module)}
            assert len(owners) == 1 and hasattr(*owners, attribute), name
    defined = re.findall(r"`((?:\w+/)*\w+\.py)`: `(\w+)[.(`]", page)
    assert len(defined) > 30
    for path, name in defined:
        path = ROOT / path if (ROOT / path).is_file() else package / path
        assert re.search(rf"^(?:class|def) {name}\b", path.read_text(encoding="utf-8"), re.M), f"{path}: {name}"
    for recipe in re.findall(r"`(rocstories-[\w-]+)`", page):
        assert (package / "training" / "recipes" / f"{recipe}.yaml").is_file()
    for anchor in re.findall(r"\]\(#([\w-]+)\)", page):
        assert f"\n## {anchor.replace('-', ' ')}\n" in page.lower().replace(",", ""), anchor


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_pages_name_only_tests_that_exist(page):
    text = page.read_text(encoding="utf-8")
    for path, name in re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", text):
        assert f"def {name}" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{name}"


def package_modules() -> list[types.ModuleType]:
    return [
        importlib.import_module(info.name)
        for info in pkgutil.walk_packages(diffusers_text_nfdm.__path__, "diffusers_text_nfdm.")
    ]


def test_the_paper_index_has_every_number_and_label():
    page = (ROOT / "docs" / "paper_index.md").read_text(encoding="utf-8")
    page = page.split("## By number and label\n")[1].split("\n## ")[0]
    for label in LABELS:
        assert f"`{label}`" in page, label
    for kind, last in NUMBERS.items():
        rows = re.findall(
            r"^\| (\d+)(?:-(\d+))? \|.*\| (.+) \|$", page.split(f"### {kind}\n")[1].split("\n### ")[0], re.M
        )
        numbers = [number for low, high, _ in rows for number in range(int(low), int(high or low) + 1)]
        assert numbers == list(range(1, last + 1)), kind
    rows = re.findall(r"^\| ([\dA-F](?:\.\d)*) \|.*\| (.+) \|$", page.split("### Sections and appendices\n")[1], re.M)
    assert [number for number, _ in rows] == SECTIONS


@pytest.mark.skipif(not PAPER.is_file(), reason="the paper's source is not at hand")
def test_the_labels_are_those_of_the_paper():
    text = PAPER.read_text(encoding="utf-8")
    assert {label.strip() for label in re.findall(r"\\label\{(.*?)\}", text)} == set(LABELS)
    for kind in ("table", "algorithm"):
        assert text.count(f"\\begin{{{kind}}}") == NUMBERS[f"{kind.title()}s"]
    assert len(re.findall(r"\\(?:sub)*section\{", text)) == len(SECTIONS)


def examples(page: str) -> list[str]:
    """The Python of a page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.S)


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("add_a_forward_process.md", r"bound: \d+\.\d nats per text\n\["),
        ("add_a_scheduler.md", r"\['.+ 16$"),
        ("add_a_metric.md", r"\{'repetition': 0\.2222222222222222\}"),
        ("lattices.md", r"\[33, 33, 33, 33\] \[.+\]"),
        ("whole_text.md", r"\[\d+, \d+, \d+, \d+\] \[.+\]"),
    ],
)
def test_the_code_of_a_page_runs(page, printed, tmp_path, monkeypatch, capsys):
    (code,) = examples(page)
    (tmp_path / "checkpoints").symlink_to(ROOT / "checkpoints")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "extension", module := types.ModuleType("extension"))
    exec(code, vars(module))
    assert re.match(printed, capsys.readouterr().out.strip())


def test_the_index_has_every_page_and_only_files_that_exist():
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert pages <= set(links) and all((ROOT / "docs" / link).is_file() for link in links)


@pytest.mark.slow
def test_the_tutorial_runs_from_top_to_bottom(tmp_path):
    """Its files are written, and its commands run, as they stand; only the push is left out, which needs a Hub."""
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    env["PYTHONPATH"] = str(ROOT / "src")
    printed = []
    for name, kind, code in re.findall(r"(?:`([\w.]+)`:\n\n)?```(bash|python|yaml)\n(.*?)```", page, re.S):
        if name:
            (tmp_path / name).write_text(code, encoding="utf-8")
        elif "push_to_hub" not in code:
            command = ["bash", "-ec", code] if kind == "bash" else [sys.executable, "-c", code]
            done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
            printed.append(done.stdout)
    made, trained, written, prompted, measured, judged, saved = printed
    assert made in page and saved == "" and "Pipeline: runs/weather/pipeline" in trained
    assert len(written.splitlines()) == 4 and "On Friday it snowed in" in prompted
    assert "nats per story" in measured and int(judged.split(" of 100 ")[0]) > 90
    assert (tmp_path / "weather-model" / "model_index.json").is_file()
