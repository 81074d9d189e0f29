"""Train a text diffusion model with Accelerate.

    accelerate launch examples/train_nfdm.py                                  # NFDM on the embedded stories, minutes on a laptop
    accelerate launch examples/train_nfdm.py --config rocstories-nfdm --dataset train.jsonl --validation_file valid.jsonl
    accelerate launch examples/train_nfdm.py --help
"""

import sys

import torch

from diffusers_text_nfdm.training import parse_arguments, train


def main() -> int:
    # Softmax over a vocabulary makes denormal numbers, which are slow on CPUs.
    torch.set_flush_denormal(True)
    arguments = parse_arguments(description=__doc__)
    if arguments is None:
        return 0
    try:
        summary = train(arguments)
    except (ValueError, OSError, FloatingPointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0 if summary is not None else 3


if __name__ == "__main__":
    sys.exit(main())
