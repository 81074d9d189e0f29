"""What a run starts from: texts as token ids, and the model."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import AddedToken, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..baseline import AutoregressiveModel, MaskedDiffusionConfig, MaskedDiffusionModel
from ..clocks import make_clock
from ..conditions import placeholder, spread, take_out_row, text_tokens
from ..data import load_text_dataset, prepare_dataset
from ..metrics.checkpoint import load_pipeline
from ..models import (
    DiffusionLMModel,
    MuLANModel,
    NFDMModel,
    TextDiffusionConfig,
    TextDiffusionModel,
    evaluation_mode,
)
from ..models.token_choice import behind_end
from ..networks.cooccurrence import cooccurrence_embeddings
from ..subwords import train_subword_tokenizer
from ..tokenization import WordTokenizer, forget_origin, special_ids
from .arguments import CONFIGS, TrainingArguments
from .prototypes import fit_prototypes


if TYPE_CHECKING:
    from datasets import Dataset


MODELS = {
    model.config_class.model_type: model
    for model in (NFDMModel, MuLANModel, DiffusionLMModel, AutoregressiveModel, MaskedDiffusionModel)
}
# What the configuration of a run may have otherwise than that of the checkpoint it starts from.
FREE_OF_CHECKPOINT = (
    "clock", "trained_clocks", "trained_block_sizes", "jumps", "lattice_candidates", "num_prototypes", "joint_decoder",
    "token_link", "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "time_sampler", "objective",
    "dtype", "architectures", "transformers_version",
)  # fmt: skip
# The name of a tokenizer that is trained from the data.
SUBWORD = "subword"
# Enough texts for a vocabulary, where they come as a stream.
VOCABULARY_TEXTS = 100_000
# Enough texts for the statistics of neighbouring words.
COOCCURRENCE_TEXTS = 50_000
# Evaluations that start the learned density of the times.
TIMES_PER_BUCKET = 4


class TrainingData:
    """Training and validation texts, prepared with their tokenizer.

    Args:
        arguments: the settings of the run.
        tokenizer_folder: folder of the tokenizer of a run that is continued.

    Attributes:
        start: the pipeline whose weights training starts from, `None` for a model of its own or a run that is
            continued.
        texts: the raw splits.
        tokenizer: the tokenizer, built from the training texts unless one is given.
        train: the training texts as token ids.
        reports: what became of each split, `None` for a stream.
        mean_tokens, unknown_share: real tokens per text and their share of UNK.
        fingerprint: a hash of all rows; of a stream, of the validation texts that are read beforehand.
    """

    def __init__(self, arguments: TrainingArguments, tokenizer_folder: Path | None = None):
        self.arguments = arguments
        source = arguments.dataset
        if arguments.validation_file is not None:
            source = {"train": arguments.dataset, "validation": arguments.validation_file}
        raw = load_text_dataset(
            source,
            config_name=arguments.dataset_config,
            column=arguments.text_column,
            condition_column=arguments.condition_column,
            streaming=arguments.streaming,
            validation_fraction=arguments.validation_fraction,
            seed=arguments.seed,
        )
        if "validation" not in raw:
            raise ValueError(
                f"The dataset {arguments.dataset!r} has the splits {list(raw)}; training needs a validation split too."
            )
        self.start = None
        if arguments.model_name_or_path is not None and tokenizer_folder is None:
            self.start = load_pipeline(arguments.model_name_or_path, "cpu")
        self.texts = type(raw)({split: raw[split] for split in ("train", "validation")})
        if arguments.copied_slots:
            self.texts = self.texts.map(take_out_row, fn_kwargs={"slots": arguments.copied_slots})
        self.tokenizer = forget_origin(self._load_tokenizer(tokenizer_folder))
        prepared, self.reports = prepare_dataset(
            self.texts, self.tokenizer, arguments.max_length, condition_length=arguments.condition_length
        )
        self.train, self._validation = prepared["train"], prepared["validation"]
        if arguments.streaming:
            self._read_streamed_validation()
        elif len(self.train) < arguments.batch_size:
            raise ValueError(
                f"`batch_size` is {arguments.batch_size}, but there are only {len(self.train)} training texts."
            )
        else:
            self.mean_tokens = self.reports["train"].mean_tokens
            self.unknown_share = self.reports["train"].unknown_share
        self.fingerprint = self._fingerprint()

    def validation_rows(self, num_texts: int) -> dict[str, torch.Tensor]:
        """`input_ids`, `num_tokens` and `num_chars` of the first validation texts."""
        if isinstance(self._validation, dict):
            return {key: values[:num_texts] for key, values in self._validation.items()}
        return self._validation[:num_texts]

    def conditions(self, num_texts: int) -> dict[str, torch.Tensor]:
        """What a pipeline is given to write as many texts: conditions of the validation texts, one after another;
        nothing where there are none.
        """
        length = self.arguments.condition_length
        if not length:
            return {}
        ids = self.validation_rows(num_texts)["input_ids"].long()
        ids = ids.repeat(-(-num_texts // len(ids)), 1)[:num_texts]
        return {"input_ids": ids, "known": torch.arange(ids.shape[1]).expand(ids.shape) <= length}

    def count_copies(self, sequences: torch.Tensor) -> int:
        """How many of the token sequences `(samples, max_length)` are training texts, up to END, whatever their
        condition.
        """
        length = self.arguments.condition_length
        _, end, pad = special_ids(self.tokenizer)
        sequences = text_tokens(sequences.long(), length).clone()
        sequences[behind_end(sequences, end)] = pad
        rows = {
            row.tobytes()
            for batch in self.train_ids().iter(batch_size=10_000)
            for row in text_tokens(batch["input_ids"], length).numpy()
        }
        return sum(row.tobytes() in rows for row in sequences.numpy())

    def train_ids(self) -> Dataset:
        """The training texts' token ids alone."""
        return self.train.select_columns(["input_ids"])

    def _fingerprint(self) -> str:
        digest = hashlib.sha256()
        for split in (self._validation,) if self.arguments.streaming else (self.train, self._validation):
            for batch in [split] if isinstance(split, dict) else split.iter(batch_size=10_000):
                for name in sorted(batch):
                    digest.update(batch[name].numpy().tobytes())
        return digest.hexdigest()

    def _load_tokenizer(self, folder: Path | None) -> PreTrainedTokenizerBase:
        arguments, train = self.arguments, self.texts["train"]
        if folder is not None:
            try:
                config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
                words = config.get("tokenizer_class") == WordTokenizer.__name__
                return (WordTokenizer if words else AutoTokenizer).from_pretrained(folder)
            # The tokenizers library raises no narrower one.
            except Exception as error:
                raise ValueError(f"The run's tokenizer in {folder} cannot be read: {error}.") from error
        if self.start is not None and not arguments.grow_vocabulary:
            return self.start.tokenizer
        # Each is one token, so that it can be kept out of a text.
        placeholders = [placeholder(slot) for slot in arguments.copied_slots]
        if arguments.tokenizer not in (None, SUBWORD):
            tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
            tokenizer.add_tokens([AddedToken(word, normalized=False) for word in placeholders])
            return tokenizer
        rows = train.take(VOCABULARY_TEXTS) if arguments.streaming else train
        texts = (row["text"] for row in rows)
        if arguments.condition_column is not None:
            texts = itertools.chain(texts, (spread(row["condition"]) for row in rows))
        if self.start is not None:
            tokenizer = self.start.tokenizer
            if not isinstance(tokenizer, WordTokenizer):
                raise ValueError(
                    f"`grow_vocabulary` is for a WordTokenizer; the checkpoint has a {type(tokenizer).__name__}."
                )
            return tokenizer.grown(texts, arguments.min_word_count)
        if arguments.tokenizer == SUBWORD:
            return train_subword_tokenizer(texts, arguments.vocab_size, arguments.max_length, placeholders)
        return WordTokenizer.from_texts(texts, arguments.min_word_count, arguments.max_length)

    def _read_streamed_validation(self) -> None:
        rows = list(self._validation.take(2 * self.arguments.evaluation_texts))
        if not rows:
            raise ValueError(f"The validation split of {self.arguments.dataset!r} has no texts.")
        self._validation = {key: torch.stack([torch.as_tensor(row[key]) for row in rows]) for key in rows[0]}
        # A stream is not counted beforehand: its validation texts stand for it.
        num_tokens = self._validation["num_tokens"].double()
        unk = -1 if self.tokenizer.unk_token_id is None else self.tokenizer.unk_token_id
        unknown = (self._validation["input_ids"] == unk).sum()
        self.mean_tokens, self.unknown_share = num_tokens.mean().item(), (unknown / num_tokens.sum()).item()


