"""Samples and scores of a checkpoint under a protocol, with any number of sampling methods.

    python evaluation/evaluate_nfdm.py runs/run/pipeline --judge none --num_samples 200 --num_repeats 2
    python evaluation/evaluate_nfdm.py path/or/repo --dataset train.jsonl --validation_file valid.jsonl \\
        --samplers star:64 chain:64:noise_fraction=0.5 sde:256 ode:32:method=heun --judge gpt2-large

The output folder gets one file of samples and one of scores for each sampler and seed, `results.json` and
`results.md`; the card of a local checkpoint gets its `model-index`. Started again, the command makes only what is
missing.
"""

import argparse
import sys
from pathlib import Path

import torch

from diffusers_text_nfdm.files import output_folder
from diffusers_text_nfdm.metrics import PROTOCOLS, Protocol, evaluate_checkpoint, get_protocol, markdown_report
from diffusers_text_nfdm.metrics.protocol import DETOKENISATIONS


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="folder or repository of a pipeline")
    parser.add_argument("--dataset", default="stories", help="'stories', a file or folder, or a Hub dataset")
    parser.add_argument(
        "--validation_file", help="file of held-out texts, where the dataset is a file of training texts"
    )
    parser.add_argument("--text_column", default="text", help="column that holds the text (default: text)")
    parser.add_argument("--output_dir", type=output_folder, help="(default: evaluation_results/<checkpoint>)")
    parser.add_argument(
        "--samplers",
        nargs="+",
        metavar="METHOD:STEPS[:OPTION=VALUE...]",
        help="star:64, chain:64:noise_fraction=0.5, sde:256, ode:32:method=heun; masked:64:remasking=random for "
        "masked diffusion, ancestral for the autoregressive baseline (default: star:64, masked:64 or ancestral)",
    )
    parser.add_argument("--protocol", choices=PROTOCOLS, default="ld4lg", help="(default: ld4lg)")
    parser.add_argument(
        "--num_samples", type=int, help="make the protocol smaller; its name says so, as of all changes"
    )
    parser.add_argument("--num_repeats", type=int, help="number of seeds")
    parser.add_argument("--judge", help="Hub name, folder, .gguf file, 'smollm2' or 'none' (default: the protocol's)")
    parser.add_argument(
        "--detokenisation", choices=DETOKENISATIONS, help="form of real texts (default: the protocol's)"
    )
    parser.add_argument("--likelihood_texts", type=int, help="real texts for the likelihood, 0 for none")
    parser.add_argument("--batch_size", type=int, default=64, help="texts sampled at a time (default: 64)")
    parser.add_argument("--judge_batch_size", type=int, default=16, help="texts judged at a time (default: 16)")
    parser.add_argument(
        "--judge_cache", type=Path, help="folder for the judge's log-probabilities, to share between runs"
    )
    parser.add_argument("--device", help="(default: cuda if there is one, else cpu)")
    parser.add_argument("--no_card", action="store_true", help="leave the card of the checkpoint as it is")
    parser.add_argument("--no_progress", action="store_true", help="show no progress bars")
    return parser


def chosen_protocol(args: argparse.Namespace) -> Protocol:
    protocol = get_protocol(args.protocol).resized(args.num_samples, args.num_repeats)
    changes = {name: getattr(args, name) for name in ("detokenisation", "likelihood_texts")}
    changes = {name: value for name, value in changes.items() if value is not None}
    if args.judge is not None:
        changes["judge"] = None if args.judge == "none" else args.judge
    return protocol.changed(**changes)


def main(arguments: list[str] | None = None) -> None:
    parser = build_parser()
    args = parser.parse_args(arguments)
    # Denormal numbers slow these networks down on a CPU.
    torch.set_flush_denormal(True)
    dataset = args.dataset
    if args.validation_file is not None:
        dataset = {"train": args.dataset, "validation": args.validation_file}
    output = args.output_dir or Path("evaluation_results") / Path(args.checkpoint.rstrip("/")).name
    try:
        result = evaluate_checkpoint(
            args.checkpoint,
            dataset,
            output,
            chosen_protocol(args),
            args.samplers,
            column=args.text_column,
            batch_size=args.batch_size,
            judge_batch_size=args.judge_batch_size,
            judge_cache=args.judge_cache,
            device=args.device,
            update_card=not args.no_card,
            progress=not args.no_progress,
        )
    except (ValueError, OSError, ImportError) as error:
        parser.error(str(error))
    print(markdown_report(result))
    print(f"Results: {output}", file=sys.stderr)


if __name__ == "__main__":
    main()
