"""A page to write with a model and to watch how a text comes about.

    python examples/app.py                          # the checkpoints that came along
    python examples/app.py --checkpoints runs/run   # every pipeline below a folder

It needs gradio: pip install diffusers_text_nfdm[demo]. Nothing is fetched at run time, except a model that is asked
for by its name on the Hub.
"""

from __future__ import annotations

import argparse
import html
import math
import os
import queue
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from diffusers_text_nfdm import (
    DraftVerifyScheduler,
    JumpScheduler,
    MarkovChainScheduler,
    NFDMTextPipeline,
    RefinementScheduler,
    ReverseODEScheduler,
    ReverseSDEScheduler,
    TokenScheduler,
    exact_likelihood,
)
from diffusers_text_nfdm.conditions import put_in
from diffusers_text_nfdm.metrics.checkpoint import load_pipeline
from diffusers_text_nfdm.models import evaluation_mode
from diffusers_text_nfdm.pipelines.prompts import read_prompts
from diffusers_text_nfdm.pipelines.token_writing import begins
from diffusers_text_nfdm.plots.trajectory import settling_calls
from diffusers_text_nfdm.stories import StoryGrammar
from diffusers_text_nfdm.tokenization import special_ids


if TYPE_CHECKING:
    import gradio as gr

HERE = Path(__file__).resolve().parent
DEFAULT_MODEL = "nfdm-stories-jumps"
SCHEDULERS = {
    scheduler.__name__: (scheduler, words)
    for scheduler, words in (
        (JumpScheduler, "many words a call, verified"),
        (DraftVerifyScheduler, "drafts, verified"),
        (RefinementScheduler, "the sure words first"),
        (MarkovChainScheduler, "latents in motion"),
        (ReverseSDEScheduler, "latents in motion"),
        (ReverseODEScheduler, "latents in motion"),
    )
}
MAX_TEXTS, MAX_FRAMES = 4, 48
# Seconds between two pictures of a text in the making.
PAUSE = 0.08
EXAMPLES = [
    "One windy Friday, Leo",
    "On a foggy morning, [MASK] bought a tiny [MASK] at the museum. It once belonged to a guilty giraffe. Soon, it "
    "jumped off his table and broke into six pieces. His friend Bella brought [MASK] and cookies. The clock smelled "
    "of tape, but Adam felt lucky.",
    "On a windy afternoon, Felix found a grumpy crow under his piano. [GAP] His roommate Daisy bravely came with a "
    "mighty trumpet. The crow ignored the trumpet and clapped. Felix felt lucky, kept the crow, and named it Daisy.",
]


# ---- Models ---------------------------------------------------------------------------------------------------------


def find_checkpoints(folders: list[Path]) -> list[str]:
    """The pipelines in the folders and right below them, the default one first."""
    found = [
        path.parent
        for folder in folders
        for path in (*folder.glob("model_index.json"), *folder.glob("*/model_index.json"))
    ]
    return [str(path) for path in sorted(found, key=lambda path: (path.name != DEFAULT_MODEL, str(path)))]


@lru_cache(maxsize=4)
def load(name: str, device: str | None = None) -> NFDMTextPipeline:
    """The pipeline of a folder or of a repository of the Hub."""
    if not name.strip():
        raise ValueError("Choose a model, or type the name of one on the Hub.")
    pipe = load_pipeline(name.strip(), device)
    if not isinstance(pipe, NFDMTextPipeline):
        raise ValueError(f"{name!r} is a {type(pipe).__name__}; this page is for an NFDMTextPipeline.")
    return pipe


def usable_schedulers(pipe: NFDMTextPipeline) -> list[str]:
    """Those that the model can be used with, its own first."""
    model, own = pipe.model, type(pipe.scheduler).__name__
    usable = [
        name
        for name, (scheduler, _) in SCHEDULERS.items()
        if not issubclass(scheduler, TokenScheduler)
        or (model.has_clean_stream and (scheduler is not JumpScheduler or model.config.jumps))
    ]
    return sorted(usable, key=lambda name: name != own)


