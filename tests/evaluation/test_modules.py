"""Every module loads with `evaluate` offline and gives what the package gives."""

import re
from pathlib import Path

import evaluate
import pytest
from judges import save_judge
from tiny import make_pipeline

from diffusers_text_nfdm import metrics
from diffusers_text_nfdm.stories import StoryGrammar


FOLDER = Path(__file__).parents[2] / "evaluation"
MODULES = sorted(path.parent.name for path in FOLDER.glob("*/README.md"))
STORIES = StoryGrammar().sample(24, seed="modules")


def compute(name, **inputs):
    return evaluate.load(str(FOLDER / name)).compute(**inputs)


def test_all_modules_are_here():
    assert MODULES == [
        "bound", "diversity", "mauve", "memorization", "perplexity", "record_slots", "story_completions",
        "story_language",
    ]  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_a_module_describes_itself(name):
    module = evaluate.load(str(FOLDER / name))
    assert module.name == name and module.description and module.citation and "predictions" in module.features
    assert "Returns:" in module.inputs_description
    card = (FOLDER / name / "README.md").read_text(encoding="utf-8")
    headings = re.findall(r"^##+ (.*)$", card, re.MULTILINE)
    assert headings == [
        "Metric Description",
        "How to Use",
        "Inputs",
        "Output Values",
        "Examples",
        "Limitations and Bias",
        "Citation",
        "Further References",
    ]
    assert f'evaluate.load("/absolute/path/to/evaluation/{name}")' in card


def test_metrics_of_words():
    assert compute("diversity", predictions=STORIES) == metrics.diversity(STORIES)
    texts, training = STORIES[:8], STORIES[8:]
    expected = metrics.memorization(texts, training)
    assert compute("memorization", predictions=texts, training_texts=training) == expected
    assert 0 < expected["memorization"] < 1


def test_metrics_of_a_judge(tmp_path):
    folder = str(save_judge(tmp_path))
    judge = metrics.Judge.from_pretrained(folder)
    assert compute("perplexity", predictions=STORIES, judge=folder) == metrics.perplexity(STORIES, judge)
    settings = metrics.MauveSettings(seeds=(1, 2), num_buckets=3)
    samples, references = STORIES[:12], STORIES[12:]
    result = compute("mauve", predictions=samples, references=references, judge=judge, settings=settings)
    assert result == metrics.mauve(samples, references, judge, settings)


def test_metrics_of_conditions():
    texts, records = ["Aromi is by the river.", "A pub."], ["name[Aromi], area[riverside]", "name[Zizzi]"]
    slots = compute("record_slots", predictions=texts, records=records)
    assert slots == metrics.slots_realised(texts, records) and slots["mentioned"] == pytest.approx(2 / 3)
    references = [["Aromi is by the river."], ["Zizzi is a pub.", "Zizzi."]]
    both = compute("record_slots", predictions=texts, records=records, reference_texts=references)
    assert both == slots | metrics.against_references(texts, references)
    completed = [*STORIES[:20], "Tom.", *STORIES[21:]]
    scores = compute("story_completions", predictions=completed, stories=STORIES)
    assert scores == metrics.story_completions(completed, STORIES)
    assert scores["validity"] == scores["same"] == pytest.approx(23 / 24)
    with pytest.raises(ValueError, match="There are 1 texts for 2 stories"):
        metrics.story_completions(STORIES[:1], STORIES[:2])


def test_bound_and_story_language(tmp_path):
    make_pipeline("diffusion-lm", max_length=12).save_pretrained(tmp_path)
    texts = ["Tom saw a red fox.", "a fox ran."]
    result = compute("bound", predictions=texts, checkpoint=str(tmp_path), num_draws=2, seed=3)
    pipeline = metrics.load_pipeline(tmp_path)
    assert result == metrics.bound_units(metrics.bound(pipeline, texts, num_draws=2, seed=3))
    assert {"bits_per_character", "nats_per_story", "nats_per_story_error"} < set(result)
    assert compute("story_language", predictions=[*STORIES, "Tom."]) == metrics.story_language([*STORIES, "Tom."])
