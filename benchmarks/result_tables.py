"""The results as Markdown, ready for docs/performance.md."""

from __future__ import annotations

import long_texts
from memory import growth


def markdown(title: str, header: list[str], rows: list[list]) -> str:
    lines = [f"**{title}**", "", "| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines)


def training(results: dict[str, dict]) -> str:
    speedups, seconds = [], []
    for size, result in results.items():
        speedups.append(
            [size]
            + [f"{value:.2f}" for value in result["speedups"].values()]
            + [f"{value:.0%}" for value in result["shares"].values()]
        )
        seconds.append([size] + [f"{value:.3f}" for value in result["seconds"].values()])
    profiles = [
        [size, name] + [f"{share:.0%}" for share in shares.values()]
        for size, result in results.items()
        for name, shares in result["profiles"].items()
    ]
    first = next(iter(results.values()))
    peaks = ", ".join(f"{result['peak_gflops']:.0f}" for result in results.values())
    return "\n\n".join(
        [
            markdown(
                "Times as fast as the plain implementation, and share of the machine's peak",
                ["size", *first["speedups"], *first["shares"]],
                speedups,
            ),
            markdown("CPU seconds", ["size", *first["seconds"]], seconds),
            f"Peak: {peaks} GFLOP per CPU second, the best of large matrix products.",
            markdown(
                "Where the time of a step goes",
                ["size", "step", *first["profiles"]["ours"]],
                profiles,
            ),
        ]
    )


def samplers(results: dict[str, dict]) -> str:
    names = [name for name in next(iter(results.values())) if name != "predictor"]
    rows = [[size] + [f"{result[name]:.2f}" for name in names] for size, result in results.items()]
    return markdown("One sampling step, times the predictor alone", ["size", *names], rows)


def windows(rows: list[dict]) -> str:
    cells = [[f"{x:.2f}" if isinstance(x, float) else x for x in row.values()] for row in rows]
    return markdown("Sampling in windows, 64 calls: CPU milliseconds a text", list(rows[0]), cells)


def memory(results: dict[str, list[dict]]) -> str:
    rows = [
        [axis, point["value"]] + [_megabytes(point.get(name)) for name in ("plain", "ours", "embeddings")]
        for axis, points in results.items()
        for point in points
    ]
    table = markdown(
        "Peak memory of a training step, megabytes beyond weights and gradients",
        ["axis", "value", "plain", "ours", "the embeddings themselves"],
        rows,
    )
    lengths = [point for point in results["length"] if point["value"] >= 256] or results["length"]
    return (
        f"{table}\n\nFrom length {lengths[0]['value']} to {lengths[-1]['value']} ours grows with the power "
        f"{growth(lengths):.2f} of the length."
    )


def long(rows: list[dict]) -> str:
    kinds = [f"{name} {unit}" for name in long_texts.WORK for unit in ("ms", "kB")]
    cells = [
        [row["axis"], f"{row['value']:,}", row["clock"]]
        + [f"{row[kind]:.3f}" if kind.endswith("ms") else f"{row[kind]:.0f}" for kind in kinds]
        for row in rows
    ]
    header = ["axis", "value", "clock"]
    header += [f"{label}, {unit}" for label in long_texts.WORK.values() for unit in ("ms", "kB")]
    powers = ", ".join(
        f"{long_texts.growth(rows, clock, name):.2f} ({label}, {clock})"
        for name, label in long_texts.WORK.items()
        for clock in long_texts.CLOCKS
    )
    table = markdown("The two-stream model: CPU milliseconds and peak of kilobytes per token", header, cells)
    return f"{table}\n\nThe peak grows with these powers of the length: {powers}."


def precision(rows: list[dict], multiplies: bool) -> str:
    cells = [
        [f"{row['vocabulary']:,}", row["step"], f"{row['float32']:.3f}", f"{row['bfloat16']:.3f}"]
        + [f"{row['float32'] / row['bfloat16']:.2f}"]
        for row in rows
    ]
    header = ["vocabulary", "step", "float32, s", "bfloat16, s", "times as fast"]
    table = markdown("Training steps of the two-stream model in two precisions", header, cells)
    return f"{table}\n\nThis processor {'multiplies' if multiplies else 'emulates'} bfloat16."


def _megabytes(number: float | None) -> str:
    return "-" if number is None else f"{number:.1f}"


def autoregressive(results: dict[str, dict]) -> str:
    rows = [
        [size, batch_size] + [f"{value:,.0f}" if value >= 100 else f"{value:.2f}" for value in point.values()]
        for size, result in results.items()
        for batch_size, point in result.items()
    ]
    header = list(next(iter(next(iter(results.values())).values())))
    return markdown(
        "Sampling against an autoregressive model with a key-value cache", ["size", "batch", *header], rows
    )
