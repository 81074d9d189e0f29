"""Raw text from every kind of source, and its preparation to rows of token ids."""

import json
import logging
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet
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


def write(path: Path, texts: list[str] = TEXTS) -> Path:
    """The texts in the format that the suffix, or the stem for the kinds of JSON, tells."""
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pa.table({"id": range(len(texts)), "text": texts}), path)
        return path
    content = {
        "lines": "\n".join(texts) + "\n\n",
        "objects": "\n".join(json.dumps({"id": i, "text": t}) for i, t in enumerate(texts)),
        "lists": "\n".join(json.dumps([t]) for t in texts) + "\n",
        "strings": "\n".join(json.dumps(t) for t in texts),
        "document": json.dumps([{"text": t} for t in texts], indent=1),
        "table": "\ufeffid,text\r\n" + "".join(f'{i},"{t}"\r\n' for i, t in enumerate(texts)),
    }[path.stem]
    path.write_text(content, encoding="utf-8", newline="")
    return path


FILES = ["lines.txt", "objects.jsonl", "lists.jsonl", "strings.jsonl", "lists.json", "document.json", "table.csv"]
FILES += ["rows.parquet"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("streaming", [False, True])
def test_each_kind_of_file(tmp_path, cache, name, streaming):
    loaded = load_text_dataset(write(tmp_path / name), streaming=streaming, validation_fraction=0)
    assert type(loaded) is (IterableDatasetDict if streaming else DatasetDict)
    assert list(loaded) == ["train"]
    assert loaded["train"].column_names == ["text"]
    assert [row["text"] for row in loaded["train"]] == TEXTS
    assert not streaming or not list(cache.rglob("*.arrow"))


def test_other_column(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"story": text}) for text in TEXTS))
    loaded = load_text_dataset(path, column="story", validation_fraction=0)
    assert loaded["train"].column_names == ["text"]
    assert loaded["train"]["text"][:] == TEXTS


def test_held_out_share(tmp_path, caplog):
    texts = [f"Text {number}." for number in range(200)]
    path = write(tmp_path / "lines.txt", texts)
    with caplog.at_level(logging.INFO):
        first = load_text_dataset(str(path))
    assert "Held out 10 of 200 training texts for validation (seed 0)." in caplog.text
    train, validation = first["train"]["text"][:], first["validation"]["text"][:]
    assert len(validation) == 10 and sorted(train + validation) == sorted(texts)
    streamed = load_text_dataset(str(path), streaming=True)
    assert [row["text"] for row in streamed["train"]] == train
    assert [row["text"] for row in streamed["validation"]] == validation
    assert load_text_dataset(str(path), seed=1)["validation"]["text"][:] != validation
    assert len(load_text_dataset(str(path), validation_fraction=0.5)["validation"]) == 100


def test_at_most_5000_are_held_out(tmp_path):
    path = write(tmp_path / "lines.txt", [str(number) for number in range(12_000)])
    assert len(load_text_dataset(path, validation_fraction=0.9)["validation"]) == 5_000


