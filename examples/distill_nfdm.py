"""Distil a teacher into a student that jumps: windows of tokens in one call each, by the noise that decides them.

    accelerate launch examples/distill_nfdm.py                                        # checkpoints/nfdm-stories
    accelerate launch examples/distill_nfdm.py --model_name_or_path runs/run/pipeline
    accelerate launch examples/distill_nfdm.py --resume latest

It is a training run as any other, with the recipe `stories-jumps` unless `--config` says otherwise; a teacher of
another size needs its own `--model_config`. The teacher stays as it is. The student is an ordinary checkpoint, and its
scheduler knows its jumps (docs/few_steps.md).
"""

import sys

from diffusers_text_nfdm.training import run


if __name__ == "__main__":
    sys.exit(run(__doc__, default_recipe="stories-jumps"))
