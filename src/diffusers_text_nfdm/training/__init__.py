from .arguments import TrainingArguments, parse_arguments, recipe_names
from .trainer import Trainer, train


__all__ = ["Trainer", "TrainingArguments", "parse_arguments", "recipe_names", "train"]