def test_mapping_and_folder(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    parts = {
        "roc_train_1.txt": TEXTS[:2],
        "other.txt": TEXTS[2:3],
        "roc_valid.txt": TEXTS[3:4],
        "x-test.txt": TEXTS[4:],
    }
    for name, texts in parts.items():
        (folder / name).write_text("\n".join(texts), encoding="utf-8")
    (folder / "README.md").write_text("not text to train on")
    expected = {"train": [TEXTS[2], *TEXTS[:2]], "validation": [TEXTS[3]], "test": [TEXTS[4]]}
    assert {name: split["text"][:] for name, split in load_text_dataset(folder).items()} == expected
    mapping = {"train": folder / "other.txt", "valid": str(folder / "roc_valid.txt")}
    expected = {"train": [TEXTS[2]], "validation": [TEXTS[3]]}
    assert {name: split["text"][:] for name, split in load_text_dataset(mapping).items()} == expected


def test_a_changed_file_is_read_again(tmp_path):
    path = write(tmp_path / "lines.txt")
    first = load_text_dataset(path, validation_fraction=0)["train"]
    again = load_text_dataset(path, validation_fraction=0)["train"]
    assert again.cache_files == first.cache_files and again._fingerprint == first._fingerprint
    write(path, TEXTS[::-1])
    assert load_text_dataset(path, validation_fraction=0)["train"]["text"][:] == TEXTS[::-1]


def test_stories_are_the_default():
    loaded = load_text_dataset(seed=3)
    assert list(loaded) == ["train", "validation", "test"]
    assert loaded["train"].column_names == ["text"]
    streamed = load_text_dataset("stories", streaming=True, seed=3)
    assert next(iter(streamed["test"])) == loaded["test"][0]


def test_stories_come_back_exactly():
    from diffusers_text_nfdm.stories import load_stories

    texts = load_stories(num_train=1500, num_validation=1, num_test=1)["train"]["text"][:]
    tokenizer = WordTokenizer.from_texts(texts, min_count=0)
    assert tokenizer.batch_decode(tokenizer(texts, verbose=False)["input_ids"], skip_special_tokens=True) == texts


BAD_FILES = {
    "empty.txt": (b"", "holds no text"),
    "blank.txt": (b"\n  \n", "holds no text"),
    "empty.json": (b"", "holds no text"),
    "latin.txt": ("Fine.\nCafé.\n".encode("latin-1"), "is not UTF-8 text: the byte at offset 9"),
    "broken.jsonl": (b'{"text": "a"}\n{"text": \n', "line 2: not JSON"),
    "broken.json": (b'[{"text": "a"}', "is not JSON"),
    "column.jsonl": (b'{"story": "a", "id": 1}', "has no column 'text'; its columns are story, id"),
    "column.csv": (b"story,id\na,1\n", "has no column 'text'; its columns are story, id"),
    "number.jsonl": (b'{"text": 3}', "line 1: a int stands where text is needed"),
    "list.jsonl": (b'["a", "b"]', "line 1: a list stands where text is needed"),
    "half.jsonl": (b'["\\ud800"]', "line 1: half of a surrogate pair"),
    "single.txt": (b"one", "holds a single text, so none can be held out"),
    "fake.parquet": (b"nothing of the kind", "is not a parquet file"),
    "a.pdf": (b"x", "is not a text file that can be read"),
}


@pytest.mark.parametrize("name", BAD_FILES)
@pytest.mark.parametrize("streaming", [False, True])
def test_bad_files_leave_nothing_behind(tmp_path, cache, name, streaming):
    content, message = BAD_FILES[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        load_text_dataset(tmp_path / name, streaming=streaming)
    assert name in str(caught.value)
    assert not cache.exists()


def test_missing_files(tmp_path, cache):
    for source in (tmp_path / "no", "no.txt", "./no", {"train": "no.txt"}):
        with pytest.raises(FileNotFoundError, match="There is no file or folder"):
            load_text_dataset(source)
    assert not cache.exists()


def test_bad_arguments(tmp_path):
    path = write(tmp_path / "lines.txt")
    cases = [
        ({"source": {"validation": path}}, "train and perhaps validation and test are needed"),
        ({"source": {"train": path, "val": path, "dev": path}}, "train and perhaps validation and test are needed"),
        ({"source": ""}, "source is ''"),
        ({"source": 3}, "source is 3"),
        ({"source": tmp_path / "folder"}, "holds no training text"),
        ({"source": path, "column": "story"}, "has no column 'story'"),
        ({"source": path, "config_name": "en"}, "only a dataset on the Hub has configurations"),
        ({"source": "stories", "config_name": "en"}, "only a dataset on the Hub has configurations"),
        ({"source": "stories", "column": "story"}, "has no column 'story'; its columns are text"),
        ({"source": path, "validation_fraction": 1.0}, "validation_fraction is 1.0"),
    ]
    (tmp_path / "folder").mkdir()
    for arguments, message in cases:
        with pytest.raises(ValueError, match=message):
            load_text_dataset(**arguments)


def test_hub_out_of_reach(cache):
    with pytest.raises(ValueError, match="nobody/nothing is no local file or folder, and the Hub cannot be reached"):
        load_text_dataset("nobody/nothing")


class FakeHub:
    """Stands in for the two calls to the Hub."""

    def __init__(self, splits: dict[str, Dataset]):
        self.splits = splits

    def load_dataset_builder(self, name, config_name):
        if name != "user/corpus":
            raise datasets.exceptions.DatasetNotFoundError(f"Dataset '{name}' doesn't exist on the Hub")
        features = next(iter(self.splits.values())).features
        return type("Builder", (), {"info": datasets.DatasetInfo(features=features)})

    def load_dataset(self, name, config_name, streaming):
        assert config_name == "en"
        if streaming:
            return IterableDatasetDict({name: split.to_iterable_dataset() for name, split in self.splits.items()})
        return DatasetDict(self.splits)


@pytest.fixture
def hub(monkeypatch):
    rows = {"id": list(range(40)), "story": [f"Story {number}." for number in range(40)]}
    fake = FakeHub({"train": Dataset.from_dict(rows)})
    monkeypatch.setattr(datasets, "load_dataset", fake.load_dataset)
    monkeypatch.setattr(datasets, "load_dataset_builder", fake.load_dataset_builder)
    return fake


def test_hub_dataset(hub):
    loaded = load_text_dataset("user/corpus", config_name="en", column="story")
    assert {name: (split.column_names, len(split)) for name, split in loaded.items()} == {
        "train": (["text"], 38),
        "validation": (["text"], 2),
    }
    again = load_text_dataset("user/corpus", config_name="en", column="story")
    assert again["validation"]["text"][:] == loaded["validation"]["text"][:]
    streamed = load_text_dataset("user/corpus", config_name="en", column="story", streaming=True)
    assert list(streamed) == ["train"] and next(iter(streamed["train"])) == {"text": "Story 0."}
    hub.splits["dev"] = Dataset.from_dict({"id": [0], "story": ["A."]})
    loaded = load_text_dataset("user/corpus", config_name="en", column="story")
    assert {name: len(split) for name, split in loaded.items()} == {"train": 40, "validation": 1}


def test_hub_errors(hub):
    with pytest.raises(ValueError, match="user/other is neither a local file or folder nor a dataset on the Hub"):
        load_text_dataset("user/other", config_name="en")
    with pytest.raises(ValueError, match="user/corpus has no column 'text'; its columns are id, story"):
        load_text_dataset("user/corpus", config_name="en")


# ---- Preparation ----------------------------------------------------------------------------------------------------


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
    expected = "5 texts of 5.4 tokens on average (END counted); 40.00% truncated, 0 dropped, 0.00% of tokens UNK."
    assert str(reports["train"]) == expected
    assert f"train: {expected}" in caplog.text


@pytest.mark.parametrize("on_disk", [False, True])
def test_second_call_reads_the_cache(tmp_path, tokenizer, monkeypatch, on_disk):
    path = write(tmp_path / "lines.txt")

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
    loaded = load_text_dataset(write(tmp_path / "lines.txt"), streaming=True, validation_fraction=0)
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
