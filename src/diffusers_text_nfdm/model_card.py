"""The model card that travels with a checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from huggingface_hub import EvalResult, ModelCard
from transformers import PreTrainedConfig

from .files import file_digest
from .schedulers import TokenScheduler


if TYPE_CHECKING:
    from .baseline import AutoregressivePipeline, MaskedDiffusionPipeline
    from .pipelines import NFDMTextPipeline


TEMPLATE = Path(__file__).parent / "model_card_template.md"
NAMES = {
    "nfdm": "NFDM",
    "mulan": "MuLAN",
    "diffusion_lm": "Diffusion-LM",
    "autoregressive": "Autoregressive",
    "masked": "Masked diffusion",
}
DESCRIPTIONS = {
    "nfdm": "A Neural Flow Diffusion Model for text: continuous diffusion over token embeddings whose forward process "
    "(mean, standard deviation and volatility) is learned together with the generative process.",
    "mulan": "MuLAN for text: continuous diffusion over token embeddings with one learned noise schedule per token "
    "position, chosen by a latent context.",
    "diffusion_lm": "Diffusion-LM in continuous time: diffusion over token embeddings with a fixed noise schedule.",
    "autoregressive": "The autoregressive baseline of `diffusers_text_nfdm`: a GPT-2-style transformer trained from "
    "scratch that writes a text token by token.",
    "masked": "The masked diffusion baseline of `diffusers_text_nfdm` (MDLM): tokens are hidden and predicted from "
    "those that are shown, by the trunk of the diffusion models.",
}
UNDEFORMED = (
    "A Neural Flow Diffusion Model for text whose forward process no network deforms: continuous diffusion over token "
    "embeddings, with a learned volatility."
)
OTHER_MODEL = "A text diffusion model of `diffusers_text_nfdm`: continuous diffusion over token embeddings."
UNKNOWN = "Not recorded with this checkpoint."


def variant_name(config) -> str:
    """The model's name in the paper: NFDM, NFDM-Additive, MuLAN, MuLAN-Rescaled or Diffusion-LM; or that of a
    baseline. What no network deforms says so.
    """
    name = NAMES.get(config.model_type, config.model_type)
    name += {"additive": "-Additive", "head": "-Head"}.get(getattr(config, "time_conditioning", None), "")
    if getattr(config, "rescaled_schedule", False):
        name += "-Rescaled"
    return name + "-Undeformed" * is_undeformed(config)


def is_undeformed(config) -> bool:
    return getattr(config, "forward_num_layers", None) == 0


def plain(text: str) -> str:
    """Markdown that shows the text as it is: no tag, link, image, heading or rule."""
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    text = re.sub(r"[\\`*_\[\]~|]", r"\\\g<0>", text)
    text = re.sub(r"^(\s*)(#|>|[-+](?=\s)|[-=]+[ \t]*$)", r"\1\\\2", text, flags=re.MULTILINE)
    return re.sub(r"^(\s*\d+)([.)])(?=\s)", r"\1\\\2", text, flags=re.MULTILINE)


def _harmless(markdown: str) -> str:
    """The Markdown without HTML, images and rules, which could be taken for the end of the metadata."""
    markdown = re.sub(r"<(?=[A-Za-z/!?])", "&lt;", markdown).replace("![", "!\\[")
    return re.sub(r"^(\s*)([-=*_]{3,}\s*)$", r"\1\\\2", markdown, flags=re.MULTILINE)


def _code(value: object) -> str:
    """A setting on one line, as code where Markdown would take it for more than text."""
    text = " ".join(str(value).split())
    if plain(text) == text:
        return text
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    space = " " if len(fence) > 1 else ""
    return f"{fence}{space}{text}{space}{fence}"


def _quote(text: str) -> str:
    return "\n".join(f"> {line}" for line in plain(text).splitlines() or [""])


def _request(config: PreTrainedConfig) -> str:
    """What the example asks for."""
    return 'condition="..."' if config.condition_length else "num_samples=4"


def _describe_diffusion(pipeline: NFDMTextPipeline, repo: str) -> dict[str, str]:
    config = pipeline.model.config
    # Schedulers that write tokens take as many calls as they need.
    steps = "" if isinstance(pipeline.scheduler, TokenScheduler) else ", num_inference_steps=64"
    what = _request(config)
    few = f"\nprint(pipe({what}, num_inference_steps=8).texts)  # in eight calls at most" if config.jumps else ""
    # The reverse SDE needs more steps than the chain.
    other, more = "ReverseSDEScheduler", ", num_inference_steps=512"
    if pipeline.model.has_clean_stream:
        other, more = "RefinementScheduler", ""
    return {
        "kind": "text-diffusion",
        "usage": f"""```python
# In a clone of diffusers_text_nfdm: pip install -c constraints.txt -e .
from diffusers_text_nfdm import NFDMTextPipeline

pipe = NFDMTextPipeline.from_pretrained({json.dumps(repo)})
print(pipe({what}{steps}).texts){few}
```

