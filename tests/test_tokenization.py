"""The word tokenizer: splitting, the vocabulary, putting text back together, saving and loading."""

import pickle
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from diffusers_text_nfdm.tokenization import (
    END,
    PAD,
    START,
    UNK,
    WordTokenizer,
    content_ids,
    detokenize,
    forget_origin,
    special_ids,
    word_splitter,
)


SPLITTER = word_splitter()

TEXTS = [
    "Dan's parents couldn't believe it. They weren't rich!",
    'She said "I\'m tired" and left (quietly).',
    "It cost $5, or 10% of it; he'd paid at 5:30... Mr. Smith's co-worker didn't mind.",
]

# What spaCy's blank English tokenizer gives, one space between tokens.
SPLITS = {
    "couldn't": "could n't",
    "can't": "ca n't",
    "won't": "wo n't",
    "Didn't": "Did n't",
    "didn’t": "did n’t",
    "cannot": "can not",
    "gonna": "gon na",
    "I'm": "I 'm",
    "I've": "I 've",
    "we're": "we 're",
    "they'll": "they 'll",
    "he'd": "he 'd",
    "I'd've": "I 'd 've",
    "couldn't've": "could n't 've",
    "dont": "do nt",
    "thats": "that s",
    "Im": "I m",
    "its": "its",
    "well": "well",
    "were": "were",
    "want": "want",
    "Tom's.": "Tom 's .",
    "parents'": "parents '",
    "o'clock.": "o'clock .",
    "ma'am,": "ma'am ,",
    "y'all": "y' all",
    "Mr.": "Mr.",
    "Dr.,": "Dr. ,",
    "a.m.": "a.m.",
    "5a.m.": "5 a.m.",
    "10pm.": "10 pm .",
    "5:30pm.": "5:30pm .",
    "U.S.": "U.S.",
    "A.": "A.",
    "USA.": "USA .",
    "dog.": "dog .",
    "dog.He": "dog . He",
    "yes,no": "yes , no",
    "wait...": "wait ...",
    "wait...what?!": "wait ... what ? !",
    '"Hi!"': '" Hi ! "',
    "(really).": "( really ) .",
    "$1,000.50": "$ 1,000.50",
    "3.5%": "3.5 %",
    "5km": "5 km",
    "3-4": "3 - 4",
    "1st": "1st",
    "co-worker": "co - worker",
    "mother-in-law's": "mother - in - law 's",
    "and/or": "and/or",
    "he/she": "he / she",
    "http://a.com/b-c.": "http://a.com/b-c .",
    "me@site.org,": "me@site.org ,",
    ":)": ":)",
    "'em": "'em",
    "“Hello,”": "“ Hello , ”",
    "café.": "café .",
}


@pytest.fixture(scope="module")
def tokenizer() -> WordTokenizer:
    return WordTokenizer.from_texts(TEXTS, min_count=0)


def split(text: str) -> list[str]:
    return [word for word, _ in SPLITTER.pre_tokenize_str(text)]


@pytest.mark.parametrize("chunk", SPLITS)
def test_split_as_spacy_does(chunk):
    assert split(chunk) == SPLITS[chunk].split()
    assert split(f"so {chunk} is") == ["so", *SPLITS[chunk].split(), "is"]


def test_table_is_what_spacy_gives():
    spacy = pytest.importorskip("spacy", reason="spaCy is not installed: pip install spacy")
    nlp = spacy.blank("en")
    assert {chunk: " ".join(token.text for token in nlp(chunk)) for chunk in SPLITS} == SPLITS


# Python counts four control characters as white space which Unicode, and so the tokenizer, does not.
@given(st.text(st.characters(exclude_characters="\x1c\x1d\x1e\x1f", exclude_categories=["Cs"]), max_size=60))
def test_no_character_is_lost_or_added(text):
    assert "".join(split(text)) == "".join(text.split())


@given(st.text(alphabet="ab5'’s.,!?()\"-$%:/ I", max_size=30))
def test_splitting_agrees_with_its_offsets(text):
    spans = [span for _, span in SPLITTER.pre_tokenize_str(text)]
    assert [text[start:stop] for start, stop in spans] == split(text)
    assert all(first[1] <= second[0] for first, second in zip(spans, spans[1:]))


