"""The preparation of text to rows of token ids."""

import logging
from pathlib import Path

import datasets
import pytest
import torch
from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from diffusers_text_nfdm import data
from diffusers_text_nfdm.data import PreparationReport, load_text_dataset, prepare_dataset
from diffusers_text_nfdm.tokenization import WordTokenizer


TEXTS = ["Dan couldn't sleep.", "She ran home, tired.", "A dog barked!", "“Café?” he asked.", "It's late."]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache of its own for each test."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def tokenizer() -> WordTokenizer:
    return WordTokenizer.from_texts(TEXTS, min_count=0)


def text_file(folder: Path) -> Path:
    (folder / "lines.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    return folder / "lines.txt"


def texts_dataset(texts: list[str | None] = TEXTS) -> Dataset:
    return Dataset.from_dict({"text": texts, "id": list(range(len(texts)))})


def test_rows(tokenizer):
    prepared, report = prepare_dataset(texts_dataset([*TEXTS, "Zyx ran.", " ", None]), tokenizer, max_length=16)
    assert prepared.column_names == ["input_ids", "num_tokens", "num_chars"]
    assert len(prepared) == 6
    batch = next(iter(torch.utils.data.DataLoader(prepared, batch_size=6)))
    assert batch["input_ids"].shape == (6, 16) and batch["input_ids"].dtype == torch.int64
    assert tokenizer.batch_decode(batch["input_ids"][:5], skip_special_tokens=True) == TEXTS
    expected = tokenizer(TEXTS, padding="max_length", max_length=16)["input_ids"]
    assert batch["input_ids"][:5].tolist() == expected
    assert batch["num_tokens"].tolist() == [len(tokenizer.tokenize(text)) + 1 for text in [*TEXTS, "Zyx ran."]]
    assert batch["num_tokens"].tolist() == ((batch["input_ids"] != 3) & (batch["input_ids"] != 0)).sum(1).tolist()
    assert batch["num_chars"].tolist() == [len(text) for text in [*TEXTS, "Zyx ran."]]
    tokens = sum(batch["num_tokens"].tolist())
    assert report == PreparationReport(6, 2, 0.0, pytest.approx(1 / tokens), pytest.approx(tokens / 6))


def test_too_long(tokenizer, cache):
    source = texts_dataset(["It's late.", "She ran home, tired."])
    prepared, report = prepare_dataset(source, tokenizer, max_length=6)
    row = prepared[1]
    assert tokenizer.decode(row["input_ids"]) == "<START> She ran home, <END>"
    assert (row["num_tokens"].item(), row["num_chars"].item()) == (5, len("She ran home,"))
    assert prepared[0]["num_chars"].item() == len("It's late.")
    assert report.truncated_share == 0.5 and report.dropped == 0
    prepared, report = prepare_dataset(source, tokenizer, max_length=6, on_too_long="drop")
    assert len(prepared) == 1 and report.dropped == 1 and report.truncated_share == 0
    before = sorted(cache.rglob("*"))
    with pytest.raises(ValueError, match="Text 1 has 6 tokens, but max_length 6 leaves room for 4"):
        prepare_dataset(source, tokenizer, max_length=6, on_too_long="error")
    assert sorted(cache.rglob("*")) == before
    with pytest.raises(ValueError, match="None of the 2 texts of the dataset is left at max_length 4"):
        prepare_dataset(source, tokenizer, max_length=4, on_too_long="drop")


def test_report_reads_as_a_sentence(tokenizer, caplog):
    with caplog.at_level(logging.INFO):
        _, reports = prepare_dataset(DatasetDict({"train": texts_dataset()}), tokenizer, max_length=7)
    expected = "5 texts of 5.6 tokens on average (END counted); 40.00% truncated, 0 dropped, 0.00% of tokens UNK."
    assert str(reports["train"]) == expected
    assert f"train: {expected}" in caplog.text


@pytest.mark.parametrize("on_disk", [False, True])
def test_second_call_reads_the_cache(tmp_path, tokenizer, monkeypatch, on_disk):
    path = text_file(tmp_path)

    def source():
        if on_disk:
            return load_text_dataset(path, validation_fraction=0)
        return DatasetDict({"train": texts_dataset()})

    first, report = prepare_dataset(source(), tokenizer, max_length=12)
    tokenizer(TEXTS, padding="max_length", truncation=True)  # leaves its padding behind in the tokenizer
    with monkeypatch.context() as patch:
        patch.setattr(data, "_encode_batch", None)
        again, same_report = prepare_dataset(source(), tokenizer, max_length=12)
    assert again["train"].cache_files == first["train"].cache_files != []
    assert again["train"][:]["input_ids"].equal(first["train"][:]["input_ids"])
    assert same_report == report
    other, _ = prepare_dataset(source(), tokenizer, max_length=13)
    assert other["train"].cache_files != first["train"].cache_files
    other, _ = prepare_dataset(source(), WordTokenizer.from_texts(TEXTS[:3], min_count=0), max_length=12)
    assert not other["train"][:]["input_ids"].equal(first["train"][:]["input_ids"])


def test_streaming(tmp_path, tokenizer, cache):
    loaded = load_text_dataset(text_file(tmp_path), streaming=True, validation_fraction=0)
    prepared, report = prepare_dataset(loaded, tokenizer, max_length=12)
    assert isinstance(prepared, IterableDatasetDict) and report is None
    fixed, _ = prepare_dataset(texts_dataset(), tokenizer, max_length=12)
    rows = list(prepared["train"])
    assert torch.stack([row["input_ids"] for row in rows]).equal(fixed[:]["input_ids"])
    assert [row["num_chars"].item() for row in rows] == [len(text) for text in TEXTS]
    assert set(rows[0]) == {"input_ids", "num_tokens", "num_chars"}
    one, report = prepare_dataset(loaded["train"], tokenizer, max_length=12)
    assert isinstance(one, IterableDataset) and report is None
    assert next(iter(one))["input_ids"].equal(fixed[0]["input_ids"])


def other_tokenizer(**special: str) -> PreTrainedTokenizerFast:
    words = ["<pad>", "<s>", "</s>", "?", *sorted({word for text in TEXTS for word in text.split()})]
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="?", **special)


