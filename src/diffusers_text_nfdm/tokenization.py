"""A word-level tokenizer: English words and punctuation as spaCy splits them, between START and END."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from numbers import Integral

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoTokenizer,
    BatchEncoding,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from .checks import check_text


START, END, UNK, PAD = "<START>", "<END>", "<UNK>", "<PAD>"
# In the order of their ids.
SPECIAL = [START, END, UNK, PAD]

# ---- Splitting ------------------------------------------------------------------------------------------------------
# spaCy takes each whitespace-separated chunk, peels off prefixes and suffixes, looks the rest up among fixed
# exceptions and splits what remains at infixes. Here one regular expression does it, and tokenizer.json holds it.

_APOSTROPHE = "['’]"
_PUNCT = r"…,:;!?¿¡()\[\]{}<>_#*&"
_QUOTES = "'\"”“`‘´’‚„»«"
_LOWER, _UPPER, _LETTER = r"\p{Ll}\p{Lo}", r"\p{Lu}\p{Lo}", r"\p{L}"

_ABBREVIATIONS = (
    "Adm Ak Ala Apr Ariz Ark Aug Bros Calif Co Colo Conn Corp Dec Del Dr Feb Fla Ga Gen Gov Ia Id Ill Inc Ind Jan Jr "
    "Jul Jun Kan Kans Ky La Ltd Mar Mass Md Messrs Mich Minn Miss Mo Mont Mr Mrs Ms Mt Neb Nebr Nev Nov Oct Okla Ore "
    "Pa Prof Rep Rev Sen Sep Sept St Tenn Va Wash Wis co vs"
).split()

# Chunks that stay whole although a rule below would split them.
_WHOLE = "|".join(
    [
        rf"(?:{'|'.join(_ABBREVIATIONS)})\.",
        r"[a-zäöü]\.",
        r"[ap]\.m\.|e\.g\.|i\.e\.|v\.s\.|I\.e\.|E\.g\.",
        r"(?:[A-Z]\.)+|Ph\.D\.",
        rf"(?:[dD]oin|[gG]oin|[nN][ou]thin|[sS]omethin|[oO]l|[lL]ovin|[hH]avin){_APOSTROPHE}",
        rf"{_APOSTROPHE}(?:em|ll|nuff|[Cc]ause|[Cc][ou][sz]|bout|re|d|[sS])",
        r"[:;=]['o-]?(?:\)+|\(+|[\]\[}DPpOoXx30/|*>])|\(['-]?[:;=]|<3+|</3|\^_+\^|-_+-|[oO0]_[oO0]",
        r"C\+\+|and/or|w/o",
        r"(?:[A-Za-z][\w+.-]*://|www\.)\S*[\w/]|[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
    ]
)

_PREFIX = rf"[§%=—–{_PUNCT}{_QUOTES}]|\+(?!\d)|\.\.+|(?:US|[CA])?\$|\p{{Sc}}|\p{{So}}"

# No unit comes before a longer one that begins with it: repeated suffixes are matched without backtracking.
_UNITS = (
    "km/h|kmh|km[²³]?|dm[²³]?|cm[²³]?|mm[²³]?|mg|mph|mbar|mb|m/s|m[²³]?|ha|µm|nm|yd|in|ft|kg|gb|g|µg|tb|t|lb|oz|hPa|Pa"
    "|MB|kb|KB|GB|TB|T|G|M|K|%"
)
_SUFFIX = "|".join(
    [
        rf"{_APOSTROPHE}[sS]",
        rf"\.\.++|[—–{_PUNCT}{_QUOTES}]|\p{{So}}",
        rf"(?<=[0-9])(?:\+|\p{{Sc}}|{_UNITS})",
        rf"(?<=[0-9{_LOWER}%²\-+{_PUNCT}{_QUOTES}]|[{_UPPER}][{_UPPER}])\.",
    ]
)


def _cased(words: str) -> str:
    """A pattern for the words in lower and title case, grouped by initial so that most words fail at once."""
    rests: dict[str, list[str]] = {}
    for word in words.split():
        rests.setdefault(word[0], []).append(word[1:])
    return "|".join(f"[{initial.upper()}{initial}](?:{'|'.join(rest)})" for initial, rest in rests.items())


# (first word, what follows it): contractions, with and without their apostrophe, and the few fixed pairs.
_NEGATED = "ca could do does did had may might must need ought sha should wo would ai are is was were have has dare"
_PAIRS = [
    (_cased(_NEGATED), f"n{_APOSTROPHE}?t(?:{_APOSTROPHE}ve)?"),
    ("[Ii]", f"{_APOSTROPHE}?m"),
    (
        _cased("i you he she it we they who what when where why how there that this these those"),
        f"{_APOSTROPHE}(?:ll|d)(?:{_APOSTROPHE}ve)?",
    ),
    (_cased("you it they who what when where why how there that this these those"), "ll"),
    (_cased("i you he it we they who what when where why how there that this these those"), "d"),
    (
        _cased("i you we they who what when where why how there these those could might must should would not"),
        f"{_APOSTROPHE}?ve",
    ),
    (_cased("you we they who what when where why how there these those"), f"{_APOSTROPHE}re"),
    (_cased("you they what when where why how there these those"), "re"),
    (_cased("he she who what when where why how there that this"), "s"),
    ("[Cc]an", "not"),
    ("[Gg]on", "na"),
    ("[Gg]ot", "ta"),
    (f"y{_APOSTROPHE}?", "all"),
    (f"[Cc]{_APOSTROPHE}m", "on"),
    ("[1-9]|1[0-2]", r"[ap]m|[ap]\.m\."),
]
_INFIX = "|".join(
    [
        r"\.\.+|…|\p{So}",
        r"(?<=[0-9])[+\-*^](?=[0-9-])",
        rf"(?<=[{_LOWER}{_QUOTES}])\.(?=[{_UPPER}{_QUOTES}])",
        rf"(?<={_LETTER}),(?={_LETTER})",
        rf"(?<=[{_LETTER}0-9])(?:---?|——|[-–—~])(?={_LETTER})",
        rf"(?<=[{_LETTER}0-9])[:<>=/](?={_LETTER})",
    ]
)

# Most chunks are one word that no pair can end in: found without trying the rest.
_PAIR_ENDS = "nt|[Ii]m|ll|ve|re|na|ta|not|all|(?:[Hh]e|ho|re|at|en|hy|ow|is)s|(?:[Iiuyt]|[HhWw]e|ho|en|re|ow|is|se)d"
# The rules look ahead to the end of a chunk, so their time grows with its square. No word is as long as this.
_LONGEST_CHUNK = 200
_PLAIN = rf"\A{_LETTER}++(?<!{_PAIR_ENDS})(?:(?=[,!?]?\z)|(?<=\A\p{{Ll}}{{3,}})(?=\.\z))"


def word_splitter() -> pre_tokenizers.PreTokenizer:
    """The pre-tokenizer that splits text into words and punctuation marks."""
    first = (
        rf"(?:\A|\G(?<=[§%=—–.{_PUNCT}{_QUOTES}\p{{Sc}}\p{{So}}]))"  # at the start, or right after a mark split off
    )
    suffixes = rf"(?:{_SUFFIX})*+\z"
    leading = [
        rf"(?:{_WHOLE})(?={suffixes})",
        _PREFIX,
        *(rf"(?:{head})(?=(?:{tail}){suffixes})" for head, tail in _PAIRS),
    ]
    following = [
        rf"(?<=\d)[ap]\.m\.(?={suffixes})",
        rf"(?<=n['’]t|['’]ll|['’]d){_APOSTROPHE}ve(?={suffixes})",
        rf"(?:{_SUFFIX})(?={suffixes})",
        _INFIX,
    ]
    # What is matched is a word, and so is what remains between two matches. No rule begins between two letters or at
    # the end, and to say so before the rules saves a quarter of the time.
    rules = "|".join([rf"{first}(?:{'|'.join(leading)})", *following])
    pattern = rf"{_PLAIN}|(?=[^{_LETTER}]|(?<!{_LETTER}))(?:{rules})"
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    cut = pre_tokenizers.Split(Regex(rf"[\s\S]{{{_LONGEST_CHUNK}}}"), behavior="isolated")
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), cut, split])


# ---- Putting text back together -------------------------------------------------------------------------------------

_CLOSING = {",", ".", "!", "?", ";", ":", "%", ")", "]", "}", "…", "”"}
_OPENING = {"(", "[", "{", "$", "£", "€", "#", "“", "‘"}
_JOINING = {"-", "/"}
_CLITIC = re.compile(r"n?['’](?:s|S|ll|ve|re|d|m|t)|nt|\.\.+")
_PAIR = re.compile("|".join(f"(?:{first}) (?:{rest})" for first, rest in _PAIRS))


def detokenize(words: Sequence[str]) -> str:
    """Join words and punctuation marks into running text: `["could", "n't", "."]` gives `couldn't.`"""
    pieces: list[str] = []
    previous = ""
    glue = True  # whether the next word follows without a space
    open_quotes: set[str] = set()
    for position, word in enumerate(words):
        after = False
        if word in _CLOSING or _CLITIC.fullmatch(word):
            glue = True
        elif word in _OPENING:
            after = True
        elif word in _JOINING:
            following = words[position + 1] if position + 1 < len(words) else ""
            if previous[-1:].isalnum() and following[:1].isalnum():
                glue = after = True
        elif word in ('"', "'"):
            if word in open_quotes:
                open_quotes.remove(word)
                glue = True
            elif word == "'" and previous[-1:] in ("s", "x", "z"):
                glue = True
            else:
                open_quotes.add(word)
                after = True
        elif len(word) <= 4 and _PAIR.fullmatch(f"{previous} {word}"):
            glue = True
        pieces.append(word if glue else " " + word)
        previous, glue = word, after
    return "".join(pieces)


# ---- The tokenizer --------------------------------------------------------------------------------------------------


def checked_texts(texts: Iterable[str]) -> Iterator[str]:
    """The texts; a ValueError for what is none, and where there are none."""
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise ValueError(f"texts is a {type(texts).__name__}, but a list or other iterable of strings is needed.")

    def checked() -> Iterator[str]:
        seen = 0
        for text in texts:
            check_text(f"texts[{seen}]", text)
            seen += 1
            yield text
        if seen == 0:
            raise ValueError("texts is empty, but a vocabulary needs at least one text.")

    return checked()


def between_start_and_end(
    backend: Tokenizer, max_length: int, tokenizer_class: type[PreTrainedTokenizerFast], **options
) -> PreTrainedTokenizerFast:
    """A tokenizer that puts a text between START and END and pads behind it. The first ids of the backend are those of
    `SPECIAL`; where these are written out in a text they are split like other words.
    """
    backend.post_processor = processors.TemplateProcessing(
        single=f"{START} $A {END}", special_tokens=[(START, 0), (END, 1)]
    )
    return tokenizer_class(
        tokenizer_object=backend,
        bos_token=START,
        eos_token=END,
        unk_token=UNK,
        pad_token=PAD,
        model_max_length=max_length,
        padding_side="right",
        truncation_side="right",
        split_special_tokens=True,
        model_input_names=["input_ids", "attention_mask"],
        **options,
    )


class WordTokenizer(PreTrainedTokenizerFast):
    """Word-level tokenizer with the special tokens START (bos), END (eos), UNK and PAD, in this order the ids 0 to 3.

    `tokenizer(text, padding="max_length", truncation=True)` gives START, words, END and then PAD up to
    `model_max_length`; a text that is too long is cut and still ends in END. Special tokens written out in a text are
    split like any other characters, so text cannot smuggle them in.

    `decode(ids, skip_special_tokens=True)` drops START, cuts at the first END, drops PAD and keeps UNK visible, so
    that it shows what a model produced and no more. `skip_special_tokens=False` shows everything.
    """

    @classmethod
    def from_texts(cls, texts: Iterable[str], min_count: int = 10, max_length: int = 64) -> WordTokenizer:
        """Build the vocabulary: the special tokens, then each word seen more than `min_count` times, the most frequent
        first and equally frequent ones in alphabetical order."""
        if not isinstance(min_count, int) or isinstance(min_count, bool) or min_count < 0:
            raise ValueError(f"min_count is {min_count!r}, but a whole number of at least 0 is needed.")
        if not isinstance(max_length, int) or isinstance(max_length, bool) or max_length < 3:
            raise ValueError(f"max_length is {max_length!r}, but START, a word and END need at least 3.")

        backend = Tokenizer(models.WordLevel(unk_token=UNK))
        backend.pre_tokenizer = word_splitter()
        trainer = trainers.WordLevelTrainer(
            vocab_size=2**31, min_frequency=min_count + 1, special_tokens=SPECIAL, show_progress=False
        )
        texts, number = checked_texts(texts), itertools.count()
        backend.train_from_iterator((text for text, _ in zip(texts, number)), trainer)
        if backend.get_vocab_size() == len(SPECIAL):
            raise ValueError(
                f"No word occurs more than {min_count} times in these {next(number)} texts: lower min_count or give "
                "more text."
            )
        return between_start_and_end(backend, max_length, cls)

    def grown(self, texts: Iterable[str], min_count: int = 10) -> WordTokenizer:
        """This tokenizer with the words besides that are seen more than `min_count` times in the texts.

        What has an id keeps it; new words follow, the most frequent first.
        """
        old = self.get_vocab()
        words = type(self).from_texts(texts, min_count, self.model_max_length).get_vocab()
        new = [word for word in sorted(words, key=words.get) if word not in old]
        backend = Tokenizer(models.WordLevel({**old, **{word: len(old) + i for i, word in enumerate(new)}}, UNK))
        backend.pre_tokenizer = word_splitter()
        return between_start_and_end(backend, self.model_max_length, type(self))

    def _encode_plus(self, text: str | list[str] | list[list[str]], *args, **kwargs) -> BatchEncoding:
        texts = list(_strings(text))
        if not texts:
            raise ValueError(f"`text` is {text!r}; it must be a text, or a list of at least one.")
        for one in texts:
            check_text("text", one)
        return super()._encode_plus(text, *args, **kwargs)

    def _has(self, token: int) -> bool:
        return isinstance(token, Integral) and not isinstance(token, bool) and 0 <= token < len(self)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return detokenize(tokens)

    def _decode(
        self,
        token_ids: int | list[int],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> str:
        """`clean_up_tokenization_spaces=False` leaves a space between any two tokens; else text is put together."""
        ids = list(token_ids) if isinstance(token_ids, (list, tuple)) else [token_ids]
        if skip_special_tokens:
            ids = content_ids(ids, self)
        for unknown in (token for token in ids if not self._has(token)):
            raise ValueError(f"Token id {unknown!r} is outside the vocabulary, whose ids are 0 to {len(self) - 1}.")
        tokens = self.convert_ids_to_tokens(ids)
        return " ".join(tokens) if clean_up_tokenization_spaces is False else detokenize(tokens)


def _strings(text: str | Sequence) -> Iterator[str]:
    """A text, or those of a batch, which may be split into words."""
    if isinstance(text, (list, tuple)):
        for part in text:
            yield from _strings(part)
    else:
        yield text


def forget_origin(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tokenizer, without a note of how it was loaded, which transformers would save with it."""
    for name in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(name, None)
    return tokenizer