def build_model(arguments: TrainingArguments, data: TrainingData) -> PreTrainedModel:
    """The model of the settings for the data's vocabulary, with what it takes from the training texts."""
    tokenizer = data.tokenizer
    start, end, pad = special_ids(tokenizer)
    config = CONFIGS[arguments.model_type](
        vocab_size=len(tokenizer),
        max_length=arguments.max_length,
        condition_length=arguments.condition_length,
        condition_dropout=arguments.condition_dropout,
        copied_slots=arguments.copied_slots or None,
        pad_token_id=pad,
        bos_token_id=start,
        eos_token_id=end,
        **arguments.model_config,
    )
    if isinstance(config, TextDiffusionConfig):
        # Steps on the bound follow the own one.
        config.trained_clocks = [*arguments.clocks] + [config.clock] * (config.clock not in [*arguments.clocks])
    if isinstance(config, MaskedDiffusionConfig):
        sizes = [make_clock(clock, arguments.max_length).block_size for clock in arguments.clocks]
        config.trained_block_sizes = list(dict.fromkeys(sizes)) or [config.block_size]
    model = MODELS[arguments.model_type](config)
    # A predicted embedding has no logits that could start at the frequencies.
    embedding = isinstance(config, TextDiffusionConfig) and config.prediction_type == "embedding"
    if data.start is not None:
        if arguments.grow_vocabulary and not embedding:
            # New words start as frequent as they are.
            model.set_token_frequencies(_token_counts(data.train_ids(), len(tokenizer), arguments.condition_length))
        copy_weights(data.start.model, model, arguments.grow_vocabulary)
    elif not arguments.streaming:
        ids = data.train_ids()
        if not embedding:
            model.set_token_frequencies(_token_counts(ids, len(tokenizer), arguments.condition_length))
        if arguments.cooccurrence_embeddings:
            some = ids[: min(len(ids), COOCCURRENCE_TEXTS)]["input_ids"]
            dim = model.get_input_embeddings().embedding_dim
            model.set_embeddings(cooccurrence_embeddings(some, len(tokenizer), dim, seed=arguments.seed))
        if arguments.cooccurrence_rows:
            some = ids[: min(len(ids), COOCCURRENCE_TEXTS)]["input_ids"]
            rows = cooccurrence_embeddings(some, len(tokenizer), config.hidden_size, seed=arguments.seed)
            model.predictor.set_token_rows(rows)
        # An untrained categorical model knows the frequencies, and most of its bound is already where it will be
        # learned.
        diffusion = isinstance(config, TextDiffusionConfig) and config.prediction_type == "categorical"
        if diffusion and config.time_sampler == "buckets":
            _start_time_sampler(model, ids)
    # A checkpoint that has jumps has its order, too.
    if getattr(config, "jumps", False) and (data.start is None or not data.start.model.config.jumps):
        model.set_token_order()
    prototypes = getattr(config, "num_prototypes", 0)
    if prototypes and (data.start is None or not data.start.model.config.num_prototypes):
        texts = data.validation_rows(prototypes) if arguments.streaming else data.train_ids()[:prototypes]
        model.set_prototypes(texts["input_ids"].long())
    if arguments.prototype_steps:
        fit_prototypes(model, data.train_ids()[:]["input_ids"].long(), arguments.prototype_steps, arguments.seed)
    if arguments.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    return model