@pytest.mark.parametrize("longest", [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "unit", ["'s", ":)", "a.", "1+", "$", "I'm", "A.", "a@b.", "a", "5km", "a-", "www.", "☃", "..", "\n", "a "]
)
def test_time_is_linear_in_the_length_of_a_chunk(unit, longest):
    """Four times the text takes sixteen times as long where the time is quadratic."""

    def once(length):
        begin = time.process_time()
        split((unit * length)[:length])
        return time.process_time() - begin

    def seconds(length):
        # The least of three: a garbage collection may fall into one.
        return min(once(length) for _ in range(3))

    assert seconds(longest) < 8 * seconds(longest // 4) + 0.2


@pytest.mark.parametrize("run", ["a" + ")" * 2000 + "b", "a" + "." * 2000 + "b", ".'" * 1000 + "a", "!" * 2000])
def test_long_runs_of_punctuation_take_no_exponential_time(run):
    begin = time.process_time()
    split(run)
    assert time.process_time() - begin < 5


WORDS = st.sampled_from("Dan Sue dog the bike was happy mother-in-law 3 10:30 o'clock Mr. U.S. ran home".split())
CONTRACTED = st.sampled_from(
    "couldn't didn't can't won't wasn't I'm I'd she's he'll they're we've Dan's it's that's cannot let's".split()
)
TOKEN = st.one_of(WORDS, WORDS, CONTRACTED)


@st.composite
def sentence(draw) -> str:
    words = draw(st.lists(TOKEN, min_size=1, max_size=8))
    for position in range(len(words)):
        around = draw(st.sampled_from(["{}"] * 8 + ["{},", '"{}"', "({})", "${}", "{}%", "{};"]))
        if around in ("${}", "{}%"):
            words[position] = around.format("25")
        elif not (words[position].endswith(".") and around == '"{}"'):
            words[position] = around.format(words[position])
    return " ".join(words) + " now" + draw(st.sampled_from([".", "!", "?", "..."]))


STORIES = st.lists(sentence(), min_size=1, max_size=5).map(" ".join)


@given(STORIES)
def test_decode_undoes_encode(text):
    tokenizer = WordTokenizer.from_texts([text], min_count=0)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer.decode(ids) == f"{START} {text} {END}"


@pytest.mark.parametrize(
    "text",
    [
        *TEXTS,
        "The kids' toys (both of them) broke.",
        "He won $1,000 in a 50/50 raffle!",
        '"Why?" she asked. "It\'s late," he said.',
        "dont say Im gonna; thats wrong, y'all.",
        "I couldn't've known they'd've left.",
        "The twenty-year-old's T-shirt was #1.",
    ],
)
def test_detokenize_puts_text_back(text):
    assert detokenize(split(text)) == text


def test_detokenize_takes_any_words():
    assert detokenize([]) == ""
    assert detokenize(["n't", ".", '"', "-"]) == "n't. \"-"
    assert detokenize(["a", "-", "-", "b"]) == "a - - b"


def test_special_tokens_and_order(tokenizer):
    assert tokenizer.convert_tokens_to_ids([START, END, UNK, PAD]) == [0, 1, 2, 3]
    assert [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id, tokenizer.pad_token_id] == [
        0,
        1,
        2,
        3,
    ]
    assert special_ids(tokenizer) == (0, 1, 3)
    built = WordTokenizer.from_texts(["b b a a c c c d"], min_count=0)
    assert built.convert_ids_to_tokens(range(len(built))) == [START, END, UNK, PAD, "c", "a", "b", "d"]


def test_min_count_means_more_than():
    built = WordTokenizer.from_texts(["a a a b b"], min_count=2)
    assert set(built.get_vocab()) == {START, END, UNK, PAD, "a"}
    assert WordTokenizer.from_texts(["a " * 11 + "b " * 10]).convert_ids_to_tokens([4]) == ["a"]
    assert len(WordTokenizer.from_texts(["a " * 11 + "b " * 10])) == 5


def test_case_is_kept(tokenizer):
    assert tokenizer.tokenize("She") == ["She"]
    assert tokenizer.tokenize("SHE") == [UNK]


def test_building_is_deterministic():
    first, second = (WordTokenizer.from_texts(iter(TEXTS), min_count=0) for _ in range(2))
    assert first.backend_tokenizer.to_str() == second.backend_tokenizer.to_str()


def test_fixed_length(tokenizer):
    assert tokenizer.model_max_length == 64
    ids = tokenizer("She left.", padding="max_length", truncation=True)["input_ids"]
    assert len(ids) == 64 and ids[0] == 0 and ids[4:] == [1] + [3] * 59
    ids = tokenizer("She left " * 60, padding="max_length", truncation=True)["input_ids"]
    assert len(ids) == 64 and ids[0] == 0 and ids[-1] == 1


def test_text_cannot_smuggle_in_special_tokens(tokenizer):
    ids = tokenizer.encode(f"She {END} left {PAD} {START} {UNK}", add_special_tokens=False)
    assert not {0, 1, 3} & set(ids)


def test_decoding_cuts_at_end_and_keeps_unk(tokenizer):
    she, left = tokenizer.convert_tokens_to_ids(["She", "left"])
    ids = [0, she, 2, left, 3, 1, she, left, 1]
    assert tokenizer.decode(ids, skip_special_tokens=True) == f"She {UNK} left"
    assert tokenizer.decode(ids) == f"{START} She {UNK} left {PAD} {END} She left {END}"
    assert tokenizer.decode([she, left], skip_special_tokens=True) == "She left"
    assert (
        tokenizer.decode(tokenizer.encode("couldn't"), clean_up_tokenization_spaces=False)
        == f"{START} could n't {END}"
    )
    for batch in ([ids, ids], np.array([ids, ids]), torch.tensor([ids, ids])):
        assert tokenizer.batch_decode(batch, skip_special_tokens=True) == [f"She {UNK} left"] * 2
    assert tokenizer.decode(she) == "She"
    with pytest.raises(ValueError, match="Token id -1 is outside the vocabulary"):
        tokenizer.decode([she, -1])
    with pytest.raises(ValueError, match="Token id 9999 is outside the vocabulary"):
        tokenizer.decode([she, 9999])


@pytest.mark.parametrize("ids", [1.5, [1.5], "x", ["x"], [None], [2**70], [[1]]])
def test_decoding_names_what_is_no_token_id(tokenizer, ids):
    with pytest.raises(ValueError, match="is outside the vocabulary, whose ids are 0 to"):
        tokenizer._decode(ids)


def test_half_characters_and_other_types_are_refused_by_name(tokenizer):
    for text in ("a\ud800b", ["a", "a\ud800b"], [["a\ud800b"]]):
        with pytest.raises(ValueError, match=r"`text` has '\\ud800' at position 1, which is half of a character"):
            tokenizer(text, is_split_into_words=isinstance(text[0], list))
    with pytest.raises(ValueError, match=r"`texts\[1\]` has '\\ud800' at position 1"):
        WordTokenizer.from_texts(["a", "a\ud800b"], min_count=0)
    with pytest.raises(ValueError, match="`text` is a int, '3'; it must be a string"):
        tokenizer(["a", 3])


def test_a_tokenizer_that_was_loaded_is_saved_as_before(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path / "one")
    forget_origin(WordTokenizer.from_pretrained(tmp_path / "one")).save_pretrained(tmp_path / "two")
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_content_ids_for_tokenizers_whose_start_is_their_end():
    backend = Tokenizer(models.WordLevel({"|": 0, "a": 1, "pad": 2, "?": 3}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    other = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="|", eos_token="|", unk_token="?", pad_token="pad"
    )
    assert content_ids([0, 1, 3, 0, 1, 2], other) == [1, 3]


def test_auto_tokenizer_and_pickle(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    for copy in (AutoTokenizer.from_pretrained(tmp_path), pickle.loads(pickle.dumps(tokenizer))):
        assert isinstance(copy, WordTokenizer)
        assert copy.backend_tokenizer.to_str() == WordTokenizer.from_pretrained(tmp_path).backend_tokenizer.to_str()
        assert copy.decode(copy.encode(TEXTS[0]), skip_special_tokens=True) == TEXTS[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "texts is empty"),
        (("a text",), "texts is a str, but a list"),
        ((None,), "texts is a NoneType"),
        ((["a", 3],), r"`texts\[1\]` is a int, '3'; it must be a string"),
        ((["a b", "c"],), "No word occurs more than 10 times in these 2 texts: lower min_count"),
        ((["a"], -1), "min_count is -1"),
        ((["a"], 0, 2), "max_length is 2, but START, a word and END need at least 3"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        WordTokenizer.from_texts(*arguments)
