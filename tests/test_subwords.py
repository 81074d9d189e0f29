"""Subword tokenizers: what they give back, what they refuse, and a run with one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import logged_warnings, make_model, seeded
from transformers import AutoTokenizer

from diffusers_text_nfdm import MarkovChainScheduler, NFDMTextPipeline, train_subword_tokenizer
from diffusers_text_nfdm.stories import StoryGrammar
from diffusers_text_nfdm.tokenization import content_ids, special_ids


STORIES = StoryGrammar().sample(50, seed=0)
TOKENIZER = train_subword_tokenizer(STORIES, vocab_size=400, max_length=128)


@given(st.text())
def test_every_text_comes_back_as_it_was(text):
    ids = TOKENIZER(text)["input_ids"]
    assert TOKENIZER.decode(content_ids(ids, TOKENIZER)) == text
    assert TOKENIZER.unk_token_id not in ids and special_ids(TOKENIZER) == (0, 1, 3)
    assert ids[0] == 0 and ids[-1] == 1 and all(token > 3 for token in ids[1:-1])


def test_frequent_pairs_are_merged_until_the_vocabulary_is_full():
    assert len(TOKENIZER) == 400 and len(train_subword_tokenizer(STORIES, vocab_size=260)) == 260
    lengths = [len(train_subword_tokenizer(STORIES, vocab_size=size)(STORIES[0])["input_ids"]) for size in (260, 400)]
    assert lengths[0] == len(STORIES[0].encode()) + 2 and lengths[1] < lengths[0] / 1.5


def test_a_saved_one_is_the_same(tmp_path):
    TOKENIZER.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = STORIES[1] + " <END> naïve"
    assert loaded(text)["input_ids"] == TOKENIZER(text)["input_ids"] and loaded.model_max_length == 128
    assert loaded.decode(content_ids(loaded(text)["input_ids"], loaded)) == text


def test_words_may_be_whole(tmp_path):
    texts = [f"name [ nameValue ] {story} nameValue's nearValue" for story in STORIES]
    tokenizer = train_subword_tokenizer(texts, vocab_size=400, whole=["nameValue", "nearValue"])
    tokenizer.save_pretrained(tmp_path)
    for one in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        assert len(one) == 400 and not [token for token in one.get_vocab() if "Value" in token[:-5]]
        for text in texts[:5] + ["nameValue", "XnameValue nearValue"]:
            ids = one(text)["input_ids"]
            assert ids.count(one.convert_tokens_to_ids("nameValue")) == text.count("nameValue")
            assert one.decode(content_ids(ids, one)) == text
    with pytest.raises(ValueError, match="need at least 261"):
        train_subword_tokenizer(texts, vocab_size=260, whole=["nameValue"])


def test_a_pipeline_with_it_is_saved_loaded_and_prompted(tmp_path):
    model = make_model("diffusion-lm", vocab_size=len(TOKENIZER), max_length=32)
    pipe = NFDMTextPipeline(model, TOKENIZER, MarkovChainScheduler())
    pipe.set_progress_bar_config(disable=True)
    pipe.save_pretrained(tmp_path)
    with logged_warnings() as messages:
        loaded = NFDMTextPipeline.from_pretrained(tmp_path)
    assert not messages
    options = {"num_samples": 3, "num_inference_steps": 4}
    expected = pipe(**options, generator=seeded(0))
    assert loaded(**options, generator=seeded(0)).texts == expected.texts
    (text,) = loaded(prompt="One windy Friday, [MASK] Leo", num_inference_steps=4).texts
    # What is masked is one token, and the spaces around it stay.
    assert text.startswith("One windy Friday,") and text.endswith(" Leo")
    sequence = loaded(prompt="One [MASK]", num_inference_steps=2).sequences[0]
    one = TOKENIZER("One", add_special_tokens=False)["input_ids"]
    assert torch.equal(sequence[1 : 1 + len(one)], torch.tensor(one)) and sequence[2 + len(one)] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"texts": [], "vocab_size": 300}, "texts is empty"),
        ({"texts": "a text", "vocab_size": 300}, "texts is a str"),
        ({"texts": ["a", 3], "vocab_size": 300}, r"`texts\[1\]` is a int"),
        (
            {"texts": ["a"], "vocab_size": 259},
            "vocab_size is 259, but the bytes and the special tokens need",
        ),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        train_subword_tokenizer(**options)
