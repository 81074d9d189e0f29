"""Write texts with a trained pipeline, from a folder or from a repository of the Hub.

    python examples/generate.py path/or/repo --num_samples 4 --steps 64
    python examples/generate.py path/or/repo --prompt "One windy Friday, Leo"
    python examples/generate.py path/or/repo --prompt "One windy Friday, [MASK] played the tuba."
    python examples/generate.py path/or/repo --scheduler jump --steps 8
    python examples/generate.py path/or/repo --watch
    python examples/generate.py path/or/repo --scheduler reverse-ode --method heun --trajectory picture.png
    python examples/generate.py path/or/repo --num_samples 1 --trajectory film.gif
    python examples/generate.py path/of/masked/diffusion --steps 32 --remasking random --block_size 8

The texts are printed, one a line; with --watch a terminal shows how each comes about, call by call: given words bold,
words that stay green, drafts dim. With the same seed, text i is the same however many are asked for and in whatever
batches.
"""

import argparse
import json
import sys
from importlib.util import find_spec
from pathlib import Path


# Our package and torch are imported where they are used: `--help` does not wait for them.
SCHEDULERS = {
    "markov-chain": ("MarkovChainScheduler", "noise_fraction"),
    "reverse-sde": ("ReverseSDEScheduler", "volatility_scale"),
    "reverse-ode": ("ReverseODEScheduler", "method"),
    "refinement": ("RefinementScheduler", "entropy_budget"),
    "jump": ("JumpScheduler", "jump_length"),
    "draft-verify": ("DraftVerifyScheduler", None),
}
PICTURES = (".png", ".pdf", ".svg", ".gif")
# How tokens are drawn, for all of them.
CHOICE = ("temperature", "top_k", "top_p", "min_p", "contrast")
# Options that are none of the pipeline's call.
OWN = ("scheduler", "trajectory", "watch")
# What only some pipelines have, by their kind.
OPTIONS = {
    "diffusion": (
        "prompt",
        "condition",
        "guidance_scale",
        "gen_length",
        "max_gap_length",
        "clock",
        "scheduler",
        "confidence_threshold",
        "trajectory",
        "watch",
    ),
    "masked": ("prompt", "condition", "gen_length", "max_gap_length", "remasking", "block_size"),
    "ancestral": ("prompt", "condition"),
}


def fraction(text: str) -> float | str:
    return text if text == "snr" else float(text)


def output_file(text: str) -> Path:
    from diffusers_text_nfdm.files import output_file

    return output_file(text)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="folder or repository of a pipeline")
    parser.add_argument(
        "--prompt",
        help="a beginning, which is continued, or a text with [MASK] for each token to fill in, or one [GAP] of "
        "unknown length",
    )
    parser.add_argument("--condition", help="what the texts are to obey, for a model with conditions")
    parser.add_argument("--guidance_scale", type=float, help="above 1 a condition is obeyed more (default: 1)")
    parser.add_argument("--gen_length", type=int, help="tokens that continue a beginning (default: left to the model)")
    parser.add_argument("--max_gap_length", type=int, help="the most tokens that a gap is tried with (default: 16)")
    parser.add_argument("--num_samples", type=int, default=4, help="number of texts (default: 4)")
    parser.add_argument(
        "--steps",
        type=int,
        help="steps of the scheduler (default: 64, of reverse-sde and reverse-ode 512; of one that writes tokens, as "
        "many as it needs)",
    )
    parser.add_argument("--clock", help="shared, ramp:WIDTH, random:WIDTH or blocks:SIZE (default: the model's own)")
    parser.add_argument("--scheduler", choices=SCHEDULERS, help="default: the checkpoint's own")
    parser.add_argument("--noise_fraction", type=fraction, help="share of new noise of markov-chain: 0 to 1, or snr")
    parser.add_argument("--volatility_scale", type=float, help="factor on g of reverse-sde")
    parser.add_argument("--method", choices=("euler", "heun", "adaptive"), help="method of reverse-ode")
    parser.add_argument("--entropy_budget", type=float, help="nats that refinement may be off in a step")
    parser.add_argument("--jump_length", type=int, help="tokens that jump draws ahead of what is verified")
    parser.add_argument(
        "--confidence_threshold",
        type=float,
        help="end a text when its tokens stay the same and each is more probable than this",
    )
    parser.add_argument("--remasking", choices=("confidence", "random"), help="tokens that masked diffusion keeps")
    parser.add_argument("--block_size", type=int, help="tokens of a block of masked diffusion (default: its own)")
    parser.add_argument("--seed", type=int, default=0, help="(default: 0)")
    parser.add_argument("--batch_size", type=int, default=64, help="texts made at a time (default: 64)")
    parser.add_argument(
        "--temperature",
        type=float,
        help="0 takes the most probable words (default: the scheduler's; of one that draws none 0, of a baseline 1)",
    )
    parser.add_argument("--top_k", type=int, help="draw among the k most probable words")
    parser.add_argument("--top_p", type=float, help="draw among the fewest words with this probability")
    parser.add_argument("--min_p", type=float, help="draw no word below this share of the largest probability")
    parser.add_argument("--contrast", type=float, help="favour rare words among those that are left")
    parser.add_argument("--output", type=output_file, help="JSON Lines file to write: text, seed, index")
    parser.add_argument(
        "--trajectory",
        type=output_file,
        help="picture (.png, .pdf, .svg) or film (.gif) of how the first text came about",
    )
    parser.add_argument(
        "--watch",
        type=float,
        nargs="?",
        const=0.1,
        metavar="SECONDS",
        help="show the texts in the terminal while they are written, each call for this long (default: 0.1)",
    )
    parser.add_argument("--compile", action="store_true", help="torch.compile the network: for many texts")
    parser.add_argument("--device", help="cpu, cuda, mps, ... (default: cuda where there is one)")
    return parser


