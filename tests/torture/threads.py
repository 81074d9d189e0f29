"""Eight threads on one pipeline, for each scheduler: their texts must be those of one thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from test_threads import OPTIONS, SCHEDULERS, answer, requests
from tiny import make_pipeline

from .tally import Campaign, Tally


THREADS = 8
# Of one pipeline, and of those with the other schedulers. Each of the different requests is made many times.
MANY, FEW, DIFFERENT = 10_000, 48, 200


def run(campaign: Campaign) -> Tally:
    tally = Tally("threads")
    for number, (name, scheduler) in enumerate(SCHEDULERS.items()):
        pipe = make_pipeline("nfdm", scheduler(), torch.float64, **OPTIONS)
        compare(pipe, name, FEW if number else MANY, tally, campaign)
    return tally


def compare(pipe, name: str, number: int, tally: Tally, campaign: Campaign) -> None:
    """Make `number` requests in threads, in an order by chance, and compare each with its answer in one thread."""
    # Short ones, of different lengths.
    wanted = [{**one, "num_inference_steps": 2 + one["seed"] % 3} for one in requests(min(number, DIFFERENT))]
    alone = [answer(pipe, request) for request in wanted]
    order = [place % len(wanted) for place in range(number)]
    campaign.random.shuffle(order)
    with ThreadPoolExecutor(THREADS) as threads:
        together = threads.map(lambda place: answer(pipe, wanted[place]), order)
        for place, tokens in zip(order, together):
            same = torch.equal(tokens, alone[place])
            tally.judge(name, None if same else ("silent", f"request {wanted[place]['seed']} has other tokens"))
