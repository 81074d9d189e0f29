"""The tables at a miniature scale."""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest
import yaml
from accelerate.state import AcceleratorState

from diffusers_text_nfdm.baseline import count_parameters
from diffusers_text_nfdm.clocks import make_clock
from diffusers_text_nfdm.metrics import Sampling, get_protocol
from diffusers_text_nfdm.stories import StoryGrammar
from diffusers_text_nfdm.training import train
from diffusers_text_nfdm.training.arguments import CONFIGS


EVALUATION = Path(__file__).parents[2] / "evaluation"
PREDICTOR = {
    "embedding_dim": 8, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
FORWARD = {
    "delta": 0.1, "forward_hidden_size": 16, "forward_num_layers": 1, "forward_num_heads": 2,
    "forward_intermediate_size": 24, "forward_time_dim": 12,
}  # fmt: skip
PROTOCOL = {
    "repeats": 1, "judge": None, "detokenisation": "round_trip", "memorization_texts": None, "likelihood_draws": 2,
}  # fmt: skip
MINIATURE = {
    "threads": 1,
    "files": {"train": "train.jsonl", "validation": "valid.jsonl"},
    "budget": {"steps": 6},
    "settings": {
        "min_word_count": 0, "max_length": 64, "batch_size": 8, "learning_rate": 2e-3, "warmup_steps": 2,
        "log_every": 1, "checkpoint_every": 2, "evaluation_texts": 4, "evaluation_draws": 2, "num_samples": 0,
        "final_samples": 2, "sampling_steps": 2, "save_plots": False,
    },
    "models": [
        {"name": "NFDM", "config": "rocstories-nfdm", "model_config": {**PREDICTOR, **FORWARD}},
        {"name": "Diffusion-LM", "config": "rocstories-diffusion-lm", "model_config": PREDICTOR},
        {"name": "Autoregressive", "config": "stories-autoregressive", "as_large_as": "NFDM"},
    ],
    "evaluations": {
        "samples": {
            **PROTOCOL,
            "num_samples": 5,
            "likelihood_texts": 6,
            "samplings": "star:3 star:2 chain:3:noise_fraction=0.5 chain:3:noise_fraction=snr sde:3 ode:3".split(),
        },
        "many steps": {**PROTOCOL, "num_samples": 3, "likelihood_texts": 0, "samplings": ["star:7", "sde:7"]},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def tables():
    sys.path.insert(0, str(EVALUATION))
    yield importlib.import_module("tables")
    sys.path.remove(str(EVALUATION))


@pytest.fixture(autouse=True)
def _fresh_accelerate():
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for name, number in (("train", 60), ("valid", 20)):
        stories = StoryGrammar().sample(number, seed=name)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in stories))
    return folder


def make_scale(tables, folder, **changes):
    path = folder / "miniature.yaml"
    path.write_text(yaml.safe_dump({**MINIATURE, **changes}, sort_keys=False))
    return tables.read_experiment(str(path))


def section(page, title):
    return page.split(f"## {title}\n")[1].split("\n## ")[0]


def test_stopped_and_started_again_it_makes_all_tables(tables, data, tmp_path, monkeypatch):
    scale, output = make_scale(tables, tmp_path), tmp_path / "out"
    trained = []

    def interrupted(arguments):
        trained.append(arguments.output_dir)
        if len(trained) == 2:
            arguments.stop_after_steps = 3
        return train(arguments)

    monkeypatch.setattr(tables, "train", interrupted)
    assert tables.make_tables(scale, output, str(data)) is None
    assert (
        not (output / "tables.md").exists() and (output / "evaluations" / "nfdm" / "samples" / "results.json").exists()
    )
    results = tables.make_tables(scale, output, str(data))
    names = [Path(folder).name for folder in trained]
    assert names == ["nfdm", "diffusion-lm", "diffusion-lm", "autoregressive"], "what is done is not done again"
    entries = [
        json.loads(line) for line in (output / "runs" / "diffusion-lm" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [entry["step"] for entry in entries if "train/loss" in entry] == [1, 2, 3, 4, 5, 6]

    assert json.loads((output / "results.json").read_text()) == results
    assert {path.name for path in (output / "plots").iterdir()} == {"likelihood.png", "quality.png"}
    page = (output / "tables.md").read_text()
    likelihood = section(page, "Likelihood")
    assert "the same number of optimizer steps, 6" in page and "| Autoregressive |" in likelihood
    assert re.search(r"\| NFDM \| [\d,]+ \| 6 \| \d+ \| ≤ [\d.]+ ± .*\| 3.12 \(0.05\) \|", likelihood)
    assert "| Diffusion-LM-Likelihood | - | - | - | - | - | - | 3.88 (-)* |" in likelihood
    assert not re.search(r"\| Autoregressive .*≤", likelihood), "an exact likelihood is no bound"
    assert section(page, "Sample quality").count("`star:3`") == 2 and "`ancestral`" in page
    fractions = section(page, "Fraction ρ of new noise in the Markov chain")
    assert fractions.count("`chain:3:noise_fraction=0.5`") == 2 and "star:2" not in fractions
    assert fractions.count("`chain:3:noise_fraction=snr`") == 1, "NFDM has no signal-to-noise ratio"
    equations = section(page, "Reverse SDE and reverse ODE")
    assert equations.count("`ode:3`") == equations.count("`sde:3`") == 2 and "sde:7" not in equations
    steps = re.findall(r"\| NFDM \| `(\w+:\d+)`", section(page, "Number of steps"))
    assert steps == ["star:7", "star:3", "star:2", "sde:7", "sde:3"]
    # Every number of the paper stands in the table of its kind, below the rows of its model.
    for table in importlib.import_module("paper_values").PUBLISHED.values():
        assert table.note in page
        for row in table.rows:
            assert " | ".join(map(str, row.values.values())) in page
    quality = section(page, "Sample quality").splitlines()
    names = [line.split(" | ")[0].strip("| ") for line in quality if line.startswith("| ")][2:]
    assert names == [
        "Dataset", "Dataset, published", "NFDM", "NFDM, published", "Diffusion-LM", "Diffusion-LM, published",
        "Autoregressive", "MuLAN, published", "MuLAN-Rescaled, published",
    ]  # fmt: skip
    published = "| NFDM, published | `chain:2000:noise_fraction=0.8` | 2000 | - | not said | 26.44 (0.22) |"
    assert any(line.startswith(published) for line in quality)

    # A third time nothing is trained or drawn, and the pages are the same.
    assert tables.make_tables(scale, output, str(data)) == results and len(trained) == 4
    assert (output / "tables.md").read_text() == page

    # Another budget is another experiment, not a continuation.
    with pytest.raises(
        ValueError, match="holds a run with other settings.*\n.*max_steps: 6 in the checkpoint, 7 here"
    ):
        tables.make_tables(make_scale(tables, tmp_path, budget={"steps": 7}), output, str(data))


def test_a_budget_of_seconds_becomes_steps_by_measuring_once(tables, data, tmp_path, monkeypatch):
    scale = make_scale(tables, tmp_path, budget={"cpu_seconds": 1.5})
    texts, model = scale.data(data), scale.models[1]
    settings = tables.size_settings(scale, model, texts)
    first = tables.with_budget(settings, scale, tmp_path / "speed")
    measured = json.loads((tmp_path / "speed" / "speed.json").read_text())["value"]["cpu_seconds_per_step"]
    assert first.max_steps == int(1.5 / measured) > 1 and not (tmp_path / "speed" / "run").exists()
    assert first.evaluate_every == first.max_steps and first.warmup_steps <= first.max_steps // 4
    monkeypatch.setattr(tables, "train", lambda arguments: pytest.fail("measured twice"))
    assert tables.with_budget(settings, scale, tmp_path / "speed") == first


def test_the_baseline_gets_the_size_it_is_told(tables, data, tmp_path):
    scale = make_scale(tables, tmp_path)
    texts = scale.data(data)
    counts = []
    for model in (scale.models[0], scale.models[2]):
        settings = tables.size_settings(scale, model, texts)
        counts.append(count_parameters(CONFIGS[settings.model_type](vocab_size=300, **settings.model_config)))
    # Sized for the data's vocabulary; another one only changes the embeddings.
    assert counts[1] == pytest.approx(counts[0], rel=0.15)


@pytest.mark.parametrize("name", ["tiny", "rocstories", "paper"])
def test_the_scales_can_be_read_and_every_model_be_built(tables, name):
    scale = tables.read_experiment(name)
    rows = [model.name for model in scale.models]
    assert {"NFDM", "NFDM-Additive", "MuLAN", "MuLAN-Rescaled", "Diffusion-LM", "Autoregressive"} <= set(rows)
    for model in scale.models:
        settings = scale.arguments(model, {"dataset": "stories"}, None)
        config = CONFIGS[settings.model_type](vocab_size=500, max_length=settings.max_length, **settings.model_config)
        assert count_parameters(config) > 100_000
    samplings = [sampling for evaluation in scale.evaluations.values() for sampling in evaluation.samplings]
    assert {"star:2000", "star:64", "star:32", "sde:2000", "sde:64", "sde:32"} <= set(samplings)
    if name == "paper":
        assert scale.budget == {"steps": 800_000} and scale.settings == {}
        assert all(not model.settings and not model.model_config for model in scale.models)


@pytest.mark.parametrize("name", ["tiny", "rocstories", "paper"])
def test_every_row_of_the_scales_can_be_sampled(tables, name):
    scale = tables.read_experiment(name)
    for model in scale.models:
        settings = scale.arguments(model, {"dataset": "stories"}, None)
        config = CONFIGS[settings.model_type](vocab_size=500, max_length=settings.max_length, **settings.model_config)
        clock = make_clock(getattr(config, "clock", "shared"), settings.max_length)
        blocks = settings.max_length // (clock.block_size or settings.max_length)
        for evaluation in tables.wanted_evaluations(scale, settings.model_type).values():
            usable = tables.usable_samplings(evaluation.samplings, settings)
            assert usable is None or usable
            assert all(int(sampling.split(":")[1]) >= blocks for sampling in usable or ())


def test_the_scale_paper_has_every_row_of_the_paper_and_its_protocol(tables):
    scale, (evaluation,) = tables.read_experiment("paper"), tables.read_experiment("paper").evaluations.values()
    models = {model.name: scale.arguments(model, {"dataset": "stories"}, None) for model in scale.models}

    def key(sampling):
        return sampling.scheduler, dict(sampling.config), sampling.num_inference_steps

    for table in importlib.import_module("paper_values").PUBLISHED.values():
        for row in table.rows:
            if row.sampling is not None and all(value.value is not None for value in row.values.values()):
                usable = tables.usable_samplings(evaluation.samplings, models[row.model])
                assert key(row.sampling) in [key(Sampling.parse(name)) for name in usable], (table.label, row.row)
    protocol = get_protocol("paper")
    assert evaluation.repeats == len(protocol.seeds)
    for name in ("num_samples", "judge", "detokenisation", "memorization_texts"):
        assert getattr(evaluation, name) == getattr(protocol, name)


def test_a_scale_based_on_another_says_only_what_differs(tables):
    whole, short = tables.read_experiment("rocstories"), tables.read_experiment("rocstories-likelihood")
    assert short.models == whole.models and short.settings == whole.settings and short.files == whole.files
    assert short.budget != whole.budget and list(short.evaluations) == ["samples"]


def result(nats, entropy, terms):
    quantity = {"value": nats, "monte_carlo_error": 0.1, "dataset_error": 0.5}
    units = ("nats_per_story", "nats_per_token", "bits_per_character")
    return {
        "protocol": {"num_samples": 4, "seeds": [0], "judge": None, "detokenisation": "raw", "num_training_texts": 9},
        "dataset_row": {"validity": {"mean": 1.0, "sd": None}},
        "likelihood": {**dict.fromkeys(units, quantity), "terms": terms},
        "entropy": entropy,
        "samplers": {},
    }


def test_the_truth_stands_below_the_bounds(tables):
    pages, plots = importlib.import_module("table_pages"), importlib.import_module("table_plots")
    models = [
        {"name": name, "parameters": 10, "steps": 5, "cpu_seconds": 2.0, "evaluations": {"samples": entry}}
        for name, entry in (
            ("NFDM, categorical", result(90.0, 44.21, {"diffusion": {}})),
            ("Autoregressive", result(50.0, 44.21, {"autoregressive": {}})),
        )
    ]
    table = pages.likelihood_table(models)
    assert "| NFDM, categorical | 10 | 5 | 2 | ≤ 90.00 ± 0.50 |" in table and table.splitlines()[2].endswith("| - |")
    assert table.splitlines()[-1].startswith("| the truth |") and "| 44.21 |" in table.splitlines()[-1]
    axes = plots.plot_likelihood({"models": models}).axes[0]
    assert [bar.get_width() for bar in axes.patches] == [90.0, 50.0]
    assert axes.get_lines()[-1].get_xdata()[0] == 44.21
    assert plots.plot_quality({"models": models}) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": {"hours": 3}}, "`budget` is .*; it must be one of steps, cpu_seconds"),
        ({"budget": {"steps": 5, "cpu_seconds": 3}}, "`budget` is"),
        ({"speed": 3}, "missing or unknown entry"),
        ({"models": [MINIATURE["models"][0]] * 2}, "no two may be the same"),
        ({"models": [MINIATURE["models"][2]]}, "`as_large_as` is 'NFDM'"),
    ],
)
def test_bad_scales_are_refused(tables, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        make_scale(tables, tmp_path, **changes)


def test_wrong_commands_say_what_is_wrong(tables, data, tmp_path, capsys):
    assert tables.main(["huge"]) == 1
    expected = "`scale` is 'huge'; it must be a YAML file or one of paper, rocstories, rocstories-likelihood, tiny"
    assert expected in capsys.readouterr().err
    assert tables.main(["rocstories", "--output", str(tmp_path / "out")]) == 1
    assert "needs a data folder with rocstories_train.jsonl" in capsys.readouterr().err
    assert tables.main(["rocstories", "--data", str(data), "--output", str(tmp_path / "out")]) == 1
    assert "There is no file" in capsys.readouterr().err
    assert tables.main(["tiny", "--data", str(data)]) == 1
    assert "the scale 'tiny' needs none" in capsys.readouterr().err
    judged = {name: {**options, "judge": "no-such-judge"} for name, options in MINIATURE["evaluations"].items()}
    with pytest.raises(ValueError, match="The judge 'no-such-judge' cannot be loaded"):
        tables.make_tables(make_scale(tables, tmp_path, evaluations=judged), tmp_path / "out", str(data))
    assert not (tmp_path / "out").exists()