def check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """What argparse cannot say by itself, before any work is done."""
    for name, (_, option) in SCHEDULERS.items():
        if option and getattr(args, option) is not None and args.scheduler != name:
            parser.error(f"--{option} needs --scheduler {name}")
    for path in (args.output, args.trajectory):
        if path is not None and not path.absolute().parent.is_dir():
            parser.error(f"there is no folder {path.parent} to write {path.name} into")
    if args.trajectory is not None and find_spec("matplotlib") is None:
        parser.error("--trajectory needs matplotlib: pip install diffusers_text_nfdm[demo]")
    if args.trajectory is not None and args.trajectory.suffix.lower() not in PICTURES:
        parser.error(f"--trajectory {args.trajectory} must end in one of {', '.join(PICTURES)}")


def load(args: argparse.Namespace):
    import diffusers_text_nfdm
    from diffusers_text_nfdm.metrics.checkpoint import load_pipeline, pipeline_kind

    pipe = load_pipeline(args.checkpoint, args.device)
    pipe.set_progress_bar_config(disable=False)
    for name in sorted({name for names in OPTIONS.values() for name in names}):
        if getattr(args, name) is not None and name not in OPTIONS[pipeline_kind(pipe)]:
            raise ValueError(f"--{name} has no meaning for a {type(pipe).__name__}")
    if args.scheduler is not None:
        name, option = SCHEDULERS[args.scheduler]
        scheduler = getattr(diffusers_text_nfdm, name)
        value = option and getattr(args, option)
        pipe.scheduler = scheduler.from_config(pipe.scheduler.config, **({} if value is None else {option: value}))
    if args.compile:
        from diffusers_text_nfdm.networks.compilation import compile_layers

        compile_layers(pipe.model)
    return pipe


def call_options(args: argparse.Namespace, pipe) -> dict:
    """What the pipeline is called with, besides the number of texts and the generator."""
    from diffusers_text_nfdm.metrics.checkpoint import pipeline_kind

    kind = pipeline_kind(pipe)
    names = [*CHOICE, *(name for name in OPTIONS[kind] if name not in OWN)]
    options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if kind != "ancestral" and args.steps is not None:
        options["num_inference_steps"] = args.steps
    if args.trajectory is not None:
        options["return_trajectory"] = True
    return options


def write(args: argparse.Namespace, pipe) -> list:
    """Write the texts and print them. Returns outputs: one of all texts, or one of each that was watched."""
    import torch

    from diffusers_text_nfdm.pipelines.live_text import LiveText
    from diffusers_text_nfdm.pipelines.samples import check_samples, sample_generators

    options, generator = call_options(args, pipe), torch.Generator().manual_seed(args.seed)
    if args.watch is None or not sys.stdout.isatty():
        output = pipe(num_samples=args.num_samples, batch_size=args.batch_size, generator=generator, **options)
        print("\n".join(output.texts))
        return [output]
    check_samples(args.num_samples, args.batch_size, generator)
    pipe.set_progress_bar_config(disable=True)
    live, outputs = LiveText(args.condition or "", args.watch), []
    options |= {"callback_on_step_end": live, "callback_on_step_end_tensor_inputs": live.tensor_inputs}
    for one in sample_generators(args.num_samples, generator):
        try:
            outputs.append(pipe(num_samples=1, batch_size=1, generator=[one], **options))
        finally:
            live.clear()
        print(outputs[-1].texts[0])
    return outputs


def main(arguments: list[str] | None = None) -> None:
    parser = build_parser()
    args = parser.parse_args(arguments)
    check(parser, args)
    import torch

    from diffusers_text_nfdm.files import write_file

    # Denormal numbers slow these networks down on a CPU.
    torch.set_flush_denormal(True)
    try:
        pipe = load(args)
        outputs = write(args, pipe)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if args.output is not None:
        texts = [text for output in outputs for text in output.texts]
        lines = ({"text": text, "seed": args.seed, "index": index} for index, text in enumerate(texts))
        write_file(args.output, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    if args.trajectory is not None:
        if args.trajectory.suffix.lower() == ".gif":
            from diffusers_text_nfdm.plots.film import film_trajectory

            film_trajectory(outputs[0], pipe.tokenizer, args.trajectory)
        else:
            from diffusers_text_nfdm.plots.trajectory import plot_trajectory

            plot_trajectory(outputs[0], pipe.tokenizer).savefig(args.trajectory, dpi=160)


if __name__ == "__main__":
    main()
