"""What generating a number of samples takes, whatever the model."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..checks import check_is_tensor, is_number
from ..clocks import check_known
from ..conditions import text_tokens
from ..tokenization import content_ids


def check_samples(num_samples: int, batch_size: int, generator: torch.Generator | list | None) -> None:
    """Raise a ValueError where these are no number of samples, no batch size, or no generators for so many samples."""
    for name, value in (("num_samples", num_samples), ("batch_size", batch_size)):
        if not is_number(value) or not isinstance(value, int) or value < 1:
            raise ValueError(f"`{name}` is {value!r}; it must be an integer of at least 1.")
    if isinstance(generator, list) and len(generator) != num_samples:
        raise ValueError(
            f"`generator` is a list of {len(generator)} for {num_samples} samples; it must be one generator, or one "
            "per sample."
        )
    if isinstance(generator, list) and len(set(map(id, generator))) < len(generator):
        raise ValueError(
            "`generator` has one generator several times, so that samples would depend on the batch size; give one "
            "generator, or one per sample."
        )
    for one in generator if isinstance(generator, list) else [generator] * (generator is not None):
        if not isinstance(one, torch.Generator):
            raise ValueError(
                f"`generator` has {one!r}; it must be a `torch.Generator` or a list of them: "
                "`torch.Generator().manual_seed(0)`."
            )


def count_rows(name: str, value: Tensor) -> int:
    """Of a tensor with one for each sample; a ValueError for what is none."""
    check_is_tensor(name, value)
    if not value.ndim:
        raise ValueError(f"`{name}` is a number; it must be a tensor with a row for each sample.")
    return len(value)


def check_given(num_samples: int, input_ids: Tensor | None, known: Tensor | None) -> bool:
    """Whether tokens are given; a ValueError where these are no token ids and known tokens of so many samples."""
    if (input_ids is None) != (known is None):
        raise ValueError("`input_ids` and `known` go together: token ids, and which of them are given.")
    if input_ids is None:
        return False
    rows = count_rows("input_ids", input_ids)
    if rows != num_samples:
        raise ValueError(f"`input_ids` has {rows} rows for {num_samples} samples; each needs one.")
    check_known(known, input_ids.shape)
    return True


def sample_generators(
    num_samples: int, generator: torch.Generator | list[torch.Generator] | None
) -> list[torch.Generator]:
    """One generator per sample, so that a sample is the same alone and in any batch."""
    if isinstance(generator, list):
        return generator
    device = "cpu" if generator is None else generator.device
    seeds = torch.randint(2**62, (num_samples,), generator=generator, device=device).tolist()
    return [torch.Generator(device).manual_seed(seed) for seed in seeds]


def decode_texts(sequences: Tensor, tokenizer: PreTrainedTokenizerBase, condition_length: int = 0) -> list[str]:
    """The texts of token ids `(samples, seq)`, without their condition."""
    # Most tokenizers would drop UNK with the other special tokens and would not stop at END, which flatters a model.
    return [tokenizer.decode(content_ids(ids, tokenizer)) for ids in text_tokens(sequences, condition_length).tolist()]


def fork(generator: torch.Generator) -> torch.Generator:
    """A generator of other numbers that depends on the state of the given one and leaves it as it is."""
    copy = torch.Generator(generator.device).set_state(generator.get_state())
    seed = torch.randint(2**62, (), generator=copy, device=copy.device).item()
    return torch.Generator(generator.device).manual_seed(seed)
