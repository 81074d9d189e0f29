"""Raw text from every kind of source: local files, the embedded stories, the Hub."""

import functools
import json
import logging
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest
from datasets import Dataset, DatasetDict, IterableDatasetDict

from diffusers_text_nfdm import stories
from diffusers_text_nfdm.data import load_text_dataset
from diffusers_text_nfdm.tokenization import WordTokenizer


TEXTS = ["Dan couldn't sleep.", "She ran home, tired.", "A dog barked!", "“Café?” he asked.", "It's late."]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache of its own for each test."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache"


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


def test_stories_are_the_default(monkeypatch):
    small = functools.partial(stories.load_stories, num_train=20, num_validation=2, num_test=2)
    monkeypatch.setattr(stories, "load_stories", small)
    loaded = load_text_dataset(seed=3)
    assert list(loaded) == ["train", "validation", "test"]
    assert loaded["train"].column_names == ["text"]
    assert loaded["train"]["text"][:] == small(seed=3)["train"]["text"][:] != small(seed=0)["train"]["text"][:]
    streamed = load_text_dataset("stories", streaming=True, seed=3)
    assert next(iter(streamed["test"])) == loaded["test"][0]


def test_stories_come_back_exactly():
    texts = stories.load_stories(num_train=1500, num_validation=1, num_test=1)["train"]["text"][:]
    tokenizer = WordTokenizer.from_texts(texts, min_count=0)
    assert tokenizer.batch_decode(tokenizer(texts, verbose=False)["input_ids"], skip_special_tokens=True) == texts


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("name", ["lines.txt", "objects.jsonl", "table.csv"])
def test_lines_end_in_any_way(tmp_path, name, end):
    path = write(tmp_path / name)
    path.write_bytes(path.read_text(encoding="utf-8").replace("\n", end).encode())
    assert load_text_dataset(path, validation_fraction=0)["train"]["text"][:] == TEXTS


BAD_FILES = {
    "empty.txt": (b"", "holds no text"),
    "blank.txt": (b"\n  \n", "holds no text"),
    "empty.json": (b"", "holds no text"),
    "latin.txt": ("Fine.\nCafé.\n".encode("latin-1"), "is not UTF-8 text: the byte at offset 9"),
    "broken.jsonl": (b'{"text": "a"}\n{"text": \n', "line 2: not JSON"),
    "broken.json": (b'[{"text": "a"}', "is not JSON"),
    "column.jsonl": (b'{"story": "a", "id": 1}', "has no column 'text'; its columns are story, id"),
    "column.csv": (b"story,id\na,1\n", "has no column 'text'; its columns are story, id"),
    "quote.csv": (b'text,id\nFine.,1\n"Never closed,2\nLost.,3\n', "not CSV from line 3 on .*a quote may be open"),
    "short.csv": (b"id,text\n1,Fine.\n2\n", "line 3: fewer than the 2 fields of the header"),
    "long.csv": (b"id,text\n1,Fine.\n2,Well, no.\n", "line 3: more than the 2 fields of the header"),
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


def test_a_file_may_be_another_split_the_next_time(tmp_path):
    train, valid = tmp_path / "a.txt", tmp_path / "b.txt"
    train.write_text("Tom saw a fox\n"), valid.write_text("a red fox of its own\n")
    both = load_text_dataset({"train": train, "validation": valid})
    alone = load_text_dataset(valid, validation_fraction=0)
    assert both["validation"]["text"][:] == alone["train"]["text"][:] == ["a red fox of its own"]
