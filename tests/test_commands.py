"""What the README and the pages tell a reader to type."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from diffusers_text_nfdm import NFDMTextPipeline
from diffusers_text_nfdm.training.command_line import parse_arguments
from diffusers_text_nfdm.training.recipe_files import recipe_names


ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# The tutorial's are run in its own test, with the files that it makes.
PAGES = [page for page in PAGES if page.name != "tutorial.md"]
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
    """`(page, command)` of all lines of all pages, without comments."""
    found = []
    for page in PAGES:
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
    assert words[0] in ("make", "python", ".venv/bin/python", "accelerate", "pip", ".venv/bin/pre-commit")


@pytest.mark.parametrize(("page", "command"), [one for one in COMMANDS if "train_nfdm.py" in one[1]])
def test_every_training_command_has_settings_that_go_together(page, command, capsys):
    words = shlex.split(command)
    arguments = words[words.index("examples/train_nfdm.py") + 1 :]
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


def test_lines_are_short_enough_to_read():
    for page in (ROOT / "README.md", ROOT / "docs" / "sampling.md", ROOT / "docs" / "training.md"):
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        long = [line for line in text.splitlines() if len(line) > 119 and not line.startswith("|")]
        assert not long, f"{page.name}: {long[0]}"


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
