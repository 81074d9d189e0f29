"""Slots of records in texts, and texts against references."""

import pytest

from diffusers_text_nfdm.metrics.record_slots import against_references, by_record, slots_realised, tells


@pytest.mark.parametrize(
    ("text", "slot", "value", "told"),
    [
        ("Aromi is by the river.", "area", "riverside", True),
        ("Aromi is by the river.", "area", "city centre", False),
        ("It is in the center of the city.", "area", "city centre", True),
        ("A cheap place.", "priceRange", "less than £20", True),
        ("It costs less than £20.", "priceRange", "cheap", True),
        ("It has a high price range.", "priceRange", "more than £30", True),
        ("Between £20 and £25.", "priceRange", "moderate", True),
        ("A cheap place.", "priceRange", "high", False),
        ("It is rated 5 out of 5.", "customer rating", "high", True),
        ("It has a low customer rating.", "customer rating", "1 out of 5", True),
        ("An average rating.", "customer rating", "5 out of 5", False),
        ("It is rated 1 out of 5.", "customer rating", "5 out of 5", False),
        ("It is family friendly.", "familyFriendly", "yes", True),
        ("It isn't family friendly.", "familyFriendly", "yes", False),
        ("It isn't family friendly.", "familyFriendly", "no", True),
        ("Adults only.", "familyFriendly", "no", True),
        ("It is cheap. Kids are not welcome.", "familyFriendly", "no", True),
        ("Near Café Sicilia.", "near", "Café Sicilia", True),
        ("The Eagles fly.", "name", "The Eagle", False),
        ("British food.", "food", "English", True),
    ],
)
def test_what_a_text_tells(text, slot, value, told):
    assert tells(text, slot, value) == told


def test_shares_of_what_is_told():
    records = ["name[Aromi], area[riverside]", "name[Cotto]"]
    scores = slots_realised(["Aromi is by the river.", "Cotto is by the river."], records)
    assert scores["mentioned"] == 1 and scores["complete"] == 1 and scores["added"] == 1
    scores = slots_realised(["Cotto is a place.", "Cotto is a place."], records)
    assert scores["mentioned"] == pytest.approx(1 / 3) and scores["complete"] == 0.5
    assert scores["mentioned_name"] == 0.5 and scores["mentioned_area"] == 0 and scores["added"] == 0


def test_a_value_of_another_slot_is_not_added():
    records = ["name[Riverside Inn]", "area[riverside]"]
    assert slots_realised(["The Riverside Inn.", "By the river."], records)["added"] == 0


def test_references():
    same = against_references(["a red fox ran over the hill"], [["a red fox ran over the hill", "no"]])
    assert same["bleu"] == pytest.approx(100) and same["rouge_l"] == pytest.approx(100)
    worse = against_references(["a blue fox ran over a hill"], [["a red fox ran over the hill"]])
    assert 0 < worse["bleu"] < 50 < worse["rouge_l"] < 100
    rows = [{"condition": "a", "text": "x"}, {"condition": "b", "text": "y"}, {"condition": "a", "text": "z"}]
    assert by_record(rows) == {"a": ["x", "z"], "b": ["y"]}


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="There are 1 texts for 2 records"):
        slots_realised(["a"], ["name[b]", "name[c]"])
    with pytest.raises(ValueError, match="`records` has no slots"):
        slots_realised(["a"], ["b"])
    with pytest.raises(ValueError, match="lists of references for 1 texts"):
        against_references(["a"], [[]])
