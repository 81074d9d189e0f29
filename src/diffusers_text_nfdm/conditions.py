"""A condition beside the text: tokens that are always known, in places of their own before it.

    START, condition, padding, text, END, padding
           `condition_length` tokens

So a condition is read as any other known token is, by the clean stream and by the noisy one, and no likelihood counts
it. Without a condition its places are padding.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from .checks import is_number


def check_condition_length(condition_length: int, max_length: int) -> None:
    """Raise a ValueError unless START, the condition, a token and END have room."""
    if not is_number(condition_length) or not isinstance(condition_length, int) or condition_length < 0:
        raise ValueError(f"`condition_length` is {condition_length!r}; it must be an integer of at least 0.")
    if condition_length and condition_length + 3 > max_length:
        raise ValueError(
            f"`condition_length` is {condition_length} with `max_length` {max_length}; START, the condition, a token "
            "and END need more."
        )


def with_condition(known: Tensor | None, input_ids: Tensor, condition_length: int) -> Tensor | None:
    """The known tokens, and those of the condition, `(batch, seq)`."""
    if not condition_length:
        return known
    positions = torch.arange(input_ids.shape[1], device=input_ids.device)
    condition = ((positions > 0) & (positions <= condition_length)).expand(input_ids.shape)
    return condition.clone() if known is None else known.to(input_ids.device) | condition


def text_tokens(input_ids: Tensor, condition_length: int) -> Tensor:
    """START and the text, without the condition."""
    if not condition_length:
        return input_ids
    return torch.cat([input_ids[:, :1], input_ids[:, condition_length + 1 :]], dim=1)


def drop_condition(input_ids: Tensor, dropped: Tensor, condition_length: int, pad_token_id: int) -> Tensor:
    """Padding in place of the condition of the texts that are `dropped`, `(batch,)`."""
    input_ids = input_ids.clone()
    condition = input_ids[:, 1 : condition_length + 1]
    condition.masked_fill_(dropped[:, None], pad_token_id)
    return input_ids


def encode_conditions(
    conditions: Sequence[str | None], tokenizer: PreTrainedTokenizerBase, condition_length: int, pad_token_id: int
) -> list[list[int]]:
    """Token ids of each condition, padded to `condition_length`; `None` is only padding."""
    rows = []
    for condition in conditions:
        ids = tokenizer(spread(condition), add_special_tokens=False)["input_ids"] if condition else []
        if len(ids) > condition_length:
            raise ValueError(
                f"The condition {condition[:60]!r} has {len(ids)} tokens; the model's `condition_length` is "
                f"{condition_length}."
            )
        rows.append(ids + [pad_token_id] * (condition_length - len(ids)))
    return rows


def spread(condition: str) -> str:
    """Spaces around brackets and equals signs, so that names and values of a record like `area[city centre]` are words
    of their own.
    """
    return re.sub(r"([\[\](){}=])", r" \1 ", condition)


# ---- Records --------------------------------------------------------------------------------------------------------
# `name[Aromi], area[city centre]`: slots with values.

_SLOT = re.compile(r"\s*([^\[\],]+?)\s*\[([^\]]*)\]")


def read_record(condition: str) -> dict[str, str]:
    """The slots of a record and their values."""
    return {slot: value.strip() for slot, value in _SLOT.findall(condition)}


def placeholder(slot: str) -> str:
    """The word that stands for the value of a slot that is copied."""
    return re.sub(r"\W", "", slot) + "Value"


def take_out(condition: str, text: str, slots: Sequence[str]) -> tuple[str, str]:
    """Condition and text with placeholders for the values of the slots."""
    record = read_record(condition)
    values = sorted(((record[slot], slot) for slot in slots if record.get(slot)), key=lambda pair: -len(pair[0]))
    for value, slot in values:
        text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", placeholder(slot), text)
        condition = re.sub(
            rf"({re.escape(slot)}\s*)\[\s*{re.escape(value)}\s*\]", rf"\1[{placeholder(slot)}]", condition
        )
    return condition, text


def take_out_row(row: dict[str, str], slots: list[str]) -> dict[str, str]:
    """A row of the dataset with the values of the slots taken out of its condition and its text."""
    condition, text = take_out(row["condition"], row["text"], slots)
    return {"condition": condition, "text": text}


def absent_placeholders(
    input_ids: Tensor, known: Tensor, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig
) -> Tensor | None:
    """Which tokens each text must not have, `(batch, vocab)`: placeholders of slots that are not in its condition, for
    which there is no value to put in. `None` if no slots are copied.

    A text without any condition is a template: it may have all of them.

    Args:
        input_ids, known: `(batch, seq)`, the tokens, and which of them are given.
        config: of a model with `copied_slots`.
    """
    if not config.copied_slots:
        return None
    words = [placeholder(slot) for slot in config.copied_slots]
    split = tokenizer(words, add_special_tokens=False)["input_ids"]
    # A placeholder in several tokens has none of its own.
    ids = [one[0] for one in split if len(one) == 1 and one[0] != tokenizer.unk_token_id]
    ids = torch.tensor(ids, dtype=torch.long, device=input_ids.device)
    condition = input_ids.masked_fill(~known, config.pad_token_id)[:, 1 : config.condition_length + 1]
    has_condition = (condition != config.pad_token_id).any(1, keepdim=True)
    excluded = torch.zeros(len(input_ids), config.vocab_size, dtype=torch.bool, device=input_ids.device)
    excluded[:, ids] = has_condition & ~(condition[..., None] == ids).any(1)
    return excluded


def put_in(text: str, condition: str, slots: Sequence[str]) -> str:
    """The text with the values of the slots in place of their placeholders."""
    for slot, value in read_record(condition).items():
        if slot in slots:
            text = text.replace(placeholder(slot), value)
    return text