def clocks(pipe: NFDMTextPipeline) -> list[str]:
    """The model's own clock, and the others that it was trained on."""
    own, trained = pipe.model.config.clock, pipe.model.config.trained_clocks or []
    return list(dict.fromkeys([str(own), *map(str, trained)]))


def writes_tokens(scheduler: str) -> bool:
    """Whether a scheduler writes tokens itself: it then has no clock, and draws them with a temperature above 0."""
    return issubclass(SCHEDULERS[scheduler][0], TokenScheduler)


@cache
def grammar() -> StoryGrammar:
    return StoryGrammar()


@cache
def _story_words() -> frozenset[str]:
    return frozenset(grammar().vocabulary)


def tells_stories(pipe: NFDMTextPipeline) -> bool:
    """Whether the model writes the stories whose truth is known: its words are theirs."""
    own = {*pipe.tokenizer.get_vocab()} - {*pipe.tokenizer.all_special_tokens}
    return own == _story_words() and not pipe.model.config.condition_length


# ---- Writing --------------------------------------------------------------------------------------------------------


@dataclass
class Request:
    """What is to be written.

    Args:
        prompt: a beginning, or a text with [MASK] and [GAP]; empty for nothing.
        steps: steps of latents, or the most calls; 0 for as many as it takes.
        clock: for schedulers that move latents, otherwise without meaning.
    """

    scheduler: str
    prompt: str = ""
    condition: str = ""
    guidance_scale: float = 1.0
    steps: int = 0
    clock: str | None = None
    temperature: float = 1.0
    num_texts: int = 1
    seed: int = 0


@dataclass
class Frame:
    """Texts in the making, after a call.

    Args:
        call: how many calls there were; `None` for the finished texts.
        tokens: `(texts, max_length)`.
        settled: which of them stay, of the same shape.
        sure: the clean stream's probability of each, given those before it; NaN where there is none.
    """

    call: int | None
    tokens: Tensor
    settled: Tensor
    sure: Tensor


@dataclass
class Result:
    """
    Args:
        known: which tokens were given, `(texts, max_length)`.
        frames: how the texts came about; the last one is the texts themselves.
        nats: `-log p` of each whole text by the clean stream; `None` for a model without one.
        notes: what the pipeline warned of.
    """

    texts: list[str]
    known: Tensor
    frames: list[Frame]
    calls: list[int]
    nats: list[float] | None
    notes: list[str] = field(default_factory=list)


class Stopped(Exception):
    """The visitor has left, or does not want the text any more."""


@torch.no_grad()
def token_probabilities(pipe: NFDMTextPipeline, tokens: Tensor) -> Tensor:
    """`p(x_i | x_<i)` of the clean stream, `(texts, max_length)`; NaN behind the first gap, and without the stream."""
    model, sure = pipe.model, torch.full(tokens.shape, math.nan)
    if model.has_clean_stream:
        with evaluation_mode(model):
            nats = model.clean_stream(tokens.to(model.device), None, next_token=True)[1].cpu()
        text = slice(-nats.shape[1], None)
        gaps = (tokens[:, text] == special_ids(pipe.tokenizer)[2]).cumsum(-1) > 0
        sure[:, text] = torch.exp(-nats).to(sure).masked_fill(gaps, math.nan)
    return sure


def make_scheduler(pipe: NFDMTextPipeline, name: str, temperature: float):
    """The scheduler with the checkpoint's settings, as far as it has them."""
    scheduler, own = SCHEDULERS[name][0], pipe.scheduler
    if writes_tokens(name):
        return scheduler.from_config(own.config, temperature=temperature)
    return scheduler.from_config(own.config, **({} if isinstance(own, scheduler) else {"time_grid": "learned"}))


