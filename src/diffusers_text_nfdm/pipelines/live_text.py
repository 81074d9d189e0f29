"""Texts in a terminal while they are written."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING, TextIO

from torch import Tensor

from ..conditions import put_in
from ..schedulers import TokenScheduler
from .progress import settled_tokens, text_pieces


if TYPE_CHECKING:
    from .pipeline_nfdm_text import NFDMTextPipeline

# Given in bold, settled in green, drafts dim; a dot for what is to come.
STYLES = {"given": "\x1b[1m", "settled": "\x1b[32m", "draft": "\x1b[2m"}
RESET, ERASE_LINE, ERASE_BELOW = "\x1b[0m", "\x1b[2K", "\x1b[J"


class LiveText:
    """A callback that shows a text after every call, in the place where it stood before.

    Words that were given are bold. Words that a scheduler has verified or committed are green, and so are those of
    latents that two calls in a row have predicted. The others, which may still change, are dim.

    Args:
        condition: what the text is to obey; values that are copied from it are shown.
        seconds: how long every call is shown.
        out: a terminal.

    ```python
    live = LiveText()
    pipe(callback_on_step_end=live, callback_on_step_end_tensor_inputs=live.tensor_inputs)
    live.clear()
    ```
    """

    tensor_inputs = ("tokens", "known")

    def __init__(self, condition: str = "", seconds: float = 0.1, out: TextIO | None = None):
        self.condition, self.seconds = condition, seconds
        self.out = sys.stdout if out is None else out
        self._lines = 0
        self._last: Tensor | None = None

    def __call__(self, pipeline: NFDMTextPipeline, step: int, timestep: Tensor, tensors: dict[str, Tensor]) -> dict:
        tokens, known = (tensors[name].cpu() for name in self.tensor_inputs)
        if isinstance(pipeline.scheduler, TokenScheduler):
            settled = settled_tokens(pipeline.scheduler, tokens, timestep, known)
        else:
            same = step > 0 and self._last is not None and self._last.shape == tokens.shape
            settled = (known | (tokens == self._last)) if same else known
        self._last = tokens
        columns, rows = shutil.get_terminal_size()
        lines = [f"{STYLES['draft']}call {step + 1}{RESET}"]
        for text in range(len(tokens)):
            lines += self._wrap(self._words(pipeline, tokens[text], known[text], settled[text]), columns - 1)
        # What is higher than the terminal cannot be written over.
        self._show(lines[: rows - 1])
        time.sleep(self.seconds)
        return {}

    def clear(self) -> None:
        """Take the text away; what is printed next stands in its place."""
        self._show([])
        self._last = None

    def _words(self, pipeline: NFDMTextPipeline, tokens: Tensor, known: Tensor, settled: Tensor) -> list[list]:
        """Words, each a list of `(style, letters)`: tokens between two spaces."""
        config, words = pipeline.model.config, []
        for i, piece in text_pieces(tokens.tolist(), pipeline.tokenizer, config.condition_length):
            letters = "·" if piece is None else put_in(piece.lstrip(), self.condition, config.copied_slots or [])
            style = "given" if known[i] else "settled" if settled[i] and piece is not None else "draft"
            if not words or piece is None or piece[:1].isspace():
                words.append([])
            words[-1].append((style, letters.replace("\n", " ")))
        return words

    @staticmethod
    def _wrap(words: list[list], width: int) -> list[str]:
        lines, used = [""], 0
        for word in words:
            length = sum(len(letters) for _, letters in word)
            styled = "".join(f"{STYLES[style]}{letters}{RESET}" for style, letters in word)
            if used and used + 1 + length > width:
                lines, used = [*lines, ""], 0
            lines[-1] += " " * bool(used) + styled
            used += length + bool(used)
        return lines

    def _show(self, lines: list[str]) -> None:
        back = f"\x1b[{self._lines}A\r" if self._lines else ""
        body = "".join(f"{ERASE_LINE}{line}\n" for line in lines)
        self.out.write(f"{back}{ERASE_BELOW}{body}")
        self.out.flush()
        self._lines = len(lines)
