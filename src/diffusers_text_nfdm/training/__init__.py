from .arguments import TrainingArguments
from .command_line import parse_arguments, run
from .recipe_files import recipe_names
from .token_links import fit_token_link
from .trainer import Trainer, train


__all__ = ["Trainer", "TrainingArguments", "fit_token_link", "parse_arguments", "recipe_names", "run", "train"]
