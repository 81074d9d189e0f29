"""What the paper's figures show, of trained checkpoints.

    python evaluation/figures.py runs/tables-tiny --output runs/figures

A checkpoint is the folder of a pipeline, or the output folder of tables.py with all of its runs. It writes

* `transformations.png`: cosine similarity of successive transformations, the NFDM models side by side;
* `gamma-<name>.png`: γ and its rate by token, of MuLAN and Diffusion-LM, and what MuLAN's context says about it;
* `volatility-<name>.png`: g²(t);
* `trajectory-<name>.png`: how a sampled text came about;
* `claims.md`: what the paper says about its figures, and whether it is so of these models. It is printed, too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from figure_claims import claims_table
from torch import Tensor

from diffusers_text_nfdm.data import load_text_dataset, prepare_dataset
from diffusers_text_nfdm.files import output_folder, write_file
from diffusers_text_nfdm.metrics.checkpoint import load_pipeline, pipeline_kind
from diffusers_text_nfdm.metrics.sampling import DIFFUSION, Sampling
from diffusers_text_nfdm.pipelines import NFDMTextPipeline
from diffusers_text_nfdm.plots.process import plot_gamma, plot_transformations, plot_volatility
from diffusers_text_nfdm.plots.trajectory import plot_trajectory
from diffusers_text_nfdm.stories import load_stories


def find_checkpoints(folders: Sequence[str]) -> dict[str, Path]:
    """Pipelines by name: a folder that is one has its own, a run the name of its folder."""
    found = {}
    for folder in map(Path, folders):
        runs = [folder] if (folder / "model_index.json").is_file() else sorted(folder.glob("runs/*/pipeline"))
        if not runs:
            raise ValueError(f"In {str(folder)!r} there is neither a pipeline nor a folder runs with pipelines.")
        found.update({run.absolute().parent.name if run.name == "pipeline" else run.name: run for run in runs})
    return found


def validation_ids(pipeline: NFDMTextPipeline, dataset: str, number: int) -> Tensor:
    """Token ids of validation texts, `(number, max_length)`."""
    if dataset == "stories":
        texts = load_stories(num_train=1, num_validation=number, num_test=0)["validation"]
    else:
        texts = load_text_dataset(dataset)["validation"]
        texts = texts.select(range(min(number, len(texts))))
    rows, _ = prepare_dataset(texts, pipeline.tokenizer, pipeline.model.config.max_length)
    return torch.as_tensor(rows["input_ids"][:])


def draw(
    checkpoints: dict[str, Path],
    output: Path,
    dataset: str = "stories",
    num_texts: int = 64,
    sampling: str = "star:64",
) -> list[Path]:
    """All pictures of the diffusion models among the checkpoints, and last the claims; the paths that were written."""
    output.mkdir(parents=True, exist_ok=True)
    way, models, paths = Sampling.parse(sampling), {}, []
    if way.kind != DIFFUSION:
        raise ValueError(f"`sampling` is {sampling!r}; the figures are of diffusion models.")

    def save(figure, name: str, model: str = "") -> None:
        if model:
            figure.suptitle(model)
        paths.append(output / f"{name}.png")
        figure.savefig(paths[-1], dpi=130)

    for name, folder in checkpoints.items():
        pipeline = load_pipeline(folder)
        if pipeline_kind(pipeline) != DIFFUSION:
            continue
        ids = validation_ids(pipeline, dataset, num_texts)
        models[name] = (pipeline.model, ids)
        if hasattr(pipeline.model.forward_process, "gamma"):
            save(plot_gamma(pipeline.model, ids), f"gamma-{name}", name)
        save(plot_volatility(pipeline.model, ids, squared=True), f"volatility-{name}", name)
        generator = torch.Generator(pipeline.model.device).manual_seed(0)
        made = pipeline(num_samples=1, generator=generator, return_trajectory=True, **way.prepare(pipeline))
        save(plot_trajectory(made, pipeline.tokenizer), f"trajectory-{name}")
    networks = {name: getattr(model.forward_process, "network", None) for name, (model, _) in models.items()}
    deformed = {name: models[name] for name, network in networks.items() if network is not None}
    if deformed:
        save(plot_transformations(deformed), "transformations")
    paths.append(output / "claims.md")
    write_file(paths[-1], claims_table(models))
    return paths


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="+", help="folders of pipelines, or output folders of tables.py")
    parser.add_argument("--output", type=output_folder, default="figures", help="(default: figures)")
    parser.add_argument("--dataset", default="stories", help="as in evaluate_nfdm.py (default: stories)")
    parser.add_argument("--num_texts", type=int, default=64, help="validation texts (default: 64)")
    parser.add_argument("--sampling", default="star:64", help="of the trajectories (default: star:64)")
    args = parser.parse_args(argv)
    try:
        paths = draw(find_checkpoints(args.checkpoints), args.output, args.dataset, args.num_texts, args.sampling)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("\n".join(map(str, paths)) + "\n\n" + paths[-1].read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