def copy_weights(source: PreTrainedModel, model: PreTrainedModel, grown: bool = False) -> None:
    """Give the model the weights of another one, which may lack parts that are new in it, and, if its vocabulary has
    grown, the rows of the last tokens. A forward network is left behind where the model has none.
    """
    old, new = source.config.to_dict(), model.config.to_dict()
    free = (*FREE_OF_CHECKPOINT, "vocab_size") if grown else FREE_OF_CHECKPOINT
    # A forward process may be left undeformed from here on.
    undeformed = new.get("forward_num_layers") == 0
    free = (*free, "forward_num_layers") if undeformed else free
    changed = [
        f"{name} {old.get(name)!r} where these settings have {new[name]!r}"
        for name in new
        if name in old and old[name] != new[name] and name not in free and not name.startswith("_")
    ]
    if changed:
        raise ValueError(
            f"`model_name_or_path` has {'; '.join(changed)}; the `model_config` must be that of the checkpoint, but "
            "for parts that are new."
        )
    weights, own = source.state_dict(), model.state_dict()
    if undeformed:
        weights = {name: weight for name, weight in weights.items() if not name.startswith("forward_process.network.")}
    if not new.get("token_link"):
        # It was fitted to the weights that are trained on.
        weights = {name: weight for name, weight in weights.items() if ".token_link." not in name}
    if grown:
        weights = {name: _with_new_rows(weight, own.get(name), old["vocab_size"]) for name, weight in weights.items()}
    for name, weight in weights.items():
        if name not in own or own[name].shape != weight.shape:
            shape = tuple(own[name].shape) if name in own else "nothing"
            raise ValueError(
                f"`model_name_or_path` has {name!r} of shape {tuple(weight.shape)}, where the model of these settings "
                f"has {shape}; the `model_config` must be that of the checkpoint, but for parts that are new."
            )
    model.load_state_dict(weights, strict=False)


