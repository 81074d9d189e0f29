"""Prompts: what is known of the texts to be written.

"One windy Friday, Leo"                     a beginning, which is continued
"One windy Friday, [MASK][MASK] a tuba."    a whole text, in which every [MASK] becomes one token
"One windy Friday, Leo [GAP] a tuba."       a whole text with a gap of unknown length

A condition stands beside them, before the text (`conditions`).
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..checks import check_text, is_number
from ..conditions import encode_conditions, put_in, spread, take_out
from ..likelihood.scoring import score_texts
from ..tokenization import special_ids
from .samples import check_samples, sample_generators


if TYPE_CHECKING:
    from ..baseline import AutoregressivePipeline, MaskedDiffusionPipeline
    from ..models import TextDiffusionModel
    from .batches import NFDMTextPipelineOutput
    from .pipeline_nfdm_text import NFDMTextPipeline


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
    conditions: list[str | None] | None = None,
    condition_length: int = 0,
) -> Prompts:
    """Token ids and which of them are known.

    Args:
        prompts: one for each text.
        max_length: positions of the model, START and END included.
        gen_length: tokens that continue a beginning; END follows them. By default END is left to the model.
        max_gap_length: the most tokens that a gap is tried with.
        conditions: one for each text, in `condition_length` places.
    """
    for name, value in (("gen_length", gen_length), ("max_gap_length", max_gap_length)):
        if value is not None and (not is_number(value) or not isinstance(value, int) or value < 1):
            raise ValueError(f"`{name}` is {value!r}; it must be an integer of at least 1.")
    start, end, pad = special_ids(tokenizer)
    rows, candidates, outside = [], [], {}
    conditions = [None] * len(prompts) if conditions is None else conditions
    for condition in conditions:
        _note_unknown(spread(condition or ""), tokenizer, outside)
    given = encode_conditions(conditions, tokenizer, condition_length, pad)
    room = max_length - condition_length
    for prompt, condition in zip(prompts, given):
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
        if tokens > room or (not closed and tokens == room):
            raise ValueError(
                f"The prompt {prompt[:60]!r} takes {tokens} tokens with START{' and END' * closed}"
                f"{'' if gen_length is None else f' and the {gen_length} of `gen_length`'}"
                f"{'' if closed else ' and leaves none to write'}; the model has {room} positions."
            )
        lengths = range(1, min(max_gap_length, room - tokens + 1) + 1) if GAP in parts else [1]
        for length in lengths:
            rows.append(_row([start, *condition], parts, length, closed, max_length, end, pad))
        candidates.append(len(lengths))
    if outside:
        warnings.warn(f"Not in the vocabulary, read as unknown words: {', '.join(map(repr, outside))}.", stacklevel=3)
    input_ids, known = (torch.stack(column) for column in zip(*rows))
    return Prompts(input_ids, known, candidates)


def for_each_text(**given: str | list[str] | None) -> dict[str, list[str | None]]:
    """`prompt` and `condition` for each of `num_samples` texts."""
    number = given.pop("num_samples")
    for name, value in given.items():
        if value is None or isinstance(value, str):
            continue
        if not isinstance(value, (list, tuple)) or not value:
            raise ValueError(f"`{name}` is {value!r}; it must be a text or a list of texts.")
        if number is not None and number != len(value):
            raise ValueError(f"There are {len(value)} of `{name}` for {number} texts; leave `num_samples` out.")
        number = len(value)
    number = 1 if number is None else number
    texts = {
        name: [value] * number if value is None or isinstance(value, str) else list(value)
        for name, value in given.items()
    }
    for name, values in texts.items():
        for value in values:
            if value is not None:
                check_text(name, value)
    return texts


def write_prompts(
    pipeline: NFDMTextPipeline | MaskedDiffusionPipeline | AutoregressivePipeline,
    prompt: str | list[str] | None,
    condition: str | list[str] | None,
    num_samples: int | None,
    generator: torch.Generator | list[torch.Generator] | None,
    lengths: dict[str, int | None],
    options: dict[str, Any],
) -> NFDMTextPipelineOutput:
    """Texts from prompts and conditions; of a gap the most probable candidate.

    Args:
        lengths: `gen_length` and `max_gap_length`.
        options: all other arguments of the pipeline's call.
    """
    config = pipeline.model.config
    check_condition(config, condition)
    given = for_each_text(prompt=prompt, condition=condition, num_samples=num_samples)
    conditions = given["condition"]
    slots = config.copied_slots or []
    prompts = read_prompts(
        ["" if text is None else text for text in given["prompt"]],
        pipeline.tokenizer,
        config.max_length,
        **lengths,
        conditions=[one and take_out(one, "", slots)[0] for one in conditions],
        condition_length=config.condition_length,
    )
    check_samples(len(conditions), options["batch_size"], generator)
    generators = sample_generators(len(conditions), generator)
    # Every candidate has the random numbers of its text.
    rows = [
        torch.Generator(one.device).set_state(one.get_state())
        for one, n in zip(generators, prompts.candidates)
        for _ in range(n)
    ]
    output = pipeline(input_ids=prompts.input_ids, known=prompts.known, generator=rows, **options)
    output = keep_best(pipeline.model, prompts, output)
    if output.texts is not None and slots:
        output.texts = [put_in(text, one or "", slots) for text, one in zip(output.texts, conditions)]
    return output


def check_condition(config: Any, condition: str | list[str] | None) -> None:
    """Raise a ValueError for a condition that the model cannot read, or one that it cannot be without."""
    if condition is not None and not config.condition_length:
        raise ValueError(
            "`condition` is given, but this model was trained without conditions: see `condition_column`."
        )
    if condition is None and config.condition_length and not config.condition_dropout:
        raise ValueError("This model was always trained with a condition; it needs a `condition`.")


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
            # For tokenizers of subwords a space belongs to the word behind it.
            ids = tokenizer(piece.rstrip(), add_special_tokens=False)["input_ids"]
            _note_unknown(piece, tokenizer, outside)
            parts.append(ids)
    return parts


def _note_unknown(text: str, tokenizer: PreTrainedTokenizerBase, outside: dict[str, None]) -> None:
    """Note the words of a text that the tokenizer does not know."""
    if tokenizer.unk_token_id not in tokenizer(text, add_special_tokens=False)["input_ids"]:
        return
    for word in text.split():
        if tokenizer.unk_token_id in tokenizer(word, add_special_tokens=False)["input_ids"]:
            outside[word] = None


def _row(
    head: list[int], parts: list[list[int] | str], gap: int, closed: bool, max_length: int, end: int, pad: int
) -> tuple[Tensor, Tensor]:
    ids, known = list(head), [True] * len(head)
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
