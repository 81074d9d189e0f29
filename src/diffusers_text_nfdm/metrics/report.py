"""Mean and standard deviation over repeats, and the table of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .scoring import METRICS


def aggregate(repeats: Sequence[dict[str, float]]) -> dict[str, dict[str, float | None]]:
    """`{metric: {"mean", "sd"}}` of the metrics that every repeat has; the standard deviation of one repeat is
    None.
    """
    return {
        metric: {
            "mean": float(np.mean([scores[metric] for scores in repeats])),
            "sd": float(np.std([scores[metric] for scores in repeats], ddof=1)) if len(repeats) > 1 else None,
        }
        for metric in METRICS
        if all(metric in scores for scores in repeats)
    }


def _cell(score: dict[str, float | None] | None) -> str:
    if score is None:
        return "-"
    digits = 2 if abs(score["mean"]) >= 10 else 3
    mean = f"{score['mean']:.{digits}f}"
    return mean if score["sd"] is None else f"{mean} ± {score['sd']:.{digits}f}"


def calls_cell(entry: dict) -> str:
    """The network calls of a text: their mean and, in brackets, the most, where texts differ."""
    most, mean = entry["function_evaluations"], entry.get("mean_function_evaluations")
    return str(most) if mean is None or mean == most else f"{mean:.1f} ({most})"


def markdown_report(result: dict) -> str:
    """The result as Markdown: what was measured and how, the table, and what was left out."""
    protocol, likelihood = result["protocol"], result["likelihood"]
    rows = {"Dataset": result["dataset_row"], **{name: entry["scores"] for name, entry in result["samplers"].items()}}
    metrics = [metric for metric in METRICS if any(metric in scores for scores in rows.values())]
    repeats = len(protocol["seeds"])
    lines = [
        f"# {result['model']}: {result['checkpoint']}",
        "",
        f"{result['parameters']:,} parameters. Protocol `{protocol['name']}`: {protocol['num_samples']:,} samples, "
        f"{repeats} {'repeat' if repeats == 1 else 'repeats (mean ± standard deviation)'}; "
        + (
            f"judge `{protocol['judge']}`." if protocol["judge"] else "no judge, so perplexity and MAUVE are left out."
        ),
        "The row Dataset has real texts in the place of samples.",
        "",
        "| | NFE | seconds | " + " | ".join(METRICS[metric] for metric in metrics) + " |",
        "|---" * (len(metrics) + 3) + "|",
    ]
    for name, scores in rows.items():
        entry = result["samplers"].get(name)
        cost = "- | -" if entry is None else f"{calls_cell(entry)} | {entry['seconds']:.1f}"
        lines.append(f"| {name} | {cost} | " + " | ".join(_cell(scores.get(metric)) for metric in metrics) + " |")
    lines.append("")
    if likelihood is not None:
        exact = "autoregressive" in likelihood["terms"]
        story = likelihood["nats_per_story"]
        line = (
            f"{'Exact -log p' if exact else 'Bound on -log p'} of {likelihood['protocol']['texts']:,} real texts: "
            f"{story['value']:.3f} ± "
            f"{story['monte_carlo_error']:.3f} nats per text, {likelihood['nats_per_token']['value']:.3f} per token, "
            f"{likelihood['bits_per_character']['value']:.4f} bits per character."
        )
        if result["entropy"] is not None:
            line += f" The entropy is {result['entropy']:.3f} nats per story."
        lines += [line, ""]
    if result["notes"]:
        lines += ["Notes:", "", *(f"- {note}" for note in result["notes"]), ""]
    return "\n".join(lines)
