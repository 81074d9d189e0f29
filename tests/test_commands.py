"""What the README and the pages tell a reader to type."""

import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from diffusers_text_nfdm import NFDMTextPipeline, metrics
from diffusers_text_nfdm.stories import StoryGrammar
from diffusers_text_nfdm.training import train
from diffusers_text_nfdm.training.command_line import parse_arguments
from diffusers_text_nfdm.training.recipe_files import recipe_names


ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# Pages whose Python runs in tests/test_docs.py, and here.
RUN_ELSEWHERE = {
    "tutorial.md", "likelihood.md", "lattices.md", "whole_text.md", "add_a_forward_process.md", "add_a_scheduler.md",
    "add_a_metric.md",
}  # fmt: skip
RUN_HERE = {"README.md", "sampling.md", "training.md", "conditions.md", "evaluation.md"}
# What is not run, but for its settings: what trains, samples for many minutes, or needs what is not here.
NOT_RUN = (
    "examples/train_nfdm.py",
    "evaluation/few_calls.py",
    "runs/tables-tiny",  # what `make tables` writes
    "--judge smollm2",  # a package that only developers have
)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


def commands() -> list[tuple[str, str]]:
    """`(page, command)` of all lines of all pages, without comments. The tutorial has files of its own."""
    found = []
    for page in (page for page in PAGES if page.name != "tutorial.md"):
        for block in blocks(page, "bash"):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words:
                    found.append((page.name, shlex.join(words)))
    return found


def script_of(command: str) -> str:
    return next((word for word in shlex.split(command) if word.endswith(".py")), "")


COMMANDS = commands()
RUNNABLE = [one for one in COMMANDS if script_of(one[1]) and not any(part in one[1] for part in NOT_RUN)]
TRAINING = [one for one in COMMANDS if "train_nfdm.py" in one[1]]


def test_there_are_commands_of_every_kind():
    assert {page for page, _ in COMMANDS} >= {"README.md", "CONTRIBUTING.md", "sampling.md", "training.md"}
    assert len(RUNNABLE) > 8 and len(COMMANDS) > 20


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_every_command_names_what_exists(page, command):
    words = shlex.split(command)
    if words[0] == "make":
        done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    script = script_of(command)
    assert not script or (ROOT / script).is_file()
    for word in words:
        if word.startswith("checkpoints/"):
            assert (ROOT / word / "model_index.json").is_file()
    assert words[0] in ("make", "python", ".venv/bin/python", "accelerate", "pip")
    # The settings of training are checked below.
    if script and (page, command) not in TRAINING:
        text = (ROOT / script).read_text(encoding="utf-8")
        assert all(f'"{word}"' in text for word in words if word.startswith("--"))


def training_arguments(command: str) -> list[str]:
    words = shlex.split(command)
    return words[words.index("examples/train_nfdm.py") + 1 :]


