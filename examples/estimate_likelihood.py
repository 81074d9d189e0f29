"""The bound on the negative log-likelihood of texts under a trained pipeline, with its standard errors.

    python examples/estimate_likelihood.py path/or/repo
    python examples/estimate_likelihood.py path/or/repo --dataset valid.jsonl --texts 1000 --draws 16
    python examples/estimate_likelihood.py path/of/jumps --calls 8
    python examples/estimate_likelihood.py path/of/jumps --clean_stream
    python examples/estimate_likelihood.py path/or/repo --clock ramp:8 --by_place
    python examples/estimate_likelihood.py path/or/repo --clock shared --finish_time 0.75

With `--calls` it is the bound of what jumps write in so many calls, with `--clean_stream` the exact likelihood of what
they write when they are verified. With `--by_place` it is what tokens in motion cost beyond the clean stream, by their
place in the window, first those that settle first. With `--finish_time` it is that of texts that a joint decoder
decodes at this time.
Of the baselines it is the bound of masked diffusion, and the exact likelihood of an autoregressive model.
Without `--dataset` the texts are the test split of the embedded stories, whose true entropy is printed beneath.
"""

import argparse
from pathlib import Path


def output_file(text: str) -> Path:
    from diffusers_text_nfdm.files import output_file

    return output_file(text)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="folder or repository of a pipeline")
    parser.add_argument("--dataset", default="stories", help="'stories', a local file or folder, or a Hub dataset")
    parser.add_argument("--text_column", default="text", help="column that holds the text (default: text)")
    parser.add_argument("--condition_column", default="condition", help="that of a condition (default: condition)")
    parser.add_argument("--split", default="test", help="split of a dataset of several (default: test)")
    parser.add_argument("--texts", type=int, default=500, help="number of texts (default: 500)")
    parser.add_argument("--draws", type=int, default=8, help="draws of time and noise per text, even (default: 8)")
    parser.add_argument("--block_size", type=int, help="tokens of a block of masked diffusion (default: its own)")
    parser.add_argument("--clock", help="shared, ramp:WIDTH, random:WIDTH or blocks:SIZE (default: the model's own)")
    parser.add_argument("--finish_time", type=float, help="where a joint decoder decodes (default: nowhere)")
    parser.add_argument("--calls", type=int, help="those of jumps, for a model with jumps, instead of a clock")
    parser.add_argument("--clean_stream", action="store_true", help="the exact likelihood of the clean stream instead")
    parser.add_argument("--by_place", action="store_true", help="the excess over the clean stream, by place, instead")
    parser.add_argument("--seed", type=int, default=0, help="(default: 0)")
    parser.add_argument("--output", type=output_file, help="JSON file for the result and its protocol")
    parser.add_argument("--device", help="cpu, cuda, mps, ... (default: cuda where there is one)")
    arguments = parser.parse_args(argv)
    # `--help` does not wait for these.
    import torch

    from diffusers_text_nfdm import (
        estimate_likelihood,
        exact_likelihood,
        jump_likelihood,
        load_text_dataset,
        masked_likelihood,
        prepare_dataset,
    )
    from diffusers_text_nfdm.conditions import take_out_row
    from diffusers_text_nfdm.likelihood import window_excess
    from diffusers_text_nfdm.metrics.checkpoint import load_pipeline, pipeline_kind
    from diffusers_text_nfdm.stories import StoryGrammar

    torch.set_flush_denormal(True)
    try:
        pipeline = load_pipeline(arguments.checkpoint, arguments.device)
        length = pipeline.model.config.condition_length
        splits = load_text_dataset(
            arguments.dataset,
            column=arguments.text_column,
            condition_column=arguments.condition_column if length else None,
            validation_fraction=0,
        )
        # A single file is one split, whatever it is called.
        split = "train" if Path(arguments.dataset).is_file() else arguments.split
        if split not in splits:
            raise ValueError(f"`--split` is {split!r}; the dataset has {', '.join(splits)}.")
        texts = splits[split]
        texts = texts.select(range(min(arguments.texts, len(texts))))
        if pipeline.model.config.copied_slots:
            texts = texts.map(take_out_row, fn_kwargs={"slots": pipeline.model.config.copied_slots})
        prepared, report = prepare_dataset(
            texts, pipeline.tokenizer, pipeline.model.config.max_length, condition_length=length
        )
        draws = {"num_draws": arguments.draws, "seed": arguments.seed}
        diffusion = estimate_likelihood, {"clock": arguments.clock, "finish_time": arguments.finish_time, **draws}
        if arguments.calls is not None:
            diffusion = jump_likelihood, {"calls": arguments.calls, **draws}
        estimator, options = {
            "diffusion": diffusion,
            "masked": (masked_likelihood, {"block_size": arguments.block_size, **draws}),
            "ancestral": (exact_likelihood, {}),
        }[pipeline_kind(pipeline)]
        if arguments.clean_stream:
            estimator, options = exact_likelihood, {}
        for name in ("clock", "finish_time", "block_size", "calls"):
            if getattr(arguments, name) is not None and name not in options:
                beside = " with --calls" if "calls" in options else ""
                beside = " with --clean_stream" if arguments.clean_stream else beside
                raise ValueError(f"--{name} has no meaning for a {type(pipeline).__name__}{beside}.")
        if "calls" in options:
            options["num_inference_steps"] = options.pop("calls")
        if arguments.by_place:
            if options.pop("finish_time", None) is not None:
                raise ValueError("--by_place is for windows, which have no --finish_time.")
            if estimator is not estimate_likelihood or arguments.output is not None:
                raise ValueError("--by_place is for the bound of a diffusion model along a clock, without --output.")
            print(window_excess(pipeline.model, prepared[:]["input_ids"], **options, progress=True))
            return
        estimate = estimator(pipeline.model, **prepared[:], **options, progress=True)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(report)
    print(estimate)
    if arguments.dataset == "stories":
        grammar = StoryGrammar()
        entropy = grammar.entropy() - (grammar.condition_entropy() if length else 0)
        ratio = estimate.nats_per_story.value / entropy
        what = "the exact value" if estimator is exact_likelihood else "the bound"
        print(f"The truth beneath it: {entropy:.4f} nats per story; {what} is {ratio:.3f} times that.")
    if arguments.output is not None:
        estimate.save(arguments.output)


if __name__ == "__main__":
    main()