def test_other_tokenizers():
    bert_like = other_tokenizer(cls_token="<s>", sep_token="</s>", pad_token="<pad>")
    row = prepare_dataset(texts_dataset(), bert_like, max_length=8)[0][2]
    assert row["input_ids"].tolist() == [1, *bert_like.convert_tokens_to_ids(["A", "dog", "barked!"]), 2, 0, 0, 0]
    t5_like = other_tokenizer(eos_token="</s>", pad_token="<pad>")
    row = prepare_dataset(texts_dataset(), t5_like, max_length=8)[0][2]
    assert row["input_ids"].tolist() == [*t5_like.convert_tokens_to_ids(["A", "dog", "barked!"]), 2, 0, 0, 0, 0]
    assert row["num_tokens"].item() == 4


def test_a_tokenizer_in_pure_python():
    byt5 = ByT5Tokenizer()
    prepared, report = prepare_dataset(texts_dataset(["abc", "abcdefgh"]), byt5, max_length=6)
    assert prepared["num_chars"][:].tolist() == [3, 5] and prepared["num_tokens"][:].tolist() == [4, 6]
    assert report.truncated_share == 0.5


@pytest.mark.parametrize(
    ("special", "message"),
    [
        ({"pad_token": "<pad>"}, "has no END token: set tokenizer.eos_token"),
        ({"eos_token": "</s>"}, "has no PAD token: tokenizer.add_special_tokens"),
        ({"eos_token": "</s>", "pad_token": "</s>"}, "pads with its END token"),
    ],
)
def test_tokenizers_without_what_is_needed(special, message):
    with pytest.raises(ValueError, match=message):
        prepare_dataset(texts_dataset(), other_tokenizer(**special))


def test_bad_preparation(tokenizer):
    cases = [
        ((texts_dataset(), tokenizer, 2), {}, "max_length is 2"),
        ((texts_dataset(), tokenizer), {"on_too_long": "split"}, "on_too_long is 'split'"),
        ((texts_dataset(), tokenizer), {"column": "story"}, "has no column 'story'; its columns are text, id"),
        ((texts_dataset(), tokenizer), {"column": "id"}, "The column 'id' holds int64, but text is needed"),
        ((TEXTS, tokenizer), {}, "dataset is a list"),
    ]
    for arguments, options, message in cases:
        with pytest.raises(ValueError, match=message):
            prepare_dataset(*arguments, **options)
