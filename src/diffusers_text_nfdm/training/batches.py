"""Which texts make up which batch, as a function of the seed and the step alone.

The batch of a step is the same however many processes and accumulation steps share it, and a run that resumes at a
step needs to know nothing else to go on where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader


if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset


class Partition:
    """How the rows of a batch are shared out: part m of process r are the rows `m·W·n + r·n` and the n - 1 that follow
    it.
    """

    def __init__(self, batch_size: int, num_processes: int, process: int, accumulation_steps: int):
        if batch_size % (num_processes * accumulation_steps):
            raise ValueError(
                f"`batch_size` is {batch_size}; it must be a multiple of {num_processes * accumulation_steps}, the "
                "number of processes "
                f"({num_processes}) times `gradient_accumulation_steps` ({accumulation_steps})."
            )
        self.batch_size = batch_size
        self.num_processes, self.process = num_processes, process
        self.accumulation_steps = accumulation_steps
        self.part_size = batch_size // (num_processes * accumulation_steps)

    def rows(self, part: int) -> tuple[int, int]:
        """First and one past the last row of a part of this process."""
        start = (part * self.num_processes + self.process) * self.part_size
        return start, start + self.part_size


class _Rows(torch.utils.data.Dataset):
    """`rows[indices]` is a tensor of token ids."""

    def __init__(self, dataset: Dataset):
        self.dataset = dataset.select_columns(["input_ids"]).with_format("numpy")

    def __getitem__(self, indices: list[int]) -> Tensor:
        return torch.from_numpy(np.asarray(self.dataset[indices]["input_ids"], dtype=np.int64))


class _Indices:
    """For every step from `start_step` on, and every part of it, the texts of this process."""

    def __init__(self, num_texts: int, partition: Partition, seed: int, start_step: int):
        self.num_texts, self.partition, self.seed, self.start_step = num_texts, partition, seed, start_step

    def __iter__(self) -> Iterator[list[int]]:
        steps_per_epoch = self.num_texts // self.partition.batch_size
        epoch, order, step = -1, np.empty(0), self.start_step
        while True:
            if step // steps_per_epoch != epoch:
                epoch = step // steps_per_epoch
                order = np.random.default_rng([self.seed, epoch]).permutation(self.num_texts)
            first = (step % steps_per_epoch) * self.partition.batch_size
            for part in range(self.partition.accumulation_steps):
                start, stop = self.partition.rows(part)
                yield order[first + start : first + stop].tolist()
            step += 1


def training_batches(
    dataset: Dataset | IterableDataset, partition: Partition, seed: int, start_step: int = 0, workers: int = 0
) -> Iterator[Tensor]:
    """Endless token ids `(part_size, max_length)` for this process, part after part, beginning at `start_step`."""
    from datasets import IterableDataset

    if isinstance(dataset, IterableDataset):
        return _streamed_batches(dataset, partition, seed, start_step)
    if len(dataset) < partition.batch_size:
        raise ValueError(
            f"`batch_size` is {partition.batch_size}, but there are only {len(dataset)} training texts; it must not "
            "be larger than that."
        )
    indices = _Indices(len(dataset), partition, seed, start_step)
    # Workers forked after threads were started may hang; spawned ones do not.
    context = "spawn" if workers else None
    return iter(
        DataLoader(
            _Rows(dataset), batch_size=None, sampler=indices, num_workers=workers, multiprocessing_context=context
        )
    )


def _streamed_batches(dataset: IterableDataset, partition: Partition, seed: int, start_step: int) -> Iterator[Tensor]:
    """A stream is sharded by process, so its batches depend on the number of processes."""
    from datasets.distributed import split_dataset_by_node

    shard = split_dataset_by_node(dataset, rank=partition.process, world_size=partition.num_processes)
    shard = shard.shuffle(seed=seed, buffer_size=10_000)
    skip = start_step * partition.accumulation_steps * partition.part_size
    rows, epoch = [], 0
    while True:
        shard.set_epoch(epoch)
        seen = 0
        for row in shard:
            seen += 1
            if skip:
                skip -= 1
                continue
            rows.append(torch.as_tensor(row["input_ids"], dtype=torch.long))
            if len(rows) == partition.part_size:
                yield torch.stack(rows)
                rows = []
        if not seen:
            raise ValueError(
                f"The stream has no texts for process {partition.process}; use fewer processes or another dataset."
            )
        epoch += 1


def mix_seeds(*numbers: int) -> int:
    """One seed out of several numbers, far apart for neighbouring ones (splitmix64)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) % 2**64
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % 2**64
        state ^= state >> 31
    return state >> 1