The scheduler (`{type(pipeline.scheduler).__name__}`) can be exchanged in one line:

```python
from diffusers_text_nfdm import {other}

pipe.scheduler = {other}.from_config(pipe.scheduler.config)
print(pipe({what}{more}).texts)
```""",
        "architecture": f"latents of dimension {config.embedding_dim}; predictor `{config.predictor}` with "
        f"{config.num_hidden_layers} layers of size {config.hidden_size}; prediction type "
        f"`{config.prediction_type}`, objective `{config.objective}`, clock `{config.clock}`.",
        "likelihood": "The likelihood is an upper bound of the negative log-likelihood, not the likelihood itself.",
    }


def _describe_autoregressive(pipeline: AutoregressivePipeline, repo: str) -> dict[str, str]:
    config = pipeline.model.config
    return {
        "kind": "autoregressive-baseline",
        "usage": f"""```python
# In a clone of diffusers_text_nfdm: pip install -c constraints.txt -e .
from diffusers_text_nfdm import AutoregressivePipeline

pipe = AutoregressivePipeline.from_pretrained({json.dumps(repo)})
print(pipe({_request(config)}).texts)
```""",
        "architecture": f"transformer with {config.num_hidden_layers} layers of size {config.hidden_size}, MLPs of "
        f"size {config.intermediate_size}.",
        "likelihood": "The likelihood is exact: every token after START is counted, END included.",
    }


def _describe_masked(pipeline: MaskedDiffusionPipeline, repo: str) -> dict[str, str]:
    config = pipeline.model.config
    blocks = "the whole text at once" if config.block_size is None else f"in blocks of {config.block_size} tokens"
    return {
        "kind": "masked-diffusion-baseline",
        "usage": f"""```python
# In a clone of diffusers_text_nfdm: pip install -c constraints.txt -e .
from diffusers_text_nfdm import MaskedDiffusionPipeline

pipe = MaskedDiffusionPipeline.from_pretrained({json.dumps(repo)})
print(pipe({_request(config)}, num_inference_steps=64).texts)
```""",
        "architecture": f"two-stream trunk with {config.num_hidden_layers} layers of size {config.hidden_size}, MLPs "
        f"of size {config.intermediate_size}; {blocks}.",
        "likelihood": "The likelihood is an upper bound of the negative log-likelihood, not the likelihood itself.",
    }


DESCRIBE = {"autoregressive": _describe_autoregressive, "masked": _describe_masked}


def write_model_card(
    pipeline: NFDMTextPipeline | AutoregressivePipeline | MaskedDiffusionPipeline,
    folder: str | Path,
    *,
    title: str | None = None,
    repo: str | None = None,
    data: str | None = None,
    recipe: Mapping[str, object] | None = None,
    results: str | None = None,
    samples: Sequence[str] | None = None,
    license: str | None = None,
    language: str | None = None,
) -> Path:
    """Fill the template and write it as README.md.

    Without anything to record (`data`, `recipe`, `results`, `samples`) a card that is already there is kept.

    Args:
        data: what the model was trained on, as Markdown.
        recipe: the training settings by name.
        results: figures with their protocol, as Markdown.
        license, language: of the weights and the texts, for the metadata of the card. Without them it says nothing
            of either: they are the user's to choose.

    Names, settings and samples are shown as they are, whatever they hold; in `data` and `results`, which are Markdown,
    HTML and images do nothing.
    """
    path = Path(folder) / "README.md"
    if path.exists() and data is recipe is results is samples is None:
        return path
    model, config = pipeline.model, pipeline.model.config
    name = variant_name(config)
    parameters = sum(p.numel() for p in model.parameters())
    describe = DESCRIBE.get(config.model_type, _describe_diffusion)
    described = describe(pipeline, repo or "path/or/repo")
    architecture = (
        f"{parameters:,} parameters; vocabulary of {config.vocab_size:,} tokens, {config.max_length} positions, "
    )
    card = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        model_type=config.model_type,
        title=plain(" ".join(title.split())) if title else f"{name} for text",
        description=UNDEFORMED if is_undeformed(config) else DESCRIPTIONS.get(config.model_type, OTHER_MODEL),
        kind=described["kind"],
        terms="".join(
            f"{key}: {json.dumps(value)}\n" for key, value in (("license", license), ("language", language)) if value
        ),
        usage=described["usage"],
        likelihood=described["likelihood"],
        architecture=architecture + described["architecture"],
        data=_harmless(data) if data else UNKNOWN,
        recipe=UNKNOWN if not recipe else "\n".join(f"- `{key}`: {_code(value)}" for key, value in recipe.items()),
        results=_harmless(results) if results else UNKNOWN,
        samples=UNKNOWN if not samples else "\n\n".join(map(_quote, samples)),
    )
    path.write_text(card, encoding="utf-8")
    return path


def keep_model_card(
    pipeline: NFDMTextPipeline | AutoregressivePipeline | MaskedDiffusionPipeline,
    folder: str | Path,
    *,
    repo: str | None = None,
) -> None:
    """Give a saved pipeline the card of the one that its model was loaded from, if the weights are still the same.

    A card that is already in the folder stays. The card that came along changes in two places: its code loads `repo`,
    and it says where the scheduler is another one.
    """
    source, path = Path(pipeline.model.name_or_path), Path(folder) / "README.md"
    origin = source.parent
    came_along = (origin / "model_index.json").is_file() and (origin / "README.md").is_file()
    if path.exists() or not came_along or _weights(source) != _weights(path.parent / "model"):
        return
    card = (origin / "README.md").read_text(encoding="utf-8")
    if repo is not None:
        card = re.sub(r'(?<=Pipeline\.from_pretrained\()"[^"\n]*"', lambda _: json.dumps(repo), card)
    old, new = (
        json.loads((place / "model_index.json").read_text(encoding="utf-8")).get("scheduler")
        for place in (origin, path.parent)
    )
    if old != new:
        card += f"\nThe scheduler of this copy is `{new[1]}`. What the card says of samples is of `{old[1]}`.\n"
    path.write_text(card, encoding="utf-8")


def _weights(folder: Path) -> dict[str, str]:
    """Checksums of the weights in a folder, by file."""
    return {path.name: file_digest(path) for path in folder.glob("*.safetensors")}


def update_model_index(path: str | Path, model: str, dataset: str, results: Sequence[tuple[str, str, float]]) -> None:
    """Record results in the `model-index` of a card, which the Hub shows beside the model; the text of the card stays
    as it is.

    Args:
        path: the card.
        model: name of the model.
        dataset: name of the dataset.
        results: metric, name and value of each. A result of the same name on the same dataset is replaced, others are
            kept.
    """
    card = ModelCard.load(path)
    new = [
        EvalResult(
            task_type="text-generation",
            dataset_type=dataset,
            dataset_name=dataset,
            metric_type=metric,
            metric_name=name,
            metric_value=value,
        )
        for metric, name, value in results
    ]
    replaced = {(result.dataset_name, result.metric_name) for result in new}
    kept = [
        result for result in card.data.eval_results or [] if (result.dataset_name, result.metric_name) not in replaced
    ]
    card.data.model_name = card.data.model_name or model
    card.data.eval_results = kept + new
    card.save(path)
