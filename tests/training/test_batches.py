from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from diffusers_text_nfdm.training.batches import Partition, _Indices, training_batches


LENGTH = 3


def rows(number):
    """Row i holds i, 3i+1, 3i+2: its content tells its index."""
    return Dataset.from_dict({"input_ids": [[i, 3 * i + 1, 3 * i + 2] for i in range(number)]}).with_format("torch")


shares = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5))


@given(shares)
def test_parts_of_all_processes_make_up_the_batch(share):
    processes, accumulation, part_size = share
    batch_size = processes * accumulation * part_size
    partitions = [Partition(batch_size, processes, process, accumulation) for process in range(processes)]
    covered = [row for p in partitions for part in range(accumulation) for row in range(*p.rows(part))]
    assert sorted(covered) == list(range(batch_size))


def test_partition_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match=r"`batch_size` is 10; it must be a multiple of 4"):
        Partition(10, 2, 0, 2)


@given(shares, st.integers(0, 30), st.integers(0, 5), st.integers(0, 3))
def test_every_text_once_per_epoch_however_it_is_shared(share, rest, start_step, seed):
    processes, accumulation, part_size = share
    batch_size = processes * accumulation * part_size
    steps_per_epoch = 3
    num_texts = steps_per_epoch * batch_size + rest % batch_size

    def read(processes, accumulation, start_step, steps):
        """Texts of every step as sets, over all processes and parts."""
        batches = [[] for _ in range(steps)]
        for process in range(processes):
            indices = iter(
                _Indices(num_texts, Partition(batch_size, processes, process, accumulation), seed, start_step)
            )
            for batch in batches:
                for _ in range(accumulation):
                    batch += next(indices)
        return batches

    whole = read(1, 1, 0, 2 * steps_per_epoch)
    for epoch in (whole[:steps_per_epoch], whole[steps_per_epoch:]):
        seen = Counter(index for batch in epoch for index in batch)
        assert len(seen) == steps_per_epoch * batch_size and set(seen.values()) == {1}
        assert set(seen) <= set(range(num_texts))
    shared = read(processes, accumulation, start_step, 2)
    expected = read(1, 1, 0, start_step + 2)[start_step:]
    assert [sorted(batch) for batch in shared] == [sorted(batch) for batch in expected]
    if num_texts > 4:
        assert whole[:steps_per_epoch] != whole[steps_per_epoch:] or batch_size == 1


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_batches_are_the_rows_of_the_indices(workers):
    partition = Partition(4, 1, 0, 2)
    batches = list(islice(training_batches(rows(9), partition, seed=3, start_step=1, workers=workers), 6))
    expected = list(islice(_Indices(9, partition, 3, 1), 6))
    assert [batch[:, 0].tolist() for batch in batches] == expected
    assert all(batch.dtype == torch.int64 and batch.shape == (2, LENGTH) for batch in batches)
    assert all(torch.equal(batch[:, 2], 3 * batch[:, 0] + 2) for batch in batches)


def test_batch_larger_than_the_data_is_refused():
    with pytest.raises(ValueError, match="only 3 training texts"):
        training_batches(rows(3), Partition(4, 1, 0, 1), seed=0)


def streamed(number, processes, process, steps, start_step=0):
    partition = Partition(4, processes, process, 1)
    stream = rows(number).to_iterable_dataset(num_shards=min(2, number))
    batches = training_batches(stream, partition, seed=0, start_step=start_step)
    return [batch[:, 0].tolist() for batch in islice(batches, steps)]


def test_stream_is_sharded_by_process():
    parts = [np.concatenate(streamed(24, 2, process, 6)).tolist() for process in range(2)]
    assert len(parts[0]) == len(parts[1]) == 12
    assert sorted(parts[0] + parts[1]) == list(range(24)), "one epoch: every text once, in one process"


def test_stream_resumes_where_it_stopped_and_goes_round():
    whole = streamed(10, 1, 0, 8)
    assert sorted(np.concatenate(whole)[:10]) == list(range(10))
    assert streamed(10, 1, 0, 4, start_step=4) == whole[4:]
    assert sorted(np.concatenate(whole)[10:20]) == list(range(10))


@pytest.mark.parametrize("num_shards, processes", [(1, 1), (4, 1), (4, 2), (3, 2), (2, 4)])
def test_a_streamed_run_that_is_killed_five_times_sees_every_text_once_per_epoch(num_shards, processes):
    """With as many shards as processes, a multiple of it, and neither: then every process reads all and keeps some."""
    number, part_size, accumulation, checkpoint_every = 24, 1, 2, 2
    batch_size = processes * accumulation * part_size
    steps_per_epoch = number // batch_size
    kills = [1, 3, steps_per_epoch, steps_per_epoch + 1, 2 * steps_per_epoch - 1]

    def read(process, start_step, stop_step):
        stream = rows(number).to_iterable_dataset(num_shards=num_shards)
        partition = Partition(batch_size, processes, process, accumulation)
        batches = training_batches(stream, partition, seed=0, start_step=start_step)
        parts = islice(batches, accumulation * (stop_step - start_step))
        return [row for part in parts for row in part[:, 0].tolist()]

    epochs = [Counter(), Counter()]
    for process in range(processes):
        learned, step = [], 0
        for stop in [*kills, 2 * steps_per_epoch]:
            new, last = read(process, step, stop), step
            # What was read behind the last checkpoint is lost with the process; the last run reaches its end.
            step = stop if stop == 2 * steps_per_epoch else max(last, stop - stop % checkpoint_every)
            learned += new[: accumulation * part_size * (step - last)]
        half = len(learned) // 2
        epochs[0].update(learned[:half])
        epochs[1].update(learned[half:])
        assert learned[:half] != learned[half:], "every epoch has an order of its own"
    assert all(seen == Counter(range(number)) for seen in epochs)


def test_stream_without_texts_is_refused():
    with pytest.raises(ValueError, match="no texts for process 1"):
        streamed(1, 2, 1, 1)