def write(pipe: NFDMTextPipeline, request: Request, show: Callable[[Frame, Tensor], None] = lambda *_: None) -> Result:
    """Write texts, and show every call and what is known of the texts. What `show` raises ends it."""
    config, n = pipe.model.config, request.num_texts
    prompt, condition = (text.strip() or None for text in (request.prompt, request.condition))
    # A pipeline of its own: others may write with the same model.
    own = NFDMTextPipeline(pipe.model, pipe.tokenizer, make_scheduler(pipe, request.scheduler, request.temperature))
    own.set_progress_bar_config(disable=True)
    options: dict[str, Any] = {"num_inference_steps": request.steps or None, "guidance_scale": request.guidance_scale}
    if not writes_tokens(request.scheduler):
        options |= {"clock": request.clock or None, "temperature": request.temperature}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rows = read_prompts(
            [prompt or ""], pipe.tokenizer, config.max_length, condition_length=config.condition_length
        )
        # A gap has a row for each length, and only the end tells which of them is taken.
        per_text = rows.candidates[0]
        calls: list[Call] = []

        def on_call(_, step: int, timestep: Tensor, tensors: dict[str, Tensor]) -> None:
            tokens, sure = tensors["tokens"].cpu(), None
            if per_text == 1:
                sure, known = token_probabilities(pipe, tokens), rows.known.expand(n, -1)
                show(Frame(step + 1, tokens, _settled(request, known, tokens, timestep), sure), known)
            calls.append(Call(tokens, timestep, sure))

        output = own(
            prompt=prompt,
            condition=condition,
            num_samples=n,
            batch_size=n * per_text,
            generator=torch.Generator().manual_seed(request.seed),
            return_trajectory=True,
            callback_on_step_end=on_call,
            callback_on_step_end_tensor_inputs=["tokens"],
            **options,
        )
    taken = _taken_rows(calls, output.trajectory, per_text)
    known = rows.known[taken - torch.arange(n) * per_text]
    frames = _replay(pipe, request, calls, taken, known, output.sequences)
    nats = None
    if pipe.model.has_clean_stream:
        nats = [exact_likelihood(pipe.model, row[None]).nats_per_story.value for row in output.sequences]
    notes = [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]
    return Result(output.texts, known, frames, output.calls.tolist(), nats, list(dict.fromkeys(notes)))


class Call(NamedTuple):
    """What a callback sees, and the tokens' probabilities if they were shown."""

    tokens: Tensor
    timestep: Tensor
    sure: Tensor | None


def _settled(request: Request, known: Tensor, tokens: Tensor, timestep: Tensor) -> Tensor:
    """Which tokens stay, as far as one knows after a call: those that are verified or committed."""
    if not writes_tokens(request.scheduler):
        return known
    if request.scheduler == RefinementScheduler.__name__ or not begins(known).all():
        # What is not committed is padding.
        return known | (tokens != tokens[:, -1:])
    written = ((1 - timestep) * tokens.shape[1]).round()
    return known | (torch.arange(tokens.shape[1]) < written[:, None])


def _taken_rows(calls: list[Call], trajectory: Tensor, per_text: int) -> Tensor:
    """Which of the rows that were written have become the texts: those that came about as these did."""
    written, number = torch.stack([call.tokens for call in calls]), trajectory.shape[1]
    same = (written.unflatten(1, (number, per_text)) == trajectory[:, :, None]).all(-1).all(0)
    return torch.arange(number) * per_text + same.long().argmax(-1)


