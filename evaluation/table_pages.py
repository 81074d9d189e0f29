"""The results as the paper's tables, in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from paper_values import DATASET, PUBLISHED, PublishedRow

from diffusers_text_nfdm.metrics.report import calls_cell
from diffusers_text_nfdm.metrics.scoring import METRICS


BUDGETS = {"steps": "optimizer steps", "cpu_seconds": "CPU seconds, summed over threads"}
PUBLISHED_NOTE = (
    "Rows of the paper are marked as published, their errors in parentheses. They are of ROCStories, with models of "
    "about 100 million parameters after 800,000 steps and GPT-2 Large as judge; how many samples they are of is not "
    "said. A score may be compared with another only under the same protocol: data, number of samples, references, "
    "judge, form of the texts. The rows Dataset, real texts in the place of samples, show what each score would be "
    "for a perfect model."
)
CHAIN, SDE, ODE = "MarkovChainScheduler", "ReverseSDEScheduler", "ReverseODEScheduler"


def render(results: dict) -> str:
    """All tables with their notes; below each model's rows the paper's."""
    models = results["models"]
    ablation = [model for model in models if model["name"] in ("NFDM", "NFDM-Additive")]
    budget, amount = next(iter(results["budget"].items()))
    sections = [
        f"# Tables at the scale {results['scale']}",
        f"Every model was trained for the same number of {BUDGETS[budget]}, {amount:,}, on {results['dataset']} (CPU "
        f"threads: {results['threads']}). "
        "One training run each: differences between rows may be luck.",
        finished_line(results),
        PUBLISHED_NOTE,
        "## Likelihood",
        likelihood_table(models),
        _notes("likelihoodtable"),
        "## Sample quality",
        _by_sampling(models, _main_samplings(models), ["discrete sampling"]),
        _notes("discrete sampling"),
        "## Fraction ρ of new noise in the Markov chain",
        _by_sampling(models, _chains(models), ["big sigmast table"]),
        "ρ = 1 is star sampling. ρ* (`snr`) gives the ancestral posterior; it needs a signal-to-noise ratio, which "
        "NFDM does not have.",
        _notes("big sigmast table"),
        "## Reverse SDE and reverse ODE",
        _by_sampling(models, _equations(models), ["SDE ODE table"]),
        _notes("SDE ODE table"),
        "## Number of steps",
        _by_sampling(models, _by_number, ["SDE 64", "sigmast 64"], by_steps=True),
        _notes("SDE 64", "sigmast 64"),
        "## AdaLN and additive time conditioning",
        likelihood_table(ablation, published=False),
        _by_sampling(ablation, _main_samplings(models), ["nfdm vs nfdm-AdaLN"]),
        _notes("nfdm vs nfdm-AdaLN"),
        "## Protocols",
        "\n".join(f"- {line}" for line in protocol_lines(models)),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def finished_line(results: dict) -> str:
    """Which rows are there, and how far the others are; nothing where all are."""
    if not results["unfinished"]:
        return ""
    finished = "; ".join(model["name"] for model in results["models"])
    missing = "; ".join(f"{name}: {state}" for name, state in results["unfinished"].items())
    return f"**Finished: {finished}. Not finished: {missing}.** Rows that are not finished have no figures below."


def _notes(*labels: str) -> str:
    return "\n\n".join(PUBLISHED[label].note for label in labels)


def likelihood_table(models: Sequence[dict], published: bool = True) -> str:
    """Nats and bits with the standard error over texts, `≤` before what is a bound; last the paper's column."""
    measured = [(model, _likelihood(model)) for model in models]
    measured = [(model, likelihood) for model, likelihood in measured if likelihood is not None]
    if not measured:
        return ""
    header = ["model", "parameters", "steps", "CPU seconds", "nats per text", "nats per token", "bits per character"]
    column = {row.model: f"{row.values['elbo']}{row.source}" for row in PUBLISHED["likelihoodtable"].rows}
    rows = []
    for model, likelihood in measured:
        sign = "" if "autoregressive" in likelihood["terms"] else "≤ "
        row = [model["name"], f"{model['parameters']:,}", f"{model['steps']:,}", f"{model['cpu_seconds']:,.0f}"]
        row += [
            sign + _number(likelihood[unit]["value"], likelihood[unit]["dataset_error"])
            for unit in ("nats_per_story", "nats_per_token", "bits_per_character")
        ]
        rows.append([*row, column.pop(model["name"], "-")] if published else row)
    if not published:
        return _table(header, rows)
    rows += [[model, *"------", value] for model, value in column.items()]
    entropy = next((entropy for model in models if (entropy := _entropy(model)) is not None), None)
    if entropy is not None:
        rows.append(["the truth", "-", "-", "-", f"{entropy:.2f}", "-", "-", "-"])
    return _table([*header, "published (no likelihood but *)"], rows)


