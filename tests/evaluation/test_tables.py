"""The tables at a miniature scale."""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest
import yaml
from accelerate.state import AcceleratorState
from judges import save_judge

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
    assert (output / "evaluations" / "nfdm" / "samples" / "results.json").exists()
    begun = (output / "tables.md").read_text()
    states = "Diffusion-LM: not begun; Autoregressive: not begun"
    assert f"**Finished: NFDM. Not finished: {states}.**" in begun and "| Diffusion-LM | `" not in begun
    results = tables.make_tables(scale, output, str(data))
    names = [Path(folder).name for folder in trained]
    assert names == ["nfdm", "diffusion-lm", "diffusion-lm", "autoregressive"], "what is done is not done again"
    entries = [
        json.loads(line) for line in (output / "runs" / "diffusion-lm" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [entry["step"] for entry in entries if "train/loss" in entry] == [1, 2, 3, 4, 5, 6]

    assert json.loads((output / "results.json").read_text()) == results and results["unfinished"] == {}
    assert {path.name for path in (output / "plots").iterdir()} == {"likelihood.png", "quality.png"}
    page = (output / "tables.md").read_text()
    assert "inished" not in page
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


def test_rows_are_made_piece_by_piece_and_the_page_says_what_is_missing(tables, data, tmp_path, monkeypatch):
    scale, output = make_scale(tables, tmp_path), tmp_path / "out"
    with pytest.raises(ValueError, match="`only` is 'MuLAN'; it must be one of 'NFDM', 'Diffusion-LM', 'Autoregress"):
        tables.make_tables(scale, output, str(data), ["MuLAN"])

    def interrupted(arguments):
        arguments.stop_after_steps = 3
        return train(arguments)

    monkeypatch.setattr(tables, "train", interrupted)
    assert tables.make_tables(scale, output, str(data), ["Autoregressive"]) is None
    assert not (output / "tables.md").exists(), "no row is finished"
    monkeypatch.setattr(tables, "train", train)
    tables.make_tables(scale, output, str(data), ["Diffusion-LM"])
    page = (output / "tables.md").read_text()
    states = "NFDM: not begun; Autoregressive: step 3 of 6"
    assert f"**Finished: Diffusion-LM. Not finished: {states}.** Rows" in page
    assert "| NFDM, published |" in page and "| NFDM | `" not in page
    for table in importlib.import_module("paper_values").PUBLISHED.values():
        assert table.note in page and all(" | ".join(map(str, row.values.values())) in page for row in table.rows)

    def beside_another(arguments):
        monkeypatch.setattr(tables, "train", train)
        tables.make_tables(scale, output, str(data), ["Autoregressive"])
        return train(arguments)

    # While one command trains NFDM another finishes its row: none is lost.
    monkeypatch.setattr(tables, "train", beside_another)
    results = tables.make_tables(scale, output, str(data), ["NFDM"])
    assert [model["name"] for model in results["models"]] == ["NFDM", "Diffusion-LM", "Autoregressive"]
    assert results["unfinished"] == {} and "inished" not in (output / "tables.md").read_text()


def test_the_scale_of_hours_runs_from_end_to_end_at_toy_size(tables, data, tmp_path):
    """Its rows, settings and samplings; other sizes, texts, judge and budget."""
    values = yaml.safe_load((EVALUATION / "scales" / "rocstories-hours.yaml").read_text())
    values["files"], values["budget"] = MINIATURE["files"], {"steps": 8}
    values["settings"] |= {
        "min_word_count": 0, "batch_size": 8, "log_every": 1, "evaluation_texts": 4, "final_samples": 2,
        "frontier_samples": 2,
    }  # fmt: skip
    values["evaluations"]["samples"] |= {"num_samples": 5, "likelihood_texts": 6, "likelihood_draws": 2}
    values["evaluations"]["samples"]["judge"] = str(save_judge(tmp_path))
    for one in (values["evaluations"]["samples"], *values["models"]):
        if "samplings" in one:
            one["samplings"] = [name for name in one["samplings"] if ":64" not in name and ":32" not in name]
    for model in values["models"]:
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
        if not model["config"].endswith(("masked", "autoregressive")):
            sizes["embedding_dim"] = 8
        if "nfdm" in model["config"] or model["config"] == "rocstories-parallel":
            sizes |= {name: value for name, value in FORWARD.items() if name != "delta"}
        model["model_config"] = {**model.get("model_config", {}), **sizes}
        if model["config"].startswith("rocstories-parallel") and "autoregressive" not in model["config"]:
            model["settings"] = {"cross_entropy_steps": 1} | ({} if "masked" in model["config"] else {"link_steps": 2})
    path = tmp_path / "hours.yaml"
    path.write_text(yaml.safe_dump(values))
    output, command = tmp_path / "out", [str(path), "--data", str(data), "--output", str(tmp_path / "out")]
    assert tables.main([*command, "--only", "Masked diffusion", "NFDM, eight in motion"]) == 0
    assert (
        "**Finished: NFDM, eight in motion; Masked diffusion. Not finished: NFDM: not b"
        in (output / "tables.md").read_text()
    )
    assert tables.main(command) == 0
    page, results = (output / "tables.md").read_text(), json.loads((output / "results.json").read_text())
    assert results["unfinished"] == {} and "inished:" not in page
    names = [model["name"] for model in results["models"]]
    assert names == [model["name"] for model in values["models"]]
    for model, described in zip(results["models"], values["models"]):
        (result,) = model["evaluations"].values()
        expected = described.get("samplings") or values["evaluations"]["samples"]["samplings"]
        assert [entry["sampling"]["name"] for entry in result["samplers"].values()] == expected
        assert result["likelihood"]["nats_per_token"]["dataset_error"] > 0
        # MAUVE would need ten texts.
        assert "Dataset, seed 0: mauve is left out: 5 texts, and it needs 10." in result["notes"]
        for entry in result["samplers"].values():
            assert {"perplexity", "diversity", "memorization"} <= set(entry["scores"]), entry["sampling"]
        assert (
            output / "runs" / re.sub("[^a-z0-9]+", "-", model["name"].lower()) / "pipeline" / "README.md"
        ).is_file()
    steps, ours = section(page, "Number of steps"), "star:16:time_grid=learned:prediction=tokens:min_p=0.02"
    for sampling in ("star:16", ours, "masked:16:block_size=8", *values["models"][-1]["samplings"]):
        assert f"`{sampling}`" in steps
    quality = section(page, "Sample quality")
    assert quality.count("`star:16`") == 3 and "`sde:16`" not in quality and "`refine" not in quality
    assert "`masked:16:block_size=8`" in quality and "`ancestral`" in quality


def test_the_models_of_the_hours_are_of_one_size_and_have_one_budget(tables):
    scale, counts = tables.read_experiment("rocstories-hours"), {}
    for model in scale.models:
        settings = scale.arguments(model, {"dataset": "stories"}, None)
        # The words that the training file has more often than ten times, and the four special tokens.
        options = {**settings.model_config, "vocab_size": 7317, "max_length": 64}
        counts[model.name] = count_parameters(CONFIGS[settings.model_type](**options))
        if settings.link_steps:
            linked = count_parameters(CONFIGS[settings.model_type](**options, token_link=True))
    assert len(counts) == 6 and max(counts.values()) < 1.005 * min(counts.values())
    # The link comes on top.
    assert max(counts.values()) < linked < 1.05 * min(counts.values())
    assert scale.budget == {"cpu_seconds": 45 * 60} and scale.evaluations["samples"].judge == "smollm2"
    assert all(model.as_large_as is None for model in scale.models)


def test_the_phases_of_a_recipe_keep_their_shares_and_both_kinds_of_steps_are_measured(tables, tmp_path, monkeypatch):
    scale = tables.read_experiment("rocstories-hours")
    settings = scale.arguments(scale.models[3], {"dataset": "stories"}, None)
    measured = []

    def fake(arguments):
        measured.append(arguments.next_token_steps)
        folder = Path(arguments.output_dir)
        folder.mkdir(parents=True)
        seconds = 0.5 if arguments.next_token_steps else 2.0
        entry = json.dumps({"train/loss": 1.0, "train/cpu_seconds_per_step": seconds})
        (folder / "metrics.jsonl").write_text(f"{entry}\n" * 3)

    monkeypatch.setattr(tables, "train", fake)
    share = settings.next_token_steps / settings.max_steps
    budgeted = tables.with_budget(settings, scale, tmp_path)
    assert measured == [0, tables.MEASURED_STEPS] and share > 0
    seconds = 0.5 * budgeted.next_token_steps + 2.0 * (budgeted.max_steps - budgeted.next_token_steps)
    assert seconds == pytest.approx(2700, rel=0.02) and budgeted.max_steps % (budgeted.cross_entropy_steps + 1) == 0
    for name in ("next_token_steps", "decay_steps"):
        expected = getattr(settings, name) / settings.max_steps
        assert getattr(budgeted, name) / budgeted.max_steps == pytest.approx(expected, abs=1e-3)


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


@pytest.mark.parametrize("name", ["tiny", "rocstories", "rocstories-hours", "straightness", "paper"])
def test_every_row_of_the_scales_can_be_sampled(tables, name):
    scale = tables.read_experiment(name)
    for model in scale.models:
        settings = scale.arguments(model, {"dataset": "stories"}, None)
        config = CONFIGS[settings.model_type](vocab_size=500, max_length=settings.max_length, **settings.model_config)
        clock = make_clock(getattr(config, "clock", "shared"), settings.max_length)
        blocks = settings.max_length // (clock.block_size or settings.max_length)
        for evaluation in tables.wanted_evaluations(scale, settings.model_type).values():
            usable = tables.usable_samplings(model.samplings or evaluation.samplings, settings)
            assert usable is None or usable
            assert not model.samplings or usable == model.samplings
            steps = [Sampling.parse(sampling).num_inference_steps for sampling in usable or ()]
            assert all(number is None or number >= blocks for number in steps)


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
    assert not axes.patches and list(axes.get_lines()[0].get_xdata()) == [90.0, 50.0]
    assert axes.get_lines()[-1].get_xdata()[0] == 44.21
    assert plots.plot_quality({"models": models}) is None


def sampled(name, scheduler, calls, validity):
    """The entry of a sampling in the results."""
    config = {"noise_fraction": 1} if scheduler == "MarkovChainScheduler" else {}
    entry = {"sampling": {"scheduler": scheduler, "config": config}, "function_evaluations": calls}
    return name, {**entry, "scores": {"validity": {"mean": validity}}}


def test_scores_of_many_models_stand_in_rows_of_their_own(tables):
    plots = importlib.import_module("table_plots")
    names = [f"model {number}" for number in range(7)]
    models = [{"name": name, "evaluations": {"samples": result(90.0, 44.21, {})}} for name in names]
    models.append({"name": "Autoregressive", "evaluations": {"samples": result(50.0, 44.21, {})}})
    for number, model in enumerate(models[:-1]):
        samplers = [
            sampled(f"{scheduler}:{calls}", scheduler, calls, number / 10 + calls / 1000)
            for scheduler in ("MarkovChainScheduler", "ReverseSDEScheduler", "DraftVerifyScheduler")
            for calls in (32, 64)
        ]
        model["evaluations"]["samples"]["samplers"] = dict(samplers)
    models[-1]["evaluations"]["samples"]["samplers"] = dict([sampled("ancestral", None, 56, 1.0)])
    figure = plots.plot_quality({"models": models})
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [*names, "Autoregressive"]
    real, *points = axes.get_lines()
    assert real.get_xdata()[0] == 1 and len(points) == 7 * 6 + 1
    # No line joins points, and every point is beside the name of its model.
    assert all(len(point.get_xdata()) == 1 and point.get_linestyle() == "None" for point in points)
    rows = [round(point.get_ydata()[0]) for point in points]
    assert rows == [row for row in range(7) for _ in range(6)] + [7]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["star", "SDE", "drafts", "token by token", "32 calls", "64 calls", "real texts"]
    assert not axes.texts


def test_samplings_that_look_the_same_have_numbers(tables):
    plots, entry = importlib.import_module("table_plots"), result(90.0, 44.21, {})
    names = ["draft:32", "draft:32:min_p=0.1", "draft:16", "ancestral", "ancestral:min_p=0.1"]
    schedulers, calls = [*["DraftVerifyScheduler"] * 3, None, None], [32, 32, 16, 63, 60]
    made = [sampled(*one, 0.1 * place) for place, one in enumerate(zip(names, schedulers, calls))]
    entry["samplers"] = dict(made)
    figure = plots.plot_quality({"models": [{"name": "model", "evaluations": {"samples": entry}}]})
    (axes,) = figure.axes
    assert {text.get_text(): round(text.xy[0], 6) for text in axes.texts} == {"1": 0.0, "2": 0.1, "3": 0.3, "4": 0.4}
    expected = ["1: draft:32", "2: draft:32:min_p=0.1", "3: ancestral", "4: ancestral:min_p=0.1"]
    assert figure.get_suptitle().splitlines() == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": {"hours": 3}}, "`budget` is .*; it must be one of steps, cpu_seconds"),
        ({"budget": {"steps": 5, "cpu_seconds": 3}}, "`budget` is"),
        ({"speed": 3}, "missing or unknown entry"),
        ({"models": [MINIATURE["models"][0]] * 2}, "no two may be the same"),
        ({"models": [MINIATURE["models"][2]]}, "`as_large_as` is 'NFDM'"),
        ({"models": 3}, "missing or unknown entry"),
        ({"models": [3]}, "missing or unknown entry"),
        ({"models": [{"name": "NFDM", "config": [1]}]}, r"`config` is \[1\]; it must be of type str"),
        ({"models": [{"name": "NFDM", "config": "x", "settings": 3}]}, "`settings` is 3; it must be of type dict"),
        ({"evaluations": [1]}, "missing or unknown entry"),
        ({"settings": "fast"}, "`settings` is 'fast'; it must be of type dict"),
        ({"files": 3}, r"`files` is 3; it must be of type dict \| None"),
        ({"threads": "two"}, "`threads` is 'two'; it must be of type int"),
        ({"budget": 3}, "`budget` is 3; it must be of type dict"),
        ({"budget": {"steps": "many"}}, "missing or unknown entry"),
        ({"based_on": 3}, "missing or unknown entry"),
    ],
)
def test_bad_scales_are_refused(tables, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        make_scale(tables, tmp_path, **changes)


def test_wrong_commands_say_what_is_wrong(tables, data, tmp_path, capsys):
    assert tables.main(["huge"]) == 1
    known = "paper, rocstories, rocstories-hours, rocstories-likelihood, straightness, tiny, tiny-figures"
    assert f"`scale` is 'huge'; it must be a YAML file or one of {known}" in capsys.readouterr().err
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
