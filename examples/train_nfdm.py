"""Train a text diffusion model with Accelerate.

    accelerate launch examples/train_nfdm.py                    # NFDM on the embedded stories, minutes on a laptop
    accelerate launch examples/train_nfdm.py --resume latest    # go on where the last run stopped
    accelerate launch examples/train_nfdm.py --config rocstories-parallel --dataset train.jsonl
    accelerate launch examples/train_nfdm.py --help

SIGTERM and SIGINT (Ctrl-C) end a run after the present step with a checkpoint; a second one, seconds later, at once.
The exit code of this script is 0 after a finished run, 1 after an error, 2 for wrong arguments and 3 where a run was
stopped before its end.
Where it is not 0 the launcher shows a traceback of its own behind our message, unless it is `accelerate launch
--quiet`.
"""

import sys

from diffusers_text_nfdm.training import run


if __name__ == "__main__":
    sys.exit(run(__doc__))
