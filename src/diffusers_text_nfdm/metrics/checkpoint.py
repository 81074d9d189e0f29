"""Loading a checkpoint of any kind, and telling one from another."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch

from ..pipelines import NFDMTextPipeline
from ..pipelines.hub import check_json_files
from .sampling import ANCESTRAL, DIFFUSION, MASKED


PIPELINES = {
    "NFDMTextPipeline": DIFFUSION,
    "AutoregressivePipeline": ANCESTRAL,
    "MaskedDiffusionPipeline": MASKED,
}
WEIGHTS = ("*.json", "*.safetensors", "*.txt", "*.model")


def checkpoint_folder(checkpoint: str | Path) -> Path:
    """The local folder of a checkpoint; one on the Hub is fetched."""
    path = Path(checkpoint)
    if not path.is_dir():
        path = Path(NFDMTextPipeline.download(str(checkpoint)))
    if not (path / "model_index.json").is_file():
        raise ValueError(f"The folder {str(path)!r} is no pipeline checkpoint: it has no model_index.json.")
    check_json_files(path)
    return path


def load_pipeline(checkpoint: str | Path, device: str | torch.device | None = None):
    """The pipeline of the class that model_index.json names."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"The device {str(device)!r} cannot be used: {str(error).splitlines()[0]}") from error
    folder = checkpoint_folder(checkpoint)
    name = json.loads((folder / "model_index.json").read_text(encoding="utf-8")).get("_class_name")
    if name not in PIPELINES:
        raise ValueError(
            f"The checkpoint {str(checkpoint)!r} is a {name!r}; it must be one of {', '.join(map(repr, PIPELINES))}."
        )
    from .. import baseline

    pipeline_class = getattr(baseline, name, NFDMTextPipeline)
    pipeline = pipeline_class.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline.to(device)


def pipeline_kind(pipeline) -> str:
    """The kind of samplings that the pipeline has: see `Sampling.kind`."""
    return PIPELINES[type(pipeline).__name__]


def checkpoint_fingerprint(folder: Path) -> str:
    """A hash of model and tokenizer.

    The scheduler does not count, since a sampling brings its own, nor does the card, which results go into.
    """
    digest = hashlib.sha256()
    for part in ("model", "tokenizer"):
        files = sorted(path for pattern in WEIGHTS for path in (folder / part).rglob(pattern))
        for path in files:
            digest.update(str(path.relative_to(folder)).encode())
            with open(path, "rb") as file:
                while block := file.read(2**20):
                    digest.update(block)
    return digest.hexdigest()[:16]