@pytest.mark.parametrize(("page", "command"), TRAINING)
def test_every_training_command_has_settings_that_go_together(page, command, capsys):
    arguments = training_arguments(command)
    if "--help" in arguments:
        with pytest.raises(SystemExit) as ended:
            parse_arguments(arguments)
        assert ended.value.code == 0
    else:
        assert parse_arguments([*arguments, "--print_config"]) is None
    assert capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if link.startswith("http"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}, link


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_lines_are_short_enough_to_read(page):
    # A line of a table or of a diagram cannot be broken.
    text = re.sub(r"^```mermaid.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    assert text.endswith("\n")
    long = [line for line in text.splitlines() if len(line) > 119 and not line.startswith("|")]
    assert not long, long[0]


def test_all_code_of_all_pages_is_run_by_a_test():
    languages = {page.name: re.findall(r"^```(\w+)$", page.read_text(encoding="utf-8"), re.M) for page in PAGES}
    assert {one for found in languages.values() for one in found} == {"bash", "python", "yaml", "mermaid"}
    assert {name for name, found in languages.items() if "python" in found} == RUN_HERE | RUN_ELSEWHERE
    assert {name for name, found in languages.items() if "yaml" in found} == {"tutorial.md"}


def test_the_readme_lists_its_contents():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    contents = text.split("**Contents**")[1].split("\n\n")[0]
    assert re.findall(r"\[(.+?)\]\(#", contents) == re.findall(r"^## (.+)$", text, re.M)


def test_all_recipes_are_on_the_page_and_only_these():
    table = (ROOT / "docs" / "training.md").read_text(encoding="utf-8").split("## Recipes\n")[1].split("\nEvery")[0]
    assert set(re.findall(r"`((?:stories|rocstories|e2e)[\w-]*)`", table)) == set(recipe_names())


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """What a reader has: the clone, and what `make train` writes."""
    for name in ("examples", "evaluation", "docs", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name)
    # Copies: an evaluation writes into the card.
    shutil.copytree(ROOT / "checkpoints", tmp_path / "checkpoints")
    shutil.copytree(ROOT / "checkpoints" / "nfdm-stories-jumps", tmp_path / "runs" / "run" / "pipeline")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_snippets_of_the_readme_run_from_top_to_bottom(clone, monkeypatch, capsys):
    pushed = []
    monkeypatch.setattr(NFDMTextPipeline, "push_to_hub", lambda self, name, private: pushed.append(name))
    load = NFDMTextPipeline.from_pretrained
    monkeypatch.setattr(
        NFDMTextPipeline,
        "from_pretrained",
        lambda name: pushed.append(name) if name.startswith("user/") else load(name),
    )
    names = {}
    for code in blocks(ROOT / "README.md", "python"):
        exec(code, names)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 5 and printed[0].count(".'") + printed[0].count('."') == 4
    assert printed[1].startswith("['One windy Friday, Leo ") and "took a perfect pie to the" in printed[2]
    assert "Blue Spice" in printed[3] and pushed == ["user/nfdm-stories"] * 2


@pytest.mark.slow
def test_the_snippets_of_the_page_on_sampling_run(clone, capsys):
    names = {}
    for code in blocks(ROOT / "docs" / "sampling.md", "python"):
        exec(code, names)
    assert "nats per story" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(("page", "command"), RUNNABLE)
def test_the_commands_run(page, command, clone):
    command = command.replace(".venv/bin/python", "python").replace("python ", f"{shlex.quote(sys.executable)} ", 1)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    if "--trajectory" in command:
        assert (clone / shlex.split(command)[-1]).is_file()


@pytest.mark.slow
def test_the_snippets_of_the_page_on_training_run(clone):
    names = {}
    for code in blocks(ROOT / "docs" / "training.md", "python"):
        # A few steps stand for the run.
        exec(code.replace("max_steps=200", "max_steps=2, final_samples=4, frontier={}"), names)
    assert (clone / "runs" / "short" / "pipeline" / "model_index.json").is_file()
    assert len(names["subwords"]) == 1000


@pytest.mark.slow
@pytest.mark.parametrize(("page", "command"), [one for one in TRAINING if "--help" not in one[1]])
def test_the_training_commands_train(page, command, clone):
    """Two steps stand for a run, made-up files for the reader's."""
    stories = StoryGrammar().sample(300, seed=0)
    for name in ("train.jsonl", "valid.jsonl"):
        (clone / name).write_text("".join(json.dumps({"text": story}) + "\n" for story in stories))
    (clone / "new.txt").write_text("\n".join(stories[:100] + ["Zoe saw a zebra."] * 20))
    records = [f'"name[Inn {i}], area[riverside]",Inn {i} is a place at the riverside.' for i in range(60)]
    (clone / "e2e_devset.csv").write_text("\n".join(["mr,ref", *records]))
    arguments = dataclasses.replace(
        parse_arguments(training_arguments(command)),
        output_dir="runs/short", max_steps=2, batch_size=4, evaluation_texts=4, evaluation_draws=2, final_samples=2,
        num_samples=1, frontier={},
    )  # fmt: skip
    assert train(arguments)["steps"] == 2
    assert (clone / "runs" / "short" / "pipeline" / "model_index.json").is_file()


@pytest.mark.slow
def test_the_calls_of_the_page_on_conditions_keep_what_is_given(clone):
    stories, records = (
        NFDMTextPipeline.from_pretrained(f"checkpoints/nfdm-{name}") for name in ("stories-jumps", "e2e")
    )
    (code,) = blocks(ROOT / "docs" / "conditions.md", "python")
    for line in code.splitlines():
        (text,) = eval(line, {"pipe": records if "condition=" in line else stories}).texts
        given = re.search(r'prompt="(.*?)"|name\[(.*?)\]', line)
        assert all(part.strip() in text for part in re.split(r"\[\w+\]", given[1] or given[2])), line


@pytest.mark.slow
def test_the_snippet_of_the_page_on_evaluation_runs(clone, monkeypatch):
    whole = metrics.get_protocol
    # The judge is a large model that is fetched.
    monkeypatch.setattr(metrics, "get_protocol", lambda name: dataclasses.replace(whole(name), judge=None))
    (code,) = blocks(ROOT / "docs" / "evaluation.md", "python")
    for long, short in (("(200, 2)", "(4, 1)"), ("star:64", "star:2"), ("ode:512", "ode:2")):
        assert long in code
        code = code.replace(long, short)
    exec(code, {})
    assert (clone / "results" / "nfdm" / "results.md").is_file()