def content_ids(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids of the text itself, for any tokenizer: no START, nothing from the first END on, no PAD; UNK stays."""
    start, end, pad = special_ids(tokenizer)
    ids = list(ids)
    if ids and start is not None and ids[0] == start:
        ids = ids[1:]
    if end in ids:
        ids = ids[: ids.index(end)]
    return [token for token in ids if token not in (start, pad)]


def special_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[int | None, int, int]:
    """The ids of START, END and PAD: bos or else cls (None if neither is set), eos or else sep, and pad."""
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.cls_token_id
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    name = type(tokenizer).__name__
    if end is None:
        raise ValueError(f"{name} has no END token: set tokenizer.eos_token (or sep_token) to one of its tokens.")
    if tokenizer.pad_token_id is None:
        raise ValueError(f"{name} has no PAD token: tokenizer.add_special_tokens({{'pad_token': '{PAD}'}}) adds one.")
    if tokenizer.pad_token_id == end:
        raise ValueError(
            f"{name} pads with its END token: tokenizer.add_special_tokens({{'pad_token': '{PAD}'}}) adds one for PAD."
        )
    return start, end, tokenizer.pad_token_id


class WordTokenizerConfig(PreTrainedConfig):
    """Names `WordTokenizer` to `AutoTokenizer`, which finds tokenizers outside transformers through a config class."""

    model_type = "word_tokenizer"


AutoTokenizer.register(WordTokenizerConfig, WordTokenizer, exist_ok=True)