def protocol_lines(models: Sequence[dict]) -> list[str]:
    lines = []
    # Of a row some evaluations may be left out.
    for name, result in {name: result for model in models for name, result in model["evaluations"].items()}.items():
        protocol = result["protocol"]
        judge = (
            "no judge, so no perplexity and no MAUVE" if protocol["judge"] is None else f"judge {protocol['judge']}"
        )
        lines.append(
            f"{name}: {protocol['num_samples']:,} samples, {len(protocol['seeds'])} "
            f"{'repeat' if len(protocol['seeds']) == 1 else 'repeats'}, {judge}, real texts "
            f"{protocol['detokenisation']}, "
            f"memorization against {protocol['num_training_texts']:,} training texts."
        )
    return lines


def _by_sampling(
    models: Sequence[dict], wanted: Callable[[dict], bool], labels: Sequence[str], by_steps: bool = False
) -> str:
    """One row for each model and each of its samplings that is wanted, below the real texts of each evaluation.

    The rows of the paper's tables `labels` stand below those of the same model, also where none is wanted here.
    """
    rows, seen = [], set()
    for model in models:
        for evaluation, result in model["evaluations"].items():
            entries = [entry for entry in result["samplers"].values() if wanted(entry)]
            if entries and evaluation not in seen:
                seen.add(evaluation)
                rows.append((DATASET, None, _own_cells(DATASET, None, result["dataset_row"], result)))
            rows += [
                (model["name"], entry["sampling"], _own_cells(model["name"], entry, entry["scores"], result))
                for entry in entries
            ]
    order = {name: place for place, name in enumerate([DATASET, *(model["name"] for model in models)])}
    if by_steps:
        # Each model from many steps to few.
        rows.sort(key=lambda row: (order[row[0]], *_steps_key(row[1])))
    published = [row for label in labels for row in PUBLISHED[label].rows]
    rows += [(row.model, None, _published_cells(row)) for row in published]
    # Models that only the paper has come last.
    rows.sort(key=lambda row: order.get(row[0], len(order)))
    metrics = [metric for metric in METRICS if any(metric in cells for _, _, cells in rows)]
    titles = ["model", "sampling", "NFE", "seconds", "samples", *metrics]
    header = [METRICS.get(title, title) for title in titles]
    return _table(header, [[cells.get(title, "-") for title in titles] for _, _, cells in rows])


def _own_cells(name: str, entry: dict | None, scores: dict, result: dict) -> dict[str, str]:
    cells = {"model": name, "samples": str(result["protocol"]["num_samples"])}
    if entry is not None:
        cells["sampling"] = f"`{entry['sampling']['name']}`"
        cells["NFE"], cells["seconds"] = calls_cell(entry), f"{entry['seconds']:.1f}"
    return {**cells, **{metric: _number(score["mean"], score["sd"]) for metric, score in scores.items()}}


def _published_cells(row: PublishedRow) -> dict[str, str]:
    cells = {"model": f"{row.model}, published", "samples": "not said"}
    if row.sampling is not None:
        cells["sampling"], cells["NFE"] = f"`{row.sampling.name}`", str(row.sampling.num_inference_steps)
    return {**cells, **{column: str(value) for column, value in row.values.items()}}


def _steps_key(sampling: dict | None) -> tuple:
    return ("", 0) if sampling is None else (sampling["scheduler"] or "", -(sampling["num_inference_steps"] or 0))


def _main_samplings(models: Sequence[dict]) -> Callable[[dict], bool]:
    """The first sampling of each model."""
    first = [entry for model in models for entry in list(_entries(model))[:1]]
    return lambda entry: any(entry is one for one in first)


def _chains(models: Sequence[dict]) -> Callable[[dict], bool]:
    """The Markov chain with every ρ, at the numbers of steps at which there are others than star."""
    steps = {s["num_inference_steps"] for s in _samplings(models) if _rho(s) not in (None, 1)}
    return lambda entry: _rho(entry["sampling"]) is not None and entry["sampling"]["num_inference_steps"] in steps


def _equations(models: Sequence[dict]) -> Callable[[dict], bool]:
    """SDE and ODE, at the numbers of steps of the latter."""
    steps = {s["num_inference_steps"] for s in _samplings(models) if s["scheduler"] == ODE}
    return lambda entry: (
        entry["sampling"]["scheduler"] in (SDE, ODE) and entry["sampling"]["num_inference_steps"] in steps
    )


def _by_number(entry: dict) -> bool:
    """Star and SDE, and what writes tokens."""
    return _rho(entry["sampling"]) == 1 or entry["sampling"]["scheduler"] not in (CHAIN, ODE)


def _entries(model: dict) -> Iterator[dict]:
    return (entry for result in model["evaluations"].values() for entry in result["samplers"].values())


def _samplings(models: Sequence[dict]) -> list[dict]:
    samplings = [entry["sampling"] for model in models for entry in _entries(model)]
    return [sampling for sampling in samplings if sampling["scheduler"] not in (None, "masked")]


def _rho(sampling: dict) -> float | str | None:
    return sampling["config"]["noise_fraction"] if sampling["scheduler"] == CHAIN else None


def _likelihood(model: dict) -> dict | None:
    found = (result["likelihood"] for result in model["evaluations"].values())
    return next((likelihood for likelihood in found if likelihood is not None), None)


def _entropy(model: dict) -> float | None:
    return next((result["entropy"] for result in model["evaluations"].values()), None)


def _number(value: float, error: float | None) -> str:
    digits = 2 if abs(value) >= 10 else 3
    return f"{value:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
