from .arguments import TrainingArguments
from .command_line import parse_arguments, run
from .recipe_files import recipe_names
from .trainer import Trainer, train


__all__ = ["Trainer", "TrainingArguments", "parse_arguments", "recipe_names", "run", "train"]