def _with_new_rows(weight: torch.Tensor, own: torch.Tensor | None, vocab_size: int) -> torch.Tensor:
    """A weight of the checkpoint, with the model's own rows of tokens that are new."""
    has_tokens = own is not None and weight.ndim and len(weight) == vocab_size and own.shape[1:] == weight.shape[1:]
    return torch.cat([weight, own[vocab_size:]]) if has_tokens else weight


@torch.no_grad()
def _start_time_sampler(model: TextDiffusionModel, ids: Dataset) -> None:
    """Start the learned density of the times at the untrained model's diffusion term, seen at a few times in every
    bucket.
    """
    buckets = model.config.num_time_buckets
    t = (torch.arange(buckets).repeat(TIMES_PER_BUCKET) + 0.5) / buckets
    texts = ids[: min(len(ids), len(t))]["input_ids"].long()
    generator = torch.Generator().manual_seed(0)
    terms = []
    with evaluation_mode(model):
        for start in range(0, len(t), buckets):
            rows = torch.arange(start, start + buckets) % len(texts)
            terms.append(model(texts[rows], t=t[start : start + buckets], generator=generator).diffusion)
    model.time_sampler.set_terms(t, torch.cat(terms) / model.config.max_length)


def _token_counts(ids: Dataset, vocab_size: int, condition_length: int) -> torch.Tensor:
    """How often each token stands in a text."""
    counts = torch.zeros(vocab_size, dtype=torch.float64)
    for batch in ids.iter(batch_size=10_000):
        counts += torch.bincount(text_tokens(batch["input_ids"], condition_length).flatten(), minlength=vocab_size)
    return counts