def _replay(
    pipe: NFDMTextPipeline, request: Request, calls: list[Call], taken: Tensor, known: Tensor, texts: Tensor
) -> list[Frame]:
    """Some of the calls, evenly spaced, and the texts."""
    number = min(len(calls), MAX_FRAMES)
    chosen = sorted({round(i * (len(calls) - 1) / max(number - 1, 1)) for i in range(number)})
    # Latents do not say when a token stays; that it has stayed does.
    trajectory = torch.stack([call.tokens[taken] for call in calls])
    since = torch.stack([settling_calls(trajectory[:, i], text) for i, text in enumerate(texts)])
    frames = []
    for i in chosen:
        tokens, timestep, sure = calls[i]
        tokens = tokens[taken]
        if writes_tokens(request.scheduler):
            settled = _settled(request, known, tokens, timestep[taken])
        else:
            settled = known | (since <= i)
        frames.append(Frame(i + 1, tokens, settled, token_probabilities(pipe, tokens) if sure is None else sure))
    return [*frames, Frame(None, texts, torch.ones_like(known), token_probabilities(pipe, texts))]


# ---- Showing --------------------------------------------------------------------------------------------------------


def sentence(error: Exception) -> str:
    """What went wrong, in a sentence."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if not isinstance(error, (ValueError, OSError)):
        text = f"This went wrong ({type(error).__name__}): {text}"
    return text if text.endswith((".", "!", "?")) else f"{text}."


@lru_cache(maxsize=100_000)
def _piece(tokenizer: Any, before: int, token: int) -> str:
    """How a token is written behind another one."""
    return tokenizer.decode([before, token])[len(tokenizer.decode([before])) :]


def render_text(pipe: NFDMTextPipeline, frame: Frame, known: Tensor, text: int, condition: str = "") -> str:
    """A text in the making: a span for each token, up to END.

    Classes: `k` known, `p0` to `p9` how sure, `d` a draft that may change, `o` nothing yet.
    """
    config = pipe.model.config
    start, end, pad = special_ids(pipe.tokenizer)
    first, slots = config.condition_length + 1, config.copied_slots or []
    tokens = frame.tokens[text, first:].tolist()
    tokens = tokens[: tokens.index(end)] if end in tokens else tokens
    while tokens and tokens[-1] == pad:
        tokens.pop()
    spans, before = [], start
    for i, token in enumerate(tokens, first):
        if token == pad:
            spans.append(' <span class="o">·</span>')
            continue
        sure, piece = float(frame.sure[text, i]), _piece(pipe.tokenizer, before, token)
        words = piece.lstrip()
        kind = "k" if known[text, i] else "p" + ("n" if math.isnan(sure) else str(min(int(10 * sure), 9)))
        draft = "" if known[text, i] or frame.settled[text, i] else " d"
        title = "given" if known[text, i] else "" if math.isnan(sure) else f"{sure:.3f}"
        space = " " * (len(piece) > len(words))
        spans.append(
            f'{space}<span class="{kind}{draft}" title="{title}">{html.escape(put_in(words, condition, slots))}</span>'
        )
        before = token
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


def stream(pipe: NFDMTextPipeline, request: Request) -> Iterator[str]:
    """The page's result as it comes about. Closing it ends the writing."""
    frames: queue.SimpleQueue = queue.SimpleQueue()
    stopped = threading.Event()

    def show(*frame: Any) -> None:
        if stopped.is_set():
            raise Stopped
        frames.put(frame)

    def work() -> None:
        try:
            frames.put(write(pipe, request, show))
        except Exception as error:
            frames.put(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        yield '<div class="result live"><div class="player">writing …</div></div>'
        while True:
            news = frames.get()
            # Who is late sees the newest.
            while isinstance(news, tuple) and not frames.empty():
                news = frames.get()
            if isinstance(news, Exception):
                raise news
            if isinstance(news, Result):
                yield render_result(pipe, news, request.condition)
                return
            yield render_live(pipe, *news, request.condition)
            time.sleep(PAUSE)
    finally:
        stopped.set()


# ---- The page -------------------------------------------------------------------------------------------------------

CSS = """
.gradio-container { max-width: 1150px !important; margin: 0 auto; }
.result { font-size: 1.05rem; color: var(--body-text-color); }
.result .player { display: flex; flex-wrap: wrap; gap: .6rem; align-items: center; min-height: 2.4rem; }
.result .player .at { flex: 1 1 8rem; min-width: 6rem; }
.result .player output { min-width: 4.5rem; font-variant-numeric: tabular-nums; }
.result .player button, .result .player select { padding: .25rem .7rem; border: 1px solid var(--border-color-primary);
  border-radius: .4rem; background: var(--background-fill-secondary); color: inherit; cursor: pointer; }
.result .text { border: 1px solid var(--border-color-primary); border-radius: .6rem; padding: .8rem 1rem;
  margin: .6rem 0; }
/* All frames lie on one another, so that the page keeps still while they are played. */
.result .frames { display: grid; }
.result .frame { grid-area: 1 / 1; visibility: hidden; line-height: 1.9; margin: 0; overflow-wrap: anywhere; }
.result .frame.on { visibility: visible; }
.result .frame span, .legend span { border-radius: .3rem; padding: .08rem .22rem; color: #1f2937; }
.result .k { background: #334155; color: #fff !important; }
.result .o { color: #94a3b8 !important; }
.result .d { opacity: .62; font-style: italic; text-decoration: underline dotted; }
.result .pn { background: #e5e7eb; }
SCALE
.result ul { list-style: none; margin: .6rem 0 0; padding: 0; font-size: .92rem; }
.result li.good { color: #15803d; font-weight: 600; }
.result li.bad { color: #b91c1c; font-weight: 600; }
.dark .result li.good { color: #4ade80; }
.dark .result li.bad { color: #f87171; }
.result .legend, .result .note { font-size: .85rem; margin: .4rem 0; line-height: 1.8; }
.legend span[class^="p"]:not(.d) { padding: .08rem .3rem; border-radius: 0; }
.result .error { border-left: 4px solid #b91c1c; background: #fee2e2; color: #7f1d1d; padding: .7rem 1rem; margin: 0; }
footer { display: none !important; }
"""
# From doubt to certainty.
COLOURS = "#fdc086 #fdcb9a #fdd6ae #fde1c3 #fbecd8 #eef2e4 #ddf0df #ccecd9 #b9e6d0 #a5dfc6".split()
CSS = CSS.replace("SCALE", "\n".join(f".result .p{i} {{ background: {c}; }}" for i, c in enumerate(COLOURS)))

SCRIPT = """<script>
(() => {
  const show = (result, i) => {
    result.querySelectorAll(".text").forEach(text => text.querySelectorAll(".frame").forEach(
      (frame, j) => frame.classList.toggle("on", i === j)));
    result.querySelector(".at").value = i;
    result.querySelector("output").textContent = result.querySelector(".player").dataset.labels.split("|")[i];
  };
  const stop = result => {
    clearTimeout(result.timer);
    result.timer = null;
    result.querySelector(".play").textContent = "▶ Replay";
  };
  const play = (result, i) => {
    const last = Number(result.querySelector(".at").max);
    show(result, i);
    if (i >= last || !result.isConnected) return stop(result);
    result.querySelector(".play").textContent = "❚❚ Pause";
    result.timer = setTimeout(() => play(result, i + 1), 1000 / Number(result.querySelector(".speed").value));
  };
  document.addEventListener("click", event => {
    if (!event.target.matches?.(".player .play")) return;
    const result = event.target.closest(".result"), at = result.querySelector(".at");
    if (result.timer) return stop(result);
    play(result, at.value === at.max ? 0 : Number(at.value));
  });
  document.addEventListener("input", event => {
    if (!event.target.matches?.(".player .at")) return;
    const result = event.target.closest(".result");
    stop(result);
    show(result, Number(event.target.value));
  });
  // What is selected in the text becomes a gap, or each of its words one to fill in.
  window.markSelected = mark => {
    const area = document.querySelector("#prompt textarea");
    const [from, to] = [area.selectionStart, area.selectionEnd], selected = area.value.slice(from, to);
    const words = selected.match(/[\\w'’-]+|[^\\s\\w]/g) || [mark];
    const marks = mark === "[MASK]" ? words.map(() => mark).join(" ") : mark;
    const space = / $/.test(selected) ? " " : "";
    area.value = area.value.slice(0, from) + marks + space + area.value.slice(to);
    area.dispatchEvent(new Event("input", {bubbles: true}));
    area.focus();
    area.setSelectionRange(from + marks.length, from + marks.length);
  };
})();
</script>"""


def model_settings(pipe: NFDMTextPipeline) -> dict[str, dict[str, Any]]:
    """What the controls are for a model, by the names of the controls."""
    config, names = pipe.model.config, usable_schedulers(pipe)
    conditions = bool(config.condition_length)
    return {
        "scheduler": {"choices": [(f"{name} ({SCHEDULERS[name][1]})", name) for name in names], "value": names[0]},
        "clock": {"choices": clocks(pipe), "value": clocks(pipe)[0]},
        "condition": {"visible": conditions, "value": ""},
        "guidance_scale": {"visible": conditions and bool(config.condition_dropout), "value": 1.0},
        "examples": {"visible": tells_stories(pipe)},
    }


def scheduler_settings(name: str) -> dict[str, dict[str, Any]]:
    """What the controls are for a scheduler: only those that it uses are seen."""
    if writes_tokens(name):
        steps = {"label": "Calls at most (0: as many as it takes)", "minimum": 0, "value": 0}
        return {"clock": {"visible": False}, "steps": steps, "temperature": {"minimum": 0.1, "value": 1.0}}
    steps = {"label": "Steps", "minimum": 1, "value": 64}
    return {"clock": {"visible": True}, "steps": steps, "temperature": {"minimum": 0.0, "value": 0.0}}


def build_page(checkpoints: list[str], device: str | None = None) -> gr.Blocks:
    import gradio as gr

    choices = [(Path(path).name, path) for path in checkpoints]
    with gr.Blocks(title="Text diffusion", analytics_enabled=False) as page:
        gr.Markdown("# Text diffusion\nWatch a text come about: write freely, continue a beginning, or fill gaps.")
        with gr.Row():
            with gr.Column(scale=2, min_width=320):
                model = gr.Dropdown(
                    choices,
                    value=checkpoints[0] if checkpoints else None,
                    label="Model",
                    info="One of the list, or the name of a repository on the Hub.",
                    allow_custom_value=True,
                    elem_id="model",
                )
                condition = gr.Textbox(
                    label="Condition",
                    placeholder="name[Blue Spice], eatType[pub], area[riverside]",
                    visible=False,
                    elem_id="condition",
                )
                prompt = gr.Textbox(
                    label="Your text",
                    info="Empty: write freely. A beginning is continued. [MASK] is a word, one [GAP] of any length.",
                    lines=4,
                    elem_id="prompt",
                )
                with gr.Row():
                    mask = gr.Button("Selection → [MASK]", size="sm", min_width=120)
                    gap = gr.Button("Selection → [GAP]", size="sm", min_width=120)
                with gr.Row():
                    go = gr.Button("Write", variant="primary", min_width=90, elem_id="write")
                    another = gr.Button("Another", min_width=90, elem_id="another")
                    halt = gr.Button("Stop", min_width=90, elem_id="stop")
                with gr.Accordion("Sampling", open=False):
                    scheduler = gr.Dropdown([], label="Scheduler", elem_id="scheduler")
                    steps = gr.Slider(0, 256, value=0, step=1, label="Calls", elem_id="steps")
                    clock = gr.Dropdown(
                        [], label="Clock", info="Which words move when.", allow_custom_value=True, elem_id="clock"
                    )
                    temperature = gr.Slider(0.1, 2, value=1, step=0.05, label="Temperature", elem_id="temperature")
                    guidance_scale = gr.Slider(
                        0.5, 4, value=1, step=0.1, label="Guidance", visible=False, elem_id="guidance"
                    )
                    num_texts = gr.Slider(1, MAX_TEXTS, value=1, step=1, label="Texts", elem_id="texts")
                    seed = gr.Number(0, precision=0, minimum=0, label="Seed", elem_id="seed")
                with gr.Column(visible=False) as examples:
                    gr.Examples(EXAMPLES, prompt, label="For example")
            with gr.Column(scale=3, min_width=320):
                result = gr.HTML('<div class="result"></div>', elem_id="result")

        controls = {
            "scheduler": scheduler, "clock": clock, "condition": condition, "guidance_scale": guidance_scale,
            "examples": examples, "steps": steps, "temperature": temperature,
        }  # fmt: skip

        def updates(settings: dict[str, dict[str, Any]]) -> dict[Any, Any]:
            return {controls[name]: gr.update(**values) for name, values in settings.items()}

        def choose_model(name: str | None):
            try:
                pipe = load(name or "", device)
            except Exception as error:
                return {result: render_error(error)}
            settings = model_settings(pipe)
            by_scheduler = scheduler_settings(settings["scheduler"]["value"])
            settings["clock"] |= by_scheduler.pop("clock")
            return {result: '<div class="result"></div>', **updates({**settings, **by_scheduler})}

        def run(name, prompt, condition, guidance_scale, scheduler, steps, clock, temperature, num_texts, seed):
            try:
                pipe = load(name or "", device)
                if scheduler not in usable_schedulers(pipe):
                    raise ValueError("Choose a scheduler; the model's own come with it as soon as it is loaded.")
                request = Request(
                    scheduler,
                    prompt,
                    condition,
                    guidance_scale,
                    int(steps),
                    clock,
                    temperature,
                    num_texts,
                    int(seed or 0),
                )
                yield from stream(pipe, request)
            except Exception as error:
                yield render_error(error)

        inputs = [
            model, prompt, condition, guidance_scale, scheduler, steps, clock, temperature, num_texts, seed,
        ]  # fmt: skip
        quiet = {"show_progress": "hidden"}
        page.load(choose_model, model, [result, *controls.values()], **quiet)
        model.change(choose_model, model, [result, *controls.values()], **quiet)
        scheduler.input(
            lambda name: updates(scheduler_settings(name)), scheduler, [clock, steps, temperature], **quiet
        )
        mask.click(None, js="() => markSelected('[MASK]')")
        gap.click(None, js="() => markSelected('[GAP]')")
        written = go.click(run, inputs, result, **quiet)
        again = another.click(lambda seed: int(seed or 0) + 1, seed, seed, **quiet).then(run, inputs, result, **quiet)
        halt.click(None, cancels=[written, again])
    return page


def launch_options() -> dict[str, Any]:
    """How the page looks: with the fonts of the reader's system, which need no network."""
    import gradio as gr

    theme = gr.themes.Base(
        primary_hue="teal", font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]
    )
    return {"css": CSS, "head": SCRIPT, "theme": theme}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    own = next((folder for folder in (HERE / "checkpoints", HERE.parent / "checkpoints") if folder.is_dir()), HERE)
    parser.add_argument(
        "--checkpoints",
        type=Path,
        nargs="+",
        default=[own],
        help="folders with pipelines (default: those that came along)",
    )
    parser.add_argument("--device", help="(default: cuda if there is one)")
    parser.add_argument("--host", help="(default: 127.0.0.1)")
    parser.add_argument("--port", type=int, help="(default: the first free one from 7860 on)")
    args = parser.parse_args(arguments)
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    # Denormal numbers slow these networks down on a CPU.
    torch.set_flush_denormal(True)
    try:
        page = build_page(find_checkpoints(args.checkpoints), args.device)
    except ImportError:
        parser.error("the page needs gradio: pip install diffusers_text_nfdm[demo]")
    page.launch(server_name=args.host, server_port=args.port, **launch_options())


if __name__ == "__main__":
    main()
