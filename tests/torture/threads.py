"""Eight threads on one pipeline, for each scheduler: their texts must be those of one thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from test_threads import OPTIONS, SCHEDULERS, answer, requests
from tiny import make_pipeline

from .tally import Campaign, Tally


THREADS, REQUESTS = 8, 24


def run(campaign: Campaign) -> Tally:
    tally = Tally("threads")
    rounds = 0
    while rounds == 0 or not campaign.over:
        for name, scheduler in SCHEDULERS.items():
            pipe = make_pipeline("nfdm", scheduler(), torch.float64, **OPTIONS)
            wanted = list(requests(REQUESTS * (rounds + 1)))[-REQUESTS:]
            alone = [answer(pipe, request) for request in wanted]
            with ThreadPoolExecutor(THREADS) as threads:
                together = list(threads.map(lambda request, pipe=pipe: answer(pipe, request), wanted))
            for request, one, other in zip(wanted, alone, together):
                same = torch.equal(one, other)
                tally.judge(name, None if same else ("silent", f"request {request['seed']} has other tokens"))
            if campaign.over and rounds:
                break
        rounds += 1
    return tally
