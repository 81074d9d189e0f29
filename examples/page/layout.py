"""The page itself: its controls, and what they do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffusers_text_nfdm import NFDMTextPipeline

from .models import SCHEDULERS, clocks, load, tells_stories, usable_schedulers, writes_tokens
from .showing import render_error
from .stream import stream
from .writing import Request


if TYPE_CHECKING:
    import gradio as gr

HERE = Path(__file__).resolve().parent
MAX_TEXTS = 4
EXAMPLES = [
    "One windy Friday, Leo",
    "On a foggy morning, [MASK] bought a tiny [MASK] at the museum. It once belonged to a guilty giraffe. Soon, it "
    "jumped off his table and broke into six pieces. His friend Bella brought [MASK] and cookies. The clock smelled "
    "of tape, but Adam felt lucky.",
    "On a windy afternoon, Felix found a grumpy crow under his piano. [GAP] His roommate Daisy bravely came with a "
    "mighty trumpet. The crow ignored the trumpet and clapped. Felix felt lucky, kept the crow, and named it Daisy.",
]


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
    steps = {"label": "Steps", "minimum": 1, "value": SCHEDULERS[name][0].default_steps}
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
                    lines=2,
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
                    steps = gr.Slider(0, 512, value=0, step=1, label="Calls", elem_id="steps")
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
    css, script = ((HERE / name).read_text(encoding="utf-8") for name in ("look.css", "script.js"))
    return {"css": css, "head": f"<script>\n{script}</script>", "theme": theme}
