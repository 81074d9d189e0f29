"""The model card that travels with a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from .pipelines import NFDMTextPipeline


TEMPLATE = Path(__file__).parent / "model_card_template.md"
NAMES = {"nfdm": "NFDM", "mulan": "MuLAN", "diffusion_lm": "Diffusion-LM"}
DESCRIPTIONS = {
    "nfdm": "A Neural Flow Diffusion Model for text: continuous diffusion over token embeddings whose forward process (mean, standard "
    "deviation and volatility) is learned together with the generative process.",
    "mulan": "MuLAN for text: continuous diffusion over token embeddings with one learned noise schedule per token position, chosen by a "
    "latent context.",
    "diffusion_lm": "Diffusion-LM in continuous time: diffusion over token embeddings with a fixed noise schedule.",
}
UNKNOWN = "Not recorded with this checkpoint."


def variant_name(config) -> str:
    """The model's name in the paper: NFDM, NFDM-Additive, MuLAN, MuLAN-Rescaled or Diffusion-LM."""
    name = NAMES[config.model_type]
    if getattr(config, "time_conditioning", None) == "additive":
        name += "-Additive"
    if getattr(config, "rescaled_schedule", False):
        name += "-Rescaled"
    return name


def _quote(text: str) -> str:
    # Markdown would take `<UNK>` for an HTML tag and hide it.
    return "\n".join(f"> {line}" for line in text.replace("<", "&lt;").splitlines() or [""])


def write_model_card(
    pipeline: NFDMTextPipeline,
    folder: str | Path,
    *,
    title: str | None = None,
    repo: str | None = None,
    data: str | None = None,
    recipe: Mapping[str, object] | None = None,
    results: str | None = None,
    samples: Sequence[str] | None = None,
) -> Path:
    """Fill the template and write it as README.md.

    Without anything to record (`data`, `recipe`, `results`, `samples`) a card that is already there is kept.

    Args:
        data: what the model was trained on.
        recipe: the training settings by name.
        results: figures with their protocol, as Markdown.
    """
    path = Path(folder) / "README.md"
    if path.exists() and data is recipe is results is samples is None:
        return path
    model, config = pipeline.model, pipeline.model.config
    name = variant_name(config)
    parameters = sum(p.numel() for p in model.parameters())
    architecture = (
        f"{parameters:,} parameters; vocabulary of {config.vocab_size:,} tokens, {config.max_length} positions, latents of dimension "
        f"{config.embedding_dim}; predictor with {config.num_hidden_layers} layers of size {config.hidden_size}; "
        f"prediction type `{config.prediction_type}`, objective `{config.objective}`."
    )
    card = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        model_type=config.model_type,
        title=title or f"{name} for text",
        description=DESCRIPTIONS[config.model_type],
        repo=repo or "path/or/repo",
        scheduler=type(pipeline.scheduler).__name__,
        architecture=architecture,
        data=data or UNKNOWN,
        recipe=UNKNOWN if not recipe else "\n".join(f"- `{key}`: {value}" for key, value in recipe.items()),
        results=results or UNKNOWN,
        samples=UNKNOWN if not samples else "\n\n".join(map(_quote, samples)),
    )
    path.write_text(card, encoding="utf-8")
    return path
