"""Train a text diffusion model with Accelerate.

    accelerate launch examples/train_nfdm.py                                  # NFDM on the embedded stories, minutes
    on a laptop accelerate launch examples/train_nfdm.py --resume latest                  # go on where the last run
    stopped accelerate launch examples/train_nfdm.py --config rocstories-nfdm --dataset train.jsonl --validation_file
    valid.jsonl accelerate launch examples/train_nfdm.py --help

SIGTERM and SIGINT (Ctrl-C) end a run after the present step with a checkpoint; a second one, seconds later, at once.
The exit code of this script is 0 after a finished run, 1 after an error, 2 for wrong arguments and 3 where a run was
stopped before its end.
"""

import sys

import torch
from transformers.utils import logging

from diffusers_text_nfdm.training import parse_arguments, train


def main() -> int:
    arguments = parse_arguments(description=__doc__)
    if arguments is None:
        return 0
    # Softmax over a vocabulary makes denormal numbers, which are slow on CPUs.
    torch.set_flush_denormal(True)
    logging.disable_progress_bar()
    try:
        summary = train(arguments)
    except (ValueError, OSError, FloatingPointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0 if summary is not None else 3


if __name__ == "__main__":
    sys.exit(main())
