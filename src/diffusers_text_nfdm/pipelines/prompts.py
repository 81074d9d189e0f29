"""Prompts: what is known of the texts to be written.

"One windy Friday, Leo"                     a beginning, which is continued
"One windy Friday, [MASK][MASK] a tuba."    a whole text, in which every [MASK] becomes one token
"One windy Friday, Leo [GAP] a tuba."       a whole text with a gap of unknown length
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..checks import is_number
from ..likelihood.scoring import score_texts
from ..tokenization import special_ids


if TYPE_CHECKING:
    from ..models import TextDiffusionModel
    from .batches import NFDMTextPipelineOutput


MASK, GAP = "[MASK]", "[GAP]"


@dataclass
class Prompts:
    """
    Args:
        input_ids: `(candidates, max_length)`; unknown tokens are padding.
        known: of the same shape.
        candidates: how many of the rows are for each text: one for each length of its gap.
    """

    input_ids: Tensor
    known: Tensor
    candidates: list[int]


def read_prompts(
    prompts: list[str],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    gen_length: int | None = None,
    max_gap_length: int = 16,
) -> Prompts:
    """Token ids and which of them are known.

    Args:
        prompts: one for each text.
        max_length: positions of the model, START and END included.
        gen_length: tokens that continue a beginning; END follows them. By default END is left to the model.
        max_gap_length: the most tokens that a gap is tried with.
    """
    for name, value in (("gen_length", gen_length), ("max_gap_length", max_gap_length)):
        if value is not None and (not is_number(value) or not isinstance(value, int) or value < 1):
            raise ValueError(f"`{name}` is {value!r}; it must be an integer of at least 1.")
    start, end, pad = special_ids(tokenizer)
    rows, candidates, outside = [], [], {}
    for prompt in prompts:
        parts = _parts(prompt, tokenizer, outside)
        closed = any(part in (MASK, GAP) for part in parts)
        if closed and gen_length is not None:
            raise ValueError(f"`gen_length` is for a beginning; the prompt {prompt!r} has tokens to fill in.")
        if parts.count(GAP) > 1:
            raise ValueError(f"The prompt {prompt!r} has {parts.count(GAP)} gaps; one {GAP} can be filled at a time.")
        if not closed:
            parts += [MASK] * gen_length if gen_length is not None else []
            closed = gen_length is not None
        tokens = sum(1 if part in (MASK, GAP) else len(part) for part in parts) + 1 + closed
        if tokens > max_length or (not closed and tokens == max_length):
            raise ValueError(
                f"The prompt {prompt[:60]!r} takes {tokens} tokens with START{' and END' * closed}"
                f"{'' if closed else ' and leaves none to write'}; the model has {max_length} positions."
            )
        lengths = range(1, min(max_gap_length, max_length - tokens + 1) + 1) if GAP in parts else [1]
        for length in lengths:
            rows.append(_row(parts, length, closed, max_length, start, end, pad))
        candidates.append(len(lengths))
    if outside:
        warnings.warn(f"Not in the vocabulary, read as unknown words: {', '.join(map(repr, outside))}.", stacklevel=3)
    input_ids, known = (torch.stack(column) for column in zip(*rows))
    return Prompts(input_ids, known, candidates)


def repeat_prompt(prompt: str | list[str], num_samples: int | None) -> list[str]:
    """A prompt for each text."""
    if isinstance(prompt, str):
        return [prompt] * (1 if num_samples is None else num_samples)
    if not isinstance(prompt, (list, tuple)) or not prompt:
        raise ValueError(f"`prompt` is {prompt!r}; it must be a text or a list of texts.")
    if num_samples is not None and num_samples != len(prompt):
        raise ValueError(f"`num_samples` is {num_samples} with {len(prompt)} prompts; leave it out.")
    return list(prompt)


@torch.no_grad()
def keep_best(model: TextDiffusionModel, prompts: Prompts, output: NFDMTextPipelineOutput) -> NFDMTextPipelineOutput:
    """Of the candidates of each text the most probable one, by `-log p` of the clean stream or else by the bound."""
    if max(prompts.candidates) == 1:
        return output
    if output.sequences is None:
        raise ValueError("A gap needs `output_type` 'text' or 'seq': the candidates are compared as texts.")
    nats = score_texts(model, output.sequences).nats
    best, start = [], 0
    for n in prompts.candidates:
        best.append(start + int(nats[start : start + n].argmin()))
        start += n
    calls = torch.stack([part.sum() for part in output.calls.split(prompts.candidates)])
    return dataclasses.replace(
        output,
        texts=None if output.texts is None else [output.texts[row] for row in best],
        sequences=output.sequences[best],
        trajectory=None if output.trajectory is None else output.trajectory[:, best],
        trajectory_times=None if output.trajectory_times is None else output.trajectory_times[:, best],
        num_function_evaluations=int(calls.max()),
        calls=calls,
    )


def _parts(prompt: str, tokenizer: PreTrainedTokenizerBase, outside: dict[str, None]) -> list[list[int] | str]:
    """The prompt as token ids, masks and gaps; words that the tokenizer does not know are noted."""
    if not isinstance(prompt, str):
        raise ValueError(f"`prompt` has {prompt!r}; it must be a text or a list of texts.")
    parts: list[list[int] | str] = []
    for piece in re.split(r"(\[MASK\]|\[GAP\])", prompt):
        if piece in (MASK, GAP):
            parts.append(piece)
        elif piece.strip():
            ids = tokenizer(piece, add_special_tokens=False)["input_ids"]
            if tokenizer.unk_token_id in ids:
                for word in piece.split():
                    if tokenizer.unk_token_id in tokenizer(word, add_special_tokens=False)["input_ids"]:
                        outside[word] = None
            parts.append(ids)
    return parts


def _row(
    parts: list[list[int] | str], gap: int, closed: bool, max_length: int, start: int, end: int, pad: int
) -> tuple[Tensor, Tensor]:
    ids, known = [start], [True]
    for part in parts:
        unknown = {MASK: 1, GAP: gap}.get(part) if isinstance(part, str) else None
        ids += [pad] * unknown if unknown else part
        known += [False] * unknown if unknown else [True] * len(part)
    rest = max_length - len(ids)
    if closed:
        ids += [end] + [pad] * (rest - 1)
    else:
        ids += [pad] * rest
    known += [closed] * rest
    return torch.tensor(ids), torch.tensor(known)
