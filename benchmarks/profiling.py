"""PyTorch's own record of what runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.profiler import ProfilerActivity, profile


@contextmanager
def recorded(**options: Any) -> Iterator[profile]:
    """A record of the operations inside. The profiler writes two lines to stderr for every start and stop, past Python
    and past its own log level: they go nowhere.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        with profile(activities=[ProfilerActivity.CPU], **options) as record:
            yield record
    finally:
        os.dup2(kept, 2)
        os.close(kept)
