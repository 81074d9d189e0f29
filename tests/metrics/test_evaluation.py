"""A whole evaluation of tiny checkpoints."""

import json
import math
import statistics

import pytest
from huggingface_hub import ModelCard
from tiny import make_pipeline, make_tokenizer

from diffusers_text_nfdm import (
    AutoregressiveConfig,
    AutoregressiveModel,
    AutoregressivePipeline,
    MaskedDiffusionConfig,
    MaskedDiffusionModel,
    MaskedDiffusionPipeline,
    metrics,
)
from diffusers_text_nfdm.metrics import MauveSettings, Protocol, Sampling, evaluate_checkpoint, real_texts
from diffusers_text_nfdm.metrics.likelihood_bound import bound
from diffusers_text_nfdm.metrics.real_texts import load_real_texts
from diffusers_text_nfdm.metrics.report import aggregate
from diffusers_text_nfdm.metrics.scoring import Scorer


PROTOCOL = Protocol(
    "tiny",
    num_samples=12,
    seeds=(0, 1),
    judge=None,
    mauve=MauveSettings(seeds=(1, 2), num_buckets=2),
    likelihood_texts=6,
    likelihood_draws=2,
)


@pytest.fixture
def checkpoint(tmp_path):
    make_pipeline("diffusion-lm", max_length=12).save_pretrained(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Sentences of the words that the tiny tokenizer knows."""
    folder = tmp_path_factory.mktemp("data")
    sentences = [
        f"{a} saw {b} {c} fox." for a in ("Tom", "a fox") for b in ("a", "a red") for c in ("red", "Tom", "fox", "ran")
    ]
    texts = [f"{one} {two}" for one in sentences for two in sentences]
    for name, lines in (("train", texts[::2]), ("validation", texts[1::2])):
        (folder / f"{name}.txt").write_text("\n".join(lines))
    return {name: folder / f"{name}.txt" for name in ("train", "validation")}


def evaluate(checkpoint, files, output, **options):
    return evaluate_checkpoint(
        checkpoint, options.pop("dataset", files), output, options.pop("protocol", PROTOCOL),
        options.pop("samplings", ["star:3", "ode:2:method=heun"]), progress=False, device="cpu", **options,
    )  # fmt: skip


def test_the_result_has_everything_that_tables_are_made_of(checkpoint, files, tmp_path, judge_folder):
    protocol = Protocol(**{**vars(PROTOCOL), "judge": str(judge_folder)})
    result = evaluate(checkpoint, files, tmp_path / "out", protocol=protocol)
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == result
    assert result["model"] == "Diffusion-LM" and result["entropy"] is None
    assert result["parameters"] == sum(
        p.numel() for p in make_pipeline("diffusion-lm", max_length=12).model.parameters()
    )
    assert list(result["samplers"]) == ["star:3", "ode:2:method=heun"]
    assert result["samplers"]["star:3"]["function_evaluations"] == 3
    assert result["samplers"]["star:3"]["mean_function_evaluations"] == 3
    # Heun calls the predictor twice in the first step and once in the last.
    assert result["samplers"]["ode:2:method=heun"]["function_evaluations"] == 3
    assert result["samplers"]["star:3"]["sampling"] == Sampling.parse("star:3").to_dict()
    expected = {
        "perplexity",
        "mean_text_perplexity",
        "mauve",
        "diversity",
        "memorization",
        "distinct_texts",
        "blank_texts",
    }
    for scores in (result["dataset_row"], *(entry["scores"] for entry in result["samplers"].values())):
        assert set(scores) == expected
        assert all(math.isfinite(score["mean"]) and score["sd"] >= 0 for score in scores.values())
    assert result["protocol"]["judge"] == str(judge_folder) and result["protocol"]["num_references"] == 12
    assert result["likelihood"]["protocol"]["texts"] == 6
    table = (tmp_path / "out" / "results.md").read_text()
    assert "| Dataset |" in table and "| star:3 | 3 |" in table and "MAUVE" in table


def test_scores_are_those_of_the_samples_on_disk(checkpoint, files, tmp_path):
    result = evaluate(checkpoint, files, tmp_path / "out")
    values = []
    for seed in (0, 1):
        lines = (tmp_path / "out" / "samples" / f"star-3.seed{seed}.jsonl").read_text().splitlines()
        texts = [json.loads(line)["text"] for line in lines]
        assert len(texts) == 12
        values.append(metrics.diversity([text for text in texts if text])["diversity"])
    score = result["samplers"]["star:3"]["scores"]["diversity"]
    assert score["mean"] == pytest.approx(statistics.mean(values)) and score["sd"] == pytest.approx(
        statistics.stdev(values)
    )
    pipeline = metrics.load_pipeline(checkpoint, "cpu")
    held_out = load_real_texts(files, PROTOCOL).held_out[:6]
    assert (
        result["likelihood"]["nats_per_story"]["value"]
        == metrics.bound(pipeline, held_out, num_draws=2).nats_per_story.value
    )


def test_samples_whose_record_says_less_are_made_again(checkpoint, files, tmp_path):
    first = evaluate(checkpoint, files, tmp_path / "out")
    for path in (tmp_path / "out" / "samples").glob("*.json"):
        record = json.loads(path.read_text())
        record["made_from"].pop("reports")
        record["value"].pop("mean_function_evaluations")
        path.write_text(json.dumps(record))
    again = evaluate(checkpoint, files, tmp_path / "out")
    assert again["samplers"]["star:3"]["scores"] == first["samplers"]["star:3"]["scores"]
    assert again["samplers"]["star:3"]["mean_function_evaluations"] == 3


def test_what_is_there_is_not_made_again(checkpoint, files, tmp_path, monkeypatch):
    first = evaluate(checkpoint, files, tmp_path / "out")
    drawn, scored = [], []
    draw, score = metrics.evaluation.draw_samples, Scorer.score
    monkeypatch.setattr(
        metrics.evaluation,
        "draw_samples",
        lambda p, s, n, seed, *rest: drawn.append((s.name, seed)) or draw(p, s, n, seed, *rest),
    )
    monkeypatch.setattr(Scorer, "score", lambda *arguments: scored.append(1) or score(*arguments))
    assert evaluate(checkpoint, files, tmp_path / "out") == first and (drawn, scored) == ([], [])

    # One sampling more: only that one is made.
    both = evaluate(checkpoint, files, tmp_path / "out", samplings=["star:3", "star:2"])
    assert drawn == [("star:2", 0), ("star:2", 1)] and len(scored) == 2
    assert both["samplers"]["star:3"] == first["samplers"]["star:3"]

    # A file of samples that was cut, and one that does not say what it was made from.
    drawn.clear()
    samples = tmp_path / "out" / "samples"
    lines = (samples / "star-3.seed0.jsonl").read_text().splitlines(keepends=True)
    (samples / "star-3.seed0.jsonl").write_text("".join(lines[:5]))
    (samples / "star-3.seed1.json").write_text("{")
    scores = evaluate(checkpoint, files, tmp_path / "out")["samplers"]["star:3"]["scores"]
    assert scores == first["samplers"]["star:3"]["scores"]
    assert drawn == [("star:3", 0), ("star:3", 1)]
    assert (samples / "star-3.seed0.jsonl").read_text() == "".join(lines)

    # Another checkpoint in the same place.
    drawn.clear()
    make_pipeline("mulan", max_length=12).save_pretrained(checkpoint)
    assert evaluate(checkpoint, files, tmp_path / "out", samplings=["star:3"])["model"] == "MuLAN"
    assert drawn == [("star:3", 0), ("star:3", 1)]


def test_the_card_gets_a_model_index_and_keeps_its_text(checkpoint, files, tmp_path):
    before = ModelCard.load(checkpoint / "README.md")
    result = evaluate(checkpoint, files, tmp_path / "out")
    evaluate(checkpoint, files, tmp_path / "out", samplings=["star:3"])
    card = ModelCard.load(checkpoint / "README.md")
    assert card.text.strip() == before.text.strip() and card.data.tags == before.data.tags
    results = {entry.metric_name: entry for entry in card.data.eval_results}
    assert len(results) == len(card.data.eval_results)
    entry = results["diversity (star:3, tiny)"]
    assert entry.metric_value == result["samplers"]["star:3"]["scores"]["diversity"]["mean"]
    assert entry.dataset_name == "train.txt and validation.txt" and "diversity (ode:2:method=heun, tiny)" in results
    assert results["bits per character (tiny)"].metric_value == result["likelihood"]["bits_per_character"]["value"]


def test_the_embedded_stories_bring_their_own_metrics(checkpoint, tmp_path, grammar):
    protocol = Protocol("tiny", num_samples=60, seeds=(0, 1), judge=None, memorization_texts=300, likelihood_texts=0)
    result = evaluate(checkpoint, None, tmp_path / "out", dataset="stories", protocol=protocol, samplings=["star:2"])
    row = result["dataset_row"]
    assert row["validity"] == {"mean": 1.0, "sd": 0.0} and row["coverage"]["mean"] > 0.9
    assert row["log_probability"]["mean"] == pytest.approx(-grammar.entropy(), abs=2)
    assert result["entropy"] == grammar.entropy() and result["likelihood"] is None
    scores = result["samplers"]["star:2"]["scores"]
    # Eleven words make no story: what depends on valid ones is left out, and said to be.
    assert scores["validity"]["mean"] == 0 and "coverage" not in scores and "log_probability" not in scores
    assert any(note.startswith("star:2, seed 0, 1: coverage is left out") for note in result["notes"])
    assert "No judge: perplexity and MAUVE are left out." in result["notes"]
    assert "no judge, so perplexity and MAUVE are left out" in (tmp_path / "out" / "results.md").read_text()


def test_an_autoregressive_checkpoint_has_one_way_of_sampling_and_an_exact_likelihood(files, tmp_path):
    config = AutoregressiveConfig(
        vocab_size=11, max_length=12, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    AutoregressivePipeline(AutoregressiveModel(config), make_tokenizer()).save_pretrained(tmp_path / "baseline")
    result = evaluate(tmp_path / "baseline", files, tmp_path / "out", samplings=None)
    assert result["model"] == "Autoregressive" and list(result["samplers"]) == ["ancestral"]
    entry = result["samplers"]["ancestral"]
    mean, most = entry["mean_function_evaluations"], entry["function_evaluations"]
    assert entry["sampling"]["scheduler"] is None and 1 <= mean < most <= 11
    assert f"| ancestral | {mean:.1f} ({most}) |" in (tmp_path / "out" / "results.md").read_text()
    assert result["likelihood"]["nats_per_story"]["monte_carlo_error"] == 0
    assert "Exact -log p of 6 real texts" in (tmp_path / "out" / "results.md").read_text()
    with pytest.raises(ValueError, match="'star:3' does not fit the checkpoint: it is an autoregressive model"):
        evaluate(tmp_path / "baseline", files, tmp_path / "out")


def test_masked_diffusion_has_its_own_samplings_and_a_bound(files, tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    config = MaskedDiffusionConfig(vocab_size=11, max_length=12, **sizes)
    MaskedDiffusionPipeline(MaskedDiffusionModel(config), make_tokenizer()).save_pretrained(tmp_path / "masked")
    samplings = ["masked:3", "masked:4:block_size=4:remasking=random"]
    result = evaluate(tmp_path / "masked", files, tmp_path / "out", samplings=samplings)
    assert result["model"] == "Masked diffusion" and list(result["samplers"]) == samplings
    assert [entry["function_evaluations"] for entry in result["samplers"].values()] == [3, 4]
    assert list(result["likelihood"]["terms"]) == ["masked"]
    assert "Bound on -log p of 6 real texts" in (tmp_path / "out" / "results.md").read_text()
    assert list(evaluate(tmp_path / "masked", files, tmp_path / "own", samplings=None)["samplers"]) == ["masked:64"]
    with pytest.raises(ValueError, match="'star:3' does not fit the checkpoint: it is masked diffusion"):
        evaluate(tmp_path / "masked", files, tmp_path / "out")


def test_blank_texts_are_counted_and_said(judge, grammar):
    scorer = Scorer(PROTOCOL, grammar.sample(20), lambda: judge, stories=False)
    stories = grammar.sample(24, seed=1)
    whole = scorer.score(stories[:9], stories[12:])
    result = scorer.score([*stories[:9], "", " ", ""], stories[12:])
    assert result["scores"] == {**whole["scores"], "blank_texts": 0.25}
    assert "3 of 12 texts are blank" in result["notes"][0] and "mauve is left out: 9 texts" in result["notes"][1]
    nothing = scorer.score(["", ""], stories[:2])
    assert nothing["scores"] == {"blank_texts": 1.0}
    short = scorer.score(["Tom ran."] * 12, stories[12:])
    assert any("diversity is left out" in note for note in short["notes"]) and "perplexity" in short["scores"]


def test_a_metric_that_one_repeat_lacks_has_no_mean():
    assert aggregate([{"mauve": 0.5, "diversity": 0.1}, {"diversity": 0.3}]) == {
        "diversity": {"mean": pytest.approx(0.2), "sd": pytest.approx(math.sqrt(0.02))}
    }
    assert aggregate([{"diversity": 0.1}]) == {"diversity": {"mean": 0.1, "sd": None}}


def test_real_texts_of_a_repeat_do_not_overlap(files):
    real = load_real_texts(files, PROTOCOL)
    references, texts = real.repeat(0)
    assert len(references) == len(texts) == 12 and not set(references) & set(texts)
    assert real.disjoint and not set(references + texts) & set(sum(real.repeat(1), []))
    most = load_real_texts(files, Protocol("most", num_samples=60, seeds=(0, 1), judge=None, likelihood_texts=0))
    assert not most.disjoint and most.repeat(0) != most.repeat(1)
    assert not set(most.repeat(1)[0]) & set(most.repeat(1)[1])
    assert (
        len(load_real_texts(files, Protocol("few", num_samples=5, memorization_texts=7, likelihood_texts=0)).training)
        == 7
    )


def test_what_cannot_be_evaluated_is_said_before_any_work(checkpoint, files, tmp_path):
    cases = [
        ({"protocol": "ld4lg-200"}, "`protocol` is 'ld4lg-200'"),
        ({"protocol": Protocol("big", num_samples=100, judge=None)}, "needs 1000 held-out texts .* at most 64"),
        (
            {"protocol": Protocol("train", 12, judge=None, likelihood_texts=0, memorization_texts=999)},
            "at least 999 training",
        ),
        ({"protocol": Protocol("judged", 12, judge="no-such/judge")}, "judge 'no-such/judge' cannot be loaded"),
        ({"samplings": ["star"]}, "of the form"),
        ({"samplings": ["ancestral"]}, "'ancestral' does not fit"),
        ({"samplings": ["star:2", "star:2"]}, "none may come twice"),
        ({"dataset": {"train": files["train"], "validation": tmp_path / "nothing.txt"}}, "nothing.txt"),
    ]  # fmt: skip
    for options, said in cases:
        with pytest.raises((ValueError, OSError), match=said):
            evaluate(checkpoint, files, tmp_path / "out", **options)
    with pytest.raises(ValueError, match="no pipeline checkpoint"):
        evaluate(tmp_path, files, tmp_path / "out")
    with pytest.raises((ValueError, OSError), match="no-such/repository"):
        evaluate("no-such/repository", files, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_texts_in_another_form_than_the_tokenizer_writes(checkpoint, files, tmp_path):
    spaced = {}
    for split, path in files.items():
        spaced[split] = tmp_path / f"{split}.txt"
        spaced[split].write_text(path.read_text().replace(".", " ."))
    with pytest.raises(
        ValueError, match="written in different forms: spaced punctuation.*detokenisation='round_trip'"
    ):
        evaluate(checkpoint, spaced, tmp_path / "out")
    protocol = Protocol(**{**vars(PROTOCOL), "detokenisation": "round_trip"})
    result = evaluate(checkpoint, spaced, tmp_path / "out", protocol=protocol)
    plain = evaluate(checkpoint, files, tmp_path / "plain", protocol=protocol)
    assert result["dataset_row"] == plain["dataset_row"] and result["protocol"]["detokenisation"] == "round_trip"


def test_the_likelihood_is_of_the_texts_as_they_are_in_any_form(checkpoint, files, tmp_path):
    """A `<UNK>` that a round trip writes would be three tokens when it is read again."""
    unknown = {split: tmp_path / f"{split}.txt" for split in files}
    for split, path in files.items():
        unknown[split].write_text(path.read_text().replace("red", "blue"))
    protocol = Protocol(**{**vars(PROTOCOL), "detokenisation": "round_trip"})
    result = evaluate(checkpoint, unknown, tmp_path / "out", protocol=protocol)
    pipeline = make_pipeline("diffusion-lm", max_length=12)
    held_out = load_real_texts(unknown, protocol).held_out
    assert any("blue" in text for text in held_out[: protocol.likelihood_texts])
    expected = bound(pipeline, held_out[: protocol.likelihood_texts], num_draws=protocol.likelihood_draws)
    assert result["likelihood"]["nats_per_token"] == expected.to_dict()["nats_per_token"]


def test_round_trip_cuts_and_writes_unknown_words():
    pipeline = make_pipeline("diffusion-lm")
    texts = real_texts.round_trip(["Tom saw a blue fox .", "a red fox"], pipeline.tokenizer, 7)
    assert texts == ["Tom saw a <UNK> fox", "a red fox"]
