"""The corpus as a dataset."""

import pytest

from diffusers_text_nfdm.stories import load_stories


def test_default_splits_are_disjoint():
    data = load_stories()
    assert {split: len(rows) for split, rows in data.items()} == {"train": 50_000, "validation": 1_000, "test": 1_000}
    assert all(rows.column_names == ["text"] for rows in data.values())
    assert len({text for rows in data.values() for text in rows["text"]}) == 52_000


def test_growing_a_split_keeps_its_prefix_and_the_others():
    small, large = load_stories(20, 5, 5), load_stories(40, 5, 9)
    assert list(large["train"]["text"])[:20] == list(small["train"]["text"])
    assert list(large["validation"]["text"]) == list(small["validation"]["text"])
    assert list(large["test"]["text"])[:5] == list(small["test"]["text"])


def test_seeds_and_empty_splits():
    first, second = load_stories(5, 0, 0, seed=0), load_stories(5, 0, 0, seed=1)
    assert not set(first["train"]["text"]) & set(second["train"]["text"])
    assert len(first["test"]) == 0 and first["test"].features == first["train"].features


@pytest.mark.parametrize("name", ["num_train", "num_validation", "num_test"])
@pytest.mark.parametrize("value", [-1, 2.0, "many", True])
def test_bad_sizes(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value!r}; an integer >= 0"):
        load_stories(**{name: value})


def test_bad_seed():
    with pytest.raises(ValueError, match="seed is None"):
        load_stories(seed=None)
