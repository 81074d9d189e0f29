"""Texts in the making and what is said of them, as HTML; `look.css` says how the classes look."""

from __future__ import annotations

import html
import math

from torch import Tensor

from diffusers_text_nfdm import NFDMTextPipeline
from diffusers_text_nfdm.conditions import put_in
from diffusers_text_nfdm.pipelines.progress import text_pieces

from .models import grammar, tells_stories
from .writing import Frame, Result


def sentence(error: Exception) -> str:
    """What went wrong, in a sentence."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if not isinstance(error, (ValueError, OSError)):
        text = f"This went wrong ({type(error).__name__}): {text}"
    return text if text.endswith((".", "!", "?")) else f"{text}."


def render_text(pipe: NFDMTextPipeline, frame: Frame, known: Tensor, text: int, condition: str = "") -> str:
    """A text in the making: a span for each token, up to END.

    Classes: `k` known, `p0` to `p9` how sure, `d` a draft that may change, `o` nothing yet.
    """
    config, spans = pipe.model.config, []
    for i, piece in text_pieces(frame.tokens[text].tolist(), pipe.tokenizer, config.condition_length):
        if piece is None:
            spans.append(' <span class="o">·</span>')
            continue
        sure, words = float(frame.sure[text, i]), piece.lstrip()
        kind = "k" if known[text, i] else "p" + ("n" if math.isnan(sure) else str(min(int(10 * sure), 9)))
        draft = "" if known[text, i] or frame.settled[text, i] else " d"
        title = "given" if known[text, i] else "" if math.isnan(sure) else f"{sure:.3f}"
        space = " " * (len(piece) > len(words))
        shown = html.escape(put_in(words, condition, config.copied_slots or []))
        spans.append(f'{space}<span class="{kind}{draft}" title="{title}">{shown}</span>')
    return "".join(spans).strip() or '<span class="o">·</span>'


def judge(pipe: NFDMTextPipeline, text: str, nats: float | None) -> list[str]:
    """What can be said of a text, in sentences."""
    said, stories = [], tells_stories(pipe)
    truth = grammar().log_prob(text) if stories else None
    if stories:
        departure = grammar().explain(text)
        if departure is None:
            said.append("✓ A story of the language.")
        else:
            before = text[max(0, departure.offset - 30) : departure.offset].strip()
            found = "it ends" if departure.found is None else f"comes “{departure.found}”"
            after = (
                f"after “{'…' * (departure.offset > 30)}{before}” {found}" if before else f"at its beginning {found}"
            )
            said.append(f"✗ Not a story of the language: {after}; {departure.reason}.")
    if nats is not None:
        given = " given its condition" if pipe.model.config.condition_length else ""
        likelihood = f"−log p of the whole text{given}: {nats:.2f} nats by the clean stream, exact"
        if truth is not None:
            likelihood += f"; the truth is {-truth:.2f}" if truth > -math.inf else "; the truth is that it cannot be"
        said.append(likelihood + ".")
    return said


def render_live(pipe: NFDMTextPipeline, frame: Frame, known: Tensor, condition: str = "") -> str:
    texts = "".join(
        f'<section class="text"><p class="frame on">{render_text(pipe, frame, known, i, condition)}</p></section>'
        for i in range(len(frame.tokens))
    )
    return f'<div class="result live"><div class="player">call {frame.call} …</div>{texts}</div>'


def render_result(pipe: NFDMTextPipeline, result: Result, condition: str = "") -> str:
    """The texts with what is said of them, and all frames for the replay, of which the last one is seen."""
    last, sections = len(result.frames) - 1, []
    for i, text in enumerate(result.texts):
        frames = "".join(
            f'<p class="frame{" on" * (j == last)}">{render_text(pipe, frame, result.known, i, condition)}</p>'
            for j, frame in enumerate(result.frames)
        )
        nats = None if result.nats is None else result.nats[i]
        said = [f"{result.calls[i]} calls.", *judge(pipe, text, nats)]
        kind = {"✓": "good", "✗": "bad"}
        lines = "".join(f'<li class="{kind.get(line[0], "")}">{html.escape(line)}</li>' for line in said)
        sections.append(f'<section class="text"><div class="frames">{frames}</div><ul>{lines}</ul></section>')
    labels = ["the text" if frame.call is None else f"call {frame.call}" for frame in result.frames]
    player = (
        f'<div class="player" data-labels="{"|".join(labels)}"><button class="play">▶ Replay</button>'
        f'<input class="at" type="range" min="0" max="{last}" value="{last}" aria-label="call">'
        f'<output>{labels[-1]}</output><label>speed <select class="speed">'
        '<option value="1">slow</option><option value="4" selected>normal</option><option value="12">fast</option>'
        "</select></label></div>"
    )
    notes = "".join(f'<p class="note">{html.escape(note)}</p>' for note in result.notes)
    return f'<div class="result">{notes}{player}{"".join(sections)}{legend(pipe)}</div>'


def legend(pipe: NFDMTextPipeline) -> str:
    scale = "".join(f'<span class="p{i}">&nbsp;</span>' for i in range(10))
    sure = f"how sure, given the words before: {scale}" if pipe.model.has_clean_stream else ""
    return f'<p class="legend"><span class="k">given</span> <span class="pn d">may change</span> {sure}</p>'


def render_error(error: Exception) -> str:
    return f'<div class="result"><p class="error" role="alert">{html.escape(sentence(error))}</p></div>'
