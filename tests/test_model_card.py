"""The model card that travels with a checkpoint."""

import re
from pathlib import Path

import pytest
from hub_server import card_metadata
from huggingface_hub import ModelCard
from tiny import MODELS, make_config, make_pipeline

from diffusers_text_nfdm import ReverseODEScheduler
from diffusers_text_nfdm.model_card import (
    TEMPLATE,
    UNKNOWN,
    _code,
    update_model_index,
    variant_name,
    write_model_card,
)


NAMES = {
    "nfdm": "NFDM",
    "nfdm-additive": "NFDM-Additive",
    "nfdm-head": "NFDM-Head",
    "mulan": "MuLAN",
    "mulan-rescaled": "MuLAN-Rescaled",
    "diffusion-lm": "Diffusion-LM",
}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_its_name_in_the_paper(name):
    assert variant_name(make_config(name)) == NAMES[name]


@pytest.mark.parametrize("name", MODELS)
def test_card_describes_the_checkpoint_in_words_that_the_hub_reads(name, tmp_path):
    pipe = make_pipeline(name, ReverseODEScheduler("heun"))
    path = write_model_card(pipe, tmp_path, repo="user/tiny")
    text = path.read_text(encoding="utf-8")
    assert path == tmp_path / "README.md" and "$" not in text
    metadata = ModelCard(text).data
    assert (metadata.library_name, metadata.pipeline_tag) == ("diffusers_text_nfdm", "text-generation")
    assert metadata.license is metadata.language is None, "those of the user's data are not ours to say"
    assert set(metadata.tags) == {"text-diffusion", "diffusers", pipe.model.config.model_type}
    assert card_metadata(text)[1] == []
    assert f"# {NAMES[name]} for text" in text and "`ReverseODEScheduler`" in text
    parameters = sum(parameter.numel() for parameter in pipe.model.parameters())
    assert f"{parameters:,} parameters; vocabulary of 11 tokens, 5 positions, latents of dimension 4" in text
    assert 'NFDMTextPipeline.from_pretrained("user/tiny")' in text
    assert text.count(UNKNOWN) == 4


def test_the_code_in_the_card_runs(tmp_path, capsys):
    make_pipeline("mulan").save_pretrained(tmp_path / "tiny", repo_id=str(tmp_path / "tiny"))
    blocks = (tmp_path / "tiny" / "README.md").read_text().split("```python\n")[1:]
    assert len(blocks) == 2
    exec("\n".join(block.split("```")[0] for block in blocks), names := {})
    assert capsys.readouterr().out.startswith("[") and type(names["pipe"].scheduler).__name__ == "ReverseSDEScheduler"


def test_what_was_recorded_is_told(tmp_path):
    card = write_model_card(
        make_pipeline(),
        tmp_path,
        title="Tiny $stories",
        data="Made up for $1.",
        recipe={"learning_rate": 1e-4, "steps": 10},
        results="| nats per token |\n|---|\n| 1.5 |",
        samples=["Tom saw a <UNK>.", "Two\nlines."],
    ).read_text()
    assert "# Tiny $stories\n" in card and "Made up for $1." in card
    assert "- `learning_rate`: 0.0001\n- `steps`: 10\n" in card and "| 1.5 |" in card
    # An unescaped <UNK> would be an HTML tag, which a reader does not see.
    assert "> Tom saw a &lt;UNK>.\n\n> Two\n> lines.\n" in card and UNKNOWN not in card


HOSTILE = (
    "<script>alert(1)</script>\n\n---\nlicense: other\n---\n\n![x](https://evil.example/x.png)\n# Big\n`a` <img src=x>"
)


def test_what_is_recorded_stays_text(tmp_path):
    """No tag, no image and no second header, whatever names, settings, results and samples hold."""
    card = write_model_card(
        make_pipeline(),
        tmp_path,
        title=f"Trained on {HOSTILE}",
        repo='user/x")\n```\n<script>',
        data=HOSTILE,
        recipe={"dataset": HOSTILE, "model_config": {"predictor": "two_stream"}},
        results=f"```\n{HOSTILE}\n```",
        samples=[HOSTILE, "---", "1. one"],
        license="apache-2.0",
        language="en",
    ).read_text()
    body = card.split("\n---\n", 1)[1]
    # A code span shows what it holds.
    shown = re.sub(r"(`+) .*? \1(?!`)", "", body)
    assert shown.count("<script") == 1 and '"user/x\\")\\n```\\n<script>"' in shown
    assert "<img" not in shown and "![" not in shown and "https" in shown
    assert not re.search(r"^[\s>]*---\s*$", body, flags=re.MULTILINE)
    assert "> \\# Big" in body and "> 1\\. one" in body
    metadata = ModelCard(card).data
    assert (metadata.license, metadata.language) == ("apache-2.0", "en")
    assert "- `model_config`: `{'predictor': 'two_stream'}`" in body


CARDS = sorted((Path(__file__).parents[1] / "model_cards").glob("*.md"))


@pytest.mark.parametrize("card", CARDS, ids=[path.stem for path in CARDS])
def test_the_cards_of_measured_models_are_as_the_code_writes_them(card):
    text = card.read_text(encoding="utf-8")
    recipe = text.split("## Recipe\n\n")[1].split("\n\n## Results")[0]
    for line in recipe.splitlines():
        key, value = re.fullmatch("- `(\\w+)`: (.*)", line).groups()
        assert value == _code(value.strip("`").strip()), key
    assert text.endswith(TEMPLATE.read_text(encoding="utf-8").split("${likelihood}")[1]) and "/work" not in text


def test_a_card_is_replaced_only_by_one_that_records_more(tmp_path):
    pipe = make_pipeline()
    (tmp_path / "README.md").write_text("mine")
    assert write_model_card(pipe, tmp_path, repo="user/tiny").read_text() == "mine"
    assert "new results" in write_model_card(pipe, tmp_path, results="new results").read_text()


def test_results_go_into_the_model_index_and_the_text_stays(tmp_path):
    path = write_model_card(make_pipeline(), tmp_path, samples=["Tom saw a <UNK>.\n\n---\n"])
    before = path.read_text(encoding="utf-8")
    update_model_index(path, "NFDM", "stories", [("mauve", "MAUVE (star:64)", 0.5), ("mauve", "MAUVE (sde:64)", 0.25)])
    update_model_index(path, "NFDM", "stories", [("mauve", "MAUVE (star:64)", 0.75)])
    update_model_index(path, "NFDM", "rocstories", [("mauve", "MAUVE (star:64)", 0.1)])
    text = path.read_text(encoding="utf-8")
    assert text.split("\n---\n", 1)[1] == before.split("\n---\n", 1)[1]
    data = ModelCard(text).data
    assert data.model_name == "NFDM" and data.library_name == "diffusers_text_nfdm" and card_metadata(text)[1] == []
    assert [(r.dataset_name, r.metric_name, r.metric_value) for r in data.eval_results] == [
        ("stories", "MAUVE (sde:64)", 0.25),
        ("stories", "MAUVE (star:64)", 0.75),
        ("rocstories", "MAUVE (star:64)", 0.1),
    ]
