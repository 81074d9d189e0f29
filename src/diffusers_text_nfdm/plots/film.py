"""A film of how a text came about."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from ..pipelines.progress import text_pieces
from .trajectory import of_sample, settling_calls


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ..pipelines import NFDMTextPipelineOutput


# Widths in characters, sizes in inches.
COLUMNS, CHARACTER, LINE, FONT, DPI = 78, 0.1, 0.3, 12, 110
# How a word looks that stays, and one that is drawn again.
SETTLED, UNSETTLED = ("#ccecd9", "#1f2937"), ("#f1f1ef", "#a0a09c")
# Frames a second. The finished text is seen for longer.
SPEED, LAST = 2, 8
MAX_FRAMES = 64


class Word(NamedTuple):
    """A token in its place: column, line, letters, and whether it stays."""

    column: int
    line: int
    letters: str
    settled: bool


def film_trajectory(
    output: NFDMTextPipelineOutput, tokenizer: PreTrainedTokenizerBase, path: str | Path, sample: int = 0
) -> None:
    """Write a GIF of how one text came about: a picture for every call, then the text.

    A word is green from the call on from which it stays, and grey as long as it is drawn again.

    Args:
        output: of a pipeline called with `return_trajectory=True` and `output_type` `"text"` or `"seq"`.
        tokenizer: the pipeline's.
        sample: which of the samples.
    """
    from matplotlib.animation import PillowWriter
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    final, trajectory = of_sample(output, sample)
    since = settling_calls(trajectory, final)
    # A batch goes on until its last text is finished.
    steps = min(len(trajectory), int(since.max()) + 1)
    number, calls = min(steps, MAX_FRAMES), int(output.calls[sample])
    chosen = sorted({round(i * (steps - 1) / max(number - 1, 1)) for i in range(number)})
    # Guidance calls two models in a step.
    per_step = max(1, round(calls / len(trajectory)))
    frames = [(f"call {per_step * (i + 1)}", _place(trajectory[i], tokenizer, since <= i)) for i in chosen]
    text = _place(final, tokenizer, since <= len(trajectory))
    frames += [(f"the text, after {calls} calls", text)] * LAST
    lines = 1 + max(word.line for _, words in frames for word in words)
    size = (CHARACTER * (COLUMNS + 2), LINE * (lines + 1.6))
    figure = Figure(figsize=size, dpi=DPI)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    writer = PillowWriter(fps=SPEED)
    with writer.saving(figure, str(path), DPI):
        for title, words in frames:
            _draw(axes, title, words, lines)
            writer.grab_frame()


def _place(tokens: Tensor, tokenizer: PreTrainedTokenizerBase, settled: Tensor) -> list[Word]:
    """The words of a text, line by line; what is to come leaves no room."""
    words: list[Word] = []
    column, line = 0, 0
    for position, piece in text_pieces(tokens.tolist(), tokenizer):
        letters = "·" if piece is None else piece.strip()
        column += bool(column) and (piece is None or piece[:1].isspace())
        if column + len(letters) > COLUMNS:
            column, line = 0, line + 1
        words.append(Word(column, line, letters, piece is not None and bool(settled[position])))
        column += len(letters)
    return words or [Word(0, 0, "·", False)]


def _draw(axes, title: str, words: list[Word], lines: int) -> None:
    from matplotlib.patches import Rectangle

    axes.clear()
    axes.set_axis_off()
    axes.set_xlim(-1, COLUMNS + 1)
    axes.set_ylim(lines + 0.4, -1.2)
    axes.text(0, -0.5, title, fontsize=FONT, weight="bold", va="center", family="DejaVu Sans Mono")
    for column, line, letters, settled in words:
        face, ink = SETTLED if settled else UNSETTLED
        axes.add_patch(Rectangle((column - 0.1, line + 0.1), len(letters) + 0.2, 0.84, facecolor=face, linewidth=0))
        # Letter by letter, so that a word is as wide as its box whatever the font makes of it.
        for i, letter in enumerate(letters):
            axes.text(
                column + i + 0.5, line + 0.55, letter, fontsize=FONT, color=ink, ha="center", va="center",
                family="DejaVu Sans Mono", parse_math=False,
            )  # fmt: skip
