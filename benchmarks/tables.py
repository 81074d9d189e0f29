"""The results as Markdown, ready for docs/performance.md."""

from __future__ import annotations


def _table(title: str, header: list[str], rows: list[list]) -> str:
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
    first = next(iter(results.values()))
    peaks = ", ".join(f"{result['peak_gflops']:.0f}" for result in results.values())
    return "\n\n".join(
        [
            _table(
                "Times as fast as the plain implementation, and share of the machine's peak",
                ["size", *first["speedups"], *first["shares"]],
                speedups,
            ),
            _table("CPU seconds", ["size", *first["seconds"]], seconds),
            f"Peak: {peaks} GFLOP per CPU second, the best of large matrix products.",
        ]
    )


def samplers(results: dict[str, dict]) -> str:
    names = [name for name in next(iter(results.values())) if name != "predictor"]
    rows = [[size] + [f"{result[name]:.2f}" for name in names] for size, result in results.items()]
    return _table("One sampling step, times the predictor alone", ["size", *names], rows)


def memory(results: dict[str, list[dict]]) -> str:
    rows = [
        [axis, point["value"]] + [f"{point[name]:.1f}" for name in ("plain", "ours", "embeddings")]
        for axis, points in results.items()
        for point in points
    ]
    return _table(
        "Peak memory of a training step, megabytes beyond weights and gradients",
        ["axis", "value", "plain", "ours", "the embeddings themselves"],
        rows,
    )


def autoregressive(results: dict[str, dict]) -> str:
    rows = [
        [size, batch_size] + [f"{value:,.0f}" if value >= 100 else f"{value:.2f}" for value in point.values()]
        for size, result in results.items()
        for batch_size, point in result.items()
    ]
    header = list(next(iter(next(iter(results.values())).values())))
    return _table("Sampling against an autoregressive model with a key-value cache", ["size", "batch", *header], rows)
