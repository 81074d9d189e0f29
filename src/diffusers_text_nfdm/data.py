"""From raw text (the embedded stories, local files, the Hub) to fixed-length rows of token ids."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from transformers import PreTrainedTokenizerBase

from .checks import check_seed, is_number
from .conditions import check_condition_length, encode_conditions
from .text_files import SPLIT_NAMES, check_column, held_out_size, load_files, local_files
from .tokenization import special_ids


# `datasets` is imported where it is used: sampling and `--help` do not wait for it.
if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict

    AnyDataset = Dataset | IterableDataset
    AnyDatasetDict = DatasetDict | IterableDatasetDict


logger = logging.getLogger(__name__)

OnTooLong = Literal["truncate", "drop", "error"]


# ---- Raw text -------------------------------------------------------------------------------------------------------


def load_text_dataset(
    source: str | Path | Mapping[str, str | Path] = "stories",
    *,
    config_name: str | None = None,
    column: str = "text",
    condition_column: str | None = None,
    streaming: bool = False,
    validation_fraction: float = 0.05,
    seed: int = 0,
) -> AnyDatasetDict:
    """Load raw text as splits with the column `text`, and `condition` where it is asked for.

    Args:
        source: `"stories"` (the embedded corpus); a local file or folder; a mapping from split to file; or else the
            name of a dataset on the Hub. Files are `.txt` (one text a line), `.json`, `.jsonl` (objects, strings or
            lists of one string), `.csv` and `.parquet`. In a folder, `train`, `valid` and `test` in a file's name tell
            its split; a file with none of them is training text. Blank lines are skipped.
        config_name: Configuration of a Hub dataset.
        column: Column or field that holds the text.
        condition_column: Column or field that holds a condition (`conditions`).
        streaming: Read while iterating, and keep nothing on disk.
        validation_fraction: Share of the training texts, at most 5,000 of them, that is held out for validation where
            the source has no such split; with conditions, a share of these with all their texts. 0 holds out nothing.
            A streamed Hub dataset keeps the splits it has.
        seed: Seed of the embedded corpus and of the choice of the texts held out.

    Local files are read through once before anything is built, so bad input leaves nothing behind.
    """
    columns = {"text": column} | ({} if condition_column is None else {"condition": condition_column})
    if not is_number(validation_fraction) or not 0 <= validation_fraction < 1:
        raise ValueError(f"validation_fraction is {validation_fraction!r}, but a share from 0 to below 1 is needed.")
    check_seed(seed)
    for name, value in {"column": column, "condition_column": condition_column}.items():
        if not isinstance(value, str) and (name == "column" or value is not None):
            raise ValueError(f"{name} is {value!r}, but the name of a column is needed.")
    embedded = isinstance(source, str) and source == "stories"
    files = None if embedded else local_files(source)
    if config_name is not None and (embedded or files is not None):
        raise ValueError(f"config_name is {config_name!r}, but only a dataset on the Hub has configurations.")
    if embedded:
        from .stories import load_stories

        for name in columns.values():
            check_column(["text", "condition"], name, "The corpus of embedded stories")
        stories = load_stories(seed=seed, conditions=condition_column is not None)
        if not streaming:
            return stories
        from datasets import IterableDatasetDict

        return IterableDatasetDict({name: split.to_iterable_dataset() for name, split in stories.items()})
    if files is not None:
        return load_files(files, columns, streaming, validation_fraction, seed)
    return _load_hub(str(source), config_name, columns, streaming, validation_fraction, seed)


def _load_hub(
    name: str,
    config_name: str | None,
    columns: dict[str, str],
    streaming: bool,
    validation_fraction: float,
    seed: int,
) -> AnyDatasetDict:
    import datasets

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ValueError(f"{name!r} is no local file or folder, and no name of a Hub dataset: {error}") from error
    try:
        # The builder knows the configurations and mostly the columns before anything is downloaded.
        features = datasets.load_dataset_builder(name, config_name).info.features
        for column in columns.values() if features else ():
            check_column(features, column, f"The Hub dataset {name}")
        loaded = datasets.load_dataset(name, config_name, streaming=streaming)
    except (datasets.exceptions.DatasetNotFoundError, FileNotFoundError) as error:
        raise ValueError(f"{name} is neither a local file or folder nor a dataset on the Hub: {error}") from error
    except ConnectionError as error:
        raise ValueError(
            f"{name} is no local file or folder, and the Hub cannot be reached to look for it there: {error}"
        ) from error
    splits = {}
    for split, dataset in loaded.items():
        for column in columns.values():
            check_column(_column_names(dataset), column, f"The Hub dataset {name}")
        splits[SPLIT_NAMES.get(split, split)] = dataset.select_columns(list(columns.values())).rename_columns(
            {column: new for new, column in columns.items() if new != column}
        )
    if streaming:
        return datasets.IterableDatasetDict(splits)
    if "train" in splits and "validation" not in splits and validation_fraction > 0:
        splits |= _hold_out(splits["train"], validation_fraction, seed, f"The Hub dataset {name}")
    return datasets.DatasetDict(splits)


def _hold_out(train: Dataset, fraction: float, seed: int, origin: str) -> dict[str, Dataset]:
    """Some of the texts for validation; where they have conditions, all texts of some conditions."""
    groups = train["condition"] if "condition" in train.column_names else range(len(train))
    names = list(dict.fromkeys(groups))
    held_out = held_out_size(len(names), fraction, origin)
    chosen = set(random.Random(seed).sample(names, held_out))
    logger.info("Held out %d of %d for validation (seed %d).", held_out, len(names), seed)
    rows = {kept: [i for i, name in enumerate(groups) if (name in chosen) != kept] for kept in (True, False)}
    return {"train": train.select(rows[True]), "validation": train.select(rows[False])}


def _column_names(dataset: AnyDataset) -> list[str]:
    return dataset.column_names or list(next(iter(dataset.take(1)), {}))


# ---- Token ids ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PreparationReport:
    """What became of one split. Tokens are counted as in `prepare_dataset`."""

    texts: int
    dropped: int
    truncated_share: float
    unknown_share: float
    mean_tokens: float

    def __str__(self) -> str:
        return (
            f"{self.texts:,} texts of {self.mean_tokens:.1f} tokens on average (END counted); "
            f"{self.truncated_share:.2%} truncated, {self.dropped:,} dropped, {self.unknown_share:.2%} of tokens UNK."
        )


def prepare_dataset(
    dataset: AnyDataset | AnyDatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int = 64,
    *,
    column: str = "text",
    condition_length: int = 0,
    on_too_long: OnTooLong = "truncate",
) -> tuple[AnyDataset | AnyDatasetDict, PreparationReport | dict[str, PreparationReport] | None]:
    """Turn text into rows of `max_length` ids: START, the condition, tokens, END, then PAD. In torch format, with the
    columns

    * `input_ids`: the ids;
    * `num_tokens`: real tokens, for nats per token. END counts; PAD does not, nor START, which is always the same;
    * `num_chars`: characters of the raw text, for bits per character. Of a truncated text those up to the last token
      kept, since the ids say nothing about the rest.

    Args:
        tokenizer: `WordTokenizer` or any other Hugging Face tokenizer with an eos (or sep) and a pad token. START is
            its bos (or cls) token, and is left out where it has neither.
        column: The column that holds the text.
        condition_length: Places for the tokens of the column `condition`, 0 for none. A longer condition is refused.
        on_too_long: What happens to a text of more than `max_length` ids: `"truncate"` cuts it so that the last id is
            END, `"drop"` leaves the text out, `"error"` raises a ValueError.

    Blank texts are dropped. Returns the prepared data, of the kind it was given, and a report (one for each split;
    None when streaming). The same text and tokenizer are read from the cache of `datasets` the next time.
    """
    from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict, Value

    special = special_ids(tokenizer)
    if not isinstance(max_length, int) or isinstance(max_length, bool) or max_length < 3:
        raise ValueError(f"max_length is {max_length!r}, but START, a token and END need at least 3.")
    check_condition_length(condition_length, max_length)
    if on_too_long not in ("truncate", "drop", "error"):
        raise ValueError(f"on_too_long is {on_too_long!r}, but 'truncate', 'drop' or 'error' is needed.")
    single = not isinstance(dataset, (DatasetDict, IterableDatasetDict))
    splits = {"the dataset": dataset} if single else dict(dataset)
    for name, split in splits.items():
        if not isinstance(split, (Dataset, IterableDataset)):
            raise ValueError(f"dataset is a {type(split).__name__}, but one of the library datasets is needed.")
        for needed in [column] + ["condition"] * bool(condition_length):
            check_column(_column_names(split), needed, f"The split {name}" if not single else "The dataset")
        feature = (split.features or {}).get(column)
        if isinstance(feature, Value) and feature.dtype not in ("string", "large_string", "string_view"):
            raise ValueError(f"The column {column!r} holds {feature.dtype}, but text is needed.")

    options = {
        "column": column,
        "max_length": max_length,
        "condition_length": condition_length,
        "on_too_long": on_too_long,
        "special": special,
    }
    prepared, reports = {}, {}
    for name, split in splits.items():
        prepared[name] = _encode_split(split, name, tokenizer, options)
        if isinstance(split, Dataset):
            reports[name] = _report(prepared[name], len(split), name, max_length)
            logger.info("%s: %s", name, reports[name])
        prepared[name] = prepared[name].remove_columns(["truncated", "num_unknown"]).with_format("torch")
    if single:
        return prepared["the dataset"], reports.get("the dataset")
    return type(dataset)(prepared), reports or None


def _encode_split(
    split: AnyDataset, name: str, tokenizer: PreTrainedTokenizerBase, options: dict[str, Any]
) -> AnyDataset:
    import datasets
    from datasets import Features, List, Value
    from datasets.fingerprint import Hasher

    arguments = {
        "batched": True,
        "with_indices": True,
        "remove_columns": _column_names(split),
        "fn_kwargs": {"tokenizer": tokenizer} | options,
        "features": Features(
            {
                "input_ids": List(Value("int32"), length=options["max_length"]),
                "num_tokens": Value("int32"),
                "num_chars": Value("int32"),
                "truncated": Value("bool"),
                "num_unknown": Value("int32"),
            }
        ),
    }
    if isinstance(split, datasets.IterableDataset):
        return split.map(_encode_batch, **arguments)
    # The library's own fingerprint would take in the tokenizer's padding state, which each call alters.
    fingerprint = Hasher.hash([split._fingerprint, _tokenizer_state(tokenizer), sorted(options.items()), _ENCODING])
    if not split.cache_files and datasets.is_caching_enabled():  # in memory: `map` would cache for this process only
        folder = Path(datasets.config.HF_DATASETS_CACHE) / "diffusers_text_nfdm"
        folder.mkdir(parents=True, exist_ok=True)
        arguments["cache_file_name"] = str(folder / f"{fingerprint}.arrow")
    return split.map(_encode_batch, new_fingerprint=fingerprint, desc=f"Tokenizing {name}", **arguments)


_ENCODING = 1  # part of the cache key: raised whenever `_encode_batch` gives other rows for the same text


def _tokenizer_state(tokenizer: PreTrainedTokenizerBase) -> str:
    from datasets.fingerprint import Hasher

    if not tokenizer.is_fast:
        return Hasher.hash(tokenizer)
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    return json.dumps(state | {"padding": None, "truncation": None, "split": tokenizer.split_special_tokens})


def _encode_batch(
    batch: dict[str, list[str | None]],
    indices: list[int],
    tokenizer: PreTrainedTokenizerBase,
    column: str,
    max_length: int,
    condition_length: int,
    on_too_long: OnTooLong,
    special: tuple[int | None, int, int],
) -> dict[str, list]:
    start, end, pad = special
    head = [] if start is None else [start]
    room = max_length - len(head) - condition_length - 1
    rows: dict[str, list] = {"input_ids": [], "num_tokens": [], "num_chars": [], "truncated": [], "num_unknown": []}
    conditions = batch["condition"] if condition_length else [None] * len(indices)
    texts = [
        (index, text, condition)
        for index, text, condition in zip(indices, batch[column], conditions)
        if text and text.strip()
    ]
    if not texts:
        return rows
    encoded = tokenizer(
        [text for _, text, _ in texts], add_special_tokens=False, return_attention_mask=False, verbose=False
    )
    given = encode_conditions([condition for *_, condition in texts], tokenizer, condition_length, pad)
    for position, ((index, text, _), ids) in enumerate(zip(texts, encoded["input_ids"])):
        chars, truncated = len(text), len(ids) > room
        if truncated:
            if on_too_long == "drop":
                continue
            if on_too_long == "error":
                raise ValueError(
                    f"Text {index} has {len(ids)} tokens, but max_length {max_length} leaves room for {room}: raise "
                    "max_length, or set on_too_long to 'truncate' or 'drop'."
                )
            ids = ids[:room]
            # A tokenizer without offsets (one in pure Python) tells the length only by decoding.
            chars = (
                encoded.encodings[position].offsets[room - 1][1] if tokenizer.is_fast else len(tokenizer.decode(ids))
            )
        rows["input_ids"].append(head + given[position] + ids + [end] + [pad] * (room - len(ids)))
        rows["num_tokens"].append(len(ids) + 1)
        rows["num_chars"].append(chars)
        rows["truncated"].append(truncated)
        rows["num_unknown"].append(ids.count(tokenizer.unk_token_id))
    return rows


def _report(prepared: Dataset, raw_texts: int, name: str, max_length: int) -> PreparationReport:
    if len(prepared) == 0:
        raise ValueError(f"None of the {raw_texts} texts of {name} is left at max_length {max_length}: raise it.")
    columns = {key: prepared.with_format("numpy")[key][:] for key in ("num_tokens", "truncated", "num_unknown")}
    return PreparationReport(
        texts=len(prepared),
        dropped=raw_texts - len(prepared),
        truncated_share=float(columns["truncated"].mean()),
        unknown_share=float(columns["num_unknown"].sum() / columns["num_tokens"].sum()),
        mean_tokens=float(columns["num_tokens"].mean()),
    )
