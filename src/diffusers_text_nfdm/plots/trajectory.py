"""A picture of how a text came about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from ..tokenization import special_ids


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from transformers import PreTrainedTokenizerBase

    from ..pipelines import NFDMTextPipelineOutput


# Widths in characters of the font of the table.
MAX_ROWS, MAX_LINE, MIN_COLUMN, MAX_COLUMN = 10, 110, 4, 12
CHARACTER, ROW, FONT = 0.092, 0.24, 8
UNSETTLED = ("#f4f4f2", "#a8a8a4")


def settling_calls(trajectory: Tensor, final: Tensor) -> Tensor:
    """For tokens `(calls, seq)` and final ones `(seq,)`: the call from which on a position holds its final token.

    It is the number of calls where even the last call did not have it.
    """
    held = (trajectory == final).flip(0).cumprod(0)
    return len(trajectory) - held.sum(0)


def of_sample(output: NFDMTextPipelineOutput, sample: int) -> tuple[Tensor, Tensor]:
    """The final tokens `(seq,)` of a sample, and those of every call `(calls, seq)`."""
    if output.trajectory is None or output.sequences is None:
        raise ValueError(
            "`output` has no trajectory or no sequences; call the pipeline with `return_trajectory=True` and "
            "`output_type` 'text' or 'seq'."
        )
    if not 0 <= sample < len(output.sequences):
        raise ValueError(f"`sample` is {sample!r}; there are samples 0 to {len(output.sequences) - 1}.")
    return output.sequences[sample].cpu(), output.trajectory[:, sample]


def plot_trajectory(output: NFDMTextPipelineOutput, tokenizer: PreTrainedTokenizerBase, sample: int = 0) -> Figure:
    """How one text came about: a table of the predicted words, times from noise (above) to text (below) by positions.

    A word is coloured once it no longer changes, by the time at which that began; grey words still change, and a dot
    is a word to come. Long texts are broken into several tables; what follows END is left out.

    Args:
        output: of a pipeline called with `return_trajectory=True` and `output_type` `"text"` or `"seq"`.
        tokenizer: the pipeline's.
        sample: which of the samples.
    """
    final, trajectory = of_sample(output, sample)
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize
    from matplotlib.figure import Figure

    times = [*output.trajectory_times[:, sample].tolist(), 0.0]
    _, end, pad = special_ids(tokenizer)
    length = (final.tolist() + [end]).index(end) + 1
    final, trajectory = final[:length], trajectory[:, :length]
    settled = settling_calls(trajectory, final).tolist()
    num_rows = min(MAX_ROWS, len(trajectory))
    calls = [round(i * (len(trajectory) - 1) / max(num_rows - 1, 1)) for i in range(num_rows)]
    # The last row is the text itself, which comes after all calls.
    rows = [(call, trajectory[call]) for call in calls] + [(len(trajectory), final)]
    words = [
        (call, ["·" if i == pad else tokenizer.convert_ids_to_tokens(i) for i in ids.tolist()]) for call, ids in rows
    ]

    widths = [min(max(len(row[i]) for _, row in words) + 1, MAX_COLUMN) for i in range(len(final))]
    lines = _break_lines([max(width, MIN_COLUMN) for width in widths])
    # Pale enough at one end and dark enough at the other for black and white letters.
    palette = ListedColormap(colormaps["YlGnBu"]([0.12 + 0.73 * i / 255 for i in range(256)]))
    scale = Normalize(0, max(times))

    width = CHARACTER * max(sum(w for _, w in line) for line in lines)
    heights = [ROW * (len(rows) + 1)] * len(lines)  # an empty row apart
    margins = {"left": 0.75, "right": 0.95, "top": 0.5, "bottom": 0.15}
    size = (width + margins["left"] + margins["right"], sum(heights) - ROW + margins["top"] + margins["bottom"])
    figure = Figure(figsize=size)
    for number, line in enumerate(lines):
        below = margins["bottom"] + sum(heights[number + 1 :])
        line_width = CHARACTER * sum(w for _, w in line)
        box = (margins["left"] / size[0], below / size[1], line_width / size[0], ROW * len(rows) / size[1])
        _draw_line(figure.add_axes(box), line, words, times, settled, palette, scale)
    title = "From noise (above) to text (below)"
    figure.text(margins["left"] / size[0], 1 - 0.25 / size[1], title, fontsize=FONT + 3, weight="bold", va="center")
    bar_height = min(2.2, sum(heights) - ROW)
    top = 1 - margins["top"] / size[1]
    bar = figure.add_axes((1 - 0.7 / size[0], top - bar_height / size[1], 0.12 / size[0], bar_height / size[1]))
    figure.colorbar(ScalarMappable(scale, palette), cax=bar)
    bar.set_title("settled\nat t =", fontsize=FONT - 1, loc="left")
    bar.tick_params(labelsize=FONT - 1, length=2)
    bar.spines[:].set_visible(False)
    return figure


def _break_lines(widths: list[int]) -> list[list[tuple[int, int]]]:
    """Positions and widths of the columns, broken where a line would be longer than `MAX_LINE`."""
    lines: list[list[tuple[int, int]]] = [[]]
    for position, width in enumerate(widths):
        if lines[-1] and sum(w for _, w in lines[-1]) + width > MAX_LINE:
            lines.append([])
        lines[-1].append((position, width))
    return lines


def _draw_line(axes: Axes, line: list[tuple[int, int]], words, times, settled, palette, scale) -> None:
    axes.set_xlim(0, sum(width for _, width in line))
    axes.set_ylim(len(words), 0)
    for y, (call, row) in enumerate(words):
        left = 0
        for position, width in line:
            face, ink = UNSETTLED
            if call >= settled[position]:
                face = palette(scale(times[settled[position]]))
                ink = "white" if sum(c * share for c, share in zip(face, (0.3, 0.59, 0.11))) < 0.5 else "black"
            axes.add_patch(_cell(left, y, width, face))
            word = row[position]
            room = (width - 1) / max(len(word), 1)
            axes.text(
                left + width / 2,
                y + 0.52,
                word,
                ha="center",
                va="center",
                fontsize=FONT * min(1.0, room),
                color=ink,
                family="DejaVu Sans Mono",
                weight="bold" if call == len(times) - 1 else "normal",
                parse_math=False,
            )
            left += width
    axes.set_yticks(
        [y + 0.5 for y in range(len(words))],
        ["text" if call == len(times) - 1 else f"t = {times[call]:.2f}" for call, _ in words],
        fontsize=FONT,
    )
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _cell(left: float, top: float, width: float, color):
    from matplotlib.patches import Rectangle

    return Rectangle((left, top), width, 1, facecolor=color, edgecolor="white", linewidth=1.2)
