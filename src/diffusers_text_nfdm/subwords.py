"""A tokenizer of subwords, trained from texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from .tokenization import SPECIAL, UNK, between_start_and_end, checked_texts


# Every byte has a token of its own, so that no text is unknown.
SMALLEST_VOCABULARY = len(SPECIAL) + 256


def train_subword_tokenizer(
    texts: Iterable[str], vocab_size: int = 4000, max_length: int = 64, whole: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """Byte-level BPE: the bytes, then the most frequent pairs merged, until there are `vocab_size` tokens.

    The special tokens are those of `WordTokenizer`, START, END, UNK and PAD with the ids 0 to 3. No text is unknown,
    and decoding gives back every text as it was. Special tokens written out in a text are split like any other
    characters.

    Args:
        texts: what the merges are learned from.
        vocab_size: tokens, at least 260: special ones and bytes. Few texts may give fewer.
        max_length: positions of a text, START and END included.
        whole: words that are one token each, wherever they stand. `vocab_size` counts them.
    """
    smallest = SMALLEST_VOCABULARY + len(whole)
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, int) or vocab_size < smallest:
        raise ValueError(
            f"vocab_size is {vocab_size!r}, but the bytes and the special tokens need at least {smallest}."
        )
    backend = Tokenizer(models.BPE(unk_token=UNK))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(whole),
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = checked_texts(texts)
    if whole:
        # No merges are spent on them.
        words = re.compile("|".join(map(re.escape, whole)))
        texts = (words.sub("", text) for text in texts)
    backend.train_from_iterator(texts, trainer)
    backend.add_tokens([AddedToken(word, normalized=False) for word in whole])
    return between_start_and_end(backend, max_length, PreTrainedTokenizerFast, clean_up_tokenization_spaces=False)
