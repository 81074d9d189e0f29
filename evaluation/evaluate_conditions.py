"""Measure how a pipeline continues stories, fills in sentences and words, and chooses endings, beside the truth.

    python evaluation/evaluate_conditions.py runs/run/pipeline --num_stories 500

The stories are of the embedded grammar and of a seed of their own. A completion counts if the whole text is a story of
the language. Of a model that was trained with conditions (`stories-conditional`) it measures how well they are obeyed.
"""

import argparse
import json

import torch

from diffusers_text_nfdm import NFDMTextPipeline
from diffusers_text_nfdm.baseline import AutoregressivePipeline, MaskedDiffusionPipeline
from diffusers_text_nfdm.files import output_file, write_file
from diffusers_text_nfdm.metrics.checkpoint import load_pipeline
from diffusers_text_nfdm.metrics.story_conditions import TASKS, complete_stories, obeyed_conditions, right_endings


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="folder or repository of a pipeline")
    parser.add_argument("--num_stories", type=int, default=500, help="stories of each task (default: 500)")
    parser.add_argument("--num_pairs", type=int, default=1000, help="pairs of endings (default: 1000)")
    parser.add_argument("--steps", type=int, help="steps of the scheduler (default: the pipeline's)")
    parser.add_argument("--min_p", type=float, help="(default: that of the pipeline's scheduler, 0 for a baseline)")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS, help="(default: all)")
    parser.add_argument(
        "--guidance_scale", type=float, nargs="+", default=[1.0], help="of a model with conditions (default: 1)"
    )
    parser.add_argument("--seed", type=int, default=0, help="(default: 0)")
    parser.add_argument("--output", type=output_file, help="JSON file to write")
    args = parser.parse_args(arguments)
    torch.set_flush_denormal(True)
    try:
        pipeline = load_pipeline(args.checkpoint, "cpu")
        results = {}
        if args.steps is not None and isinstance(pipeline, AutoregressivePipeline):
            raise ValueError("An autoregressive model takes a step for every token; leave `--steps` out.")
        options = {} if args.steps is None else {"num_inference_steps": args.steps}
        if args.min_p is not None:
            options["min_p"] = args.min_p
        if pipeline.model.config.condition_length:
            for scale in args.guidance_scale:
                guidance = {} if scale == 1 else {"guidance_scale": scale}
                if guidance and not isinstance(pipeline, NFDMTextPipeline):
                    raise ValueError("A baseline has no guidance; leave `--guidance_scale` out.")
                row = results[f"guidance {scale:g}"] = obeyed_conditions(
                    pipeline, args.num_stories, args.seed, **options, **guidance
                )
                shown = f"valid {row['validity']:6.1%}  obeyed {row['obeyed']:6.1%}  calls {row['calls']:.1f}"
                print(f"guidance {scale:<5g} {shown}")
            args.tasks, args.num_pairs = (), 0
        elif isinstance(pipeline, AutoregressivePipeline):
            # It continues, and does not fill in.
            args.tasks = [task for task in args.tasks if task == "continuation"]
        for task in args.tasks:
            whole = {}
            if isinstance(pipeline, MaskedDiffusionPipeline) and task != "continuation":
                # A block does not see what is known in later ones.
                whole["block_size"] = pipeline.model.config.max_length
            results[task] = complete_stories(pipeline, task, args.num_stories, args.seed, **options, **whole)
            valid, same, calls = (results[task][name] for name in ("validity", "same", "calls"))
            coverage, tested = (results[task][name] for name in ("coverage", "tested_choices"))
            choices = "" if coverage is None else f"  choices right {coverage:6.1%} of {tested}"
            print(f"{task:14s} valid {valid:6.1%}  the same {same:6.1%}  calls {calls:.1f}{choices}")
        if args.num_pairs:
            results["endings"] = right_endings(pipeline.model, pipeline.tokenizer, args.num_pairs, args.seed)
            print(
                f"{'endings':14s} right {results['endings']['preferred']:6.1%} of {results['endings']['pairs']} pairs"
            )
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if args.output is not None:
        write_file(args.output, json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
