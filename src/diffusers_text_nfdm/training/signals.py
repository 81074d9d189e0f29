"""SIGTERM and SIGINT: a run stops after the step it is in, with a checkpoint."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from accelerate import Accelerator


# A signal that comes again within this time is the same request: launchers pass on what the terminal has sent already.
REPEATED_SIGNAL_SECONDS = 3.0
# Asking all processes whether one got a signal makes an accelerator wait, so it is not done at every step there.
STEPS_BETWEEN_CHECKS = 10


class StopSignal:
    """Notes the first signal while it is entered; a second one, later, has its usual effect."""

    def __init__(self, accelerator: Accelerator):
        self.accelerator = accelerator
        self.received: int | None = None
        self._time = 0.0
        self._handlers: dict = {}

    def __enter__(self) -> StopSignal:
        self._handlers = self._handle(self._note)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Within it the first signal is a KeyboardInterrupt, for work that needs no checkpoint any more."""
        handlers = self._handle(self._interrupt)
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    @staticmethod
    def _handle(handler: Callable) -> dict:
        """Let `handler` have the signals; returns those that had them."""
        # Python lets only the main thread handle signals.
        numbers = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
        return {number: signal.signal(number, handler) for number in numbers}

    def _interrupt(self, number: int, frame) -> None:
        first = self.received is None
        self._note(number, frame)
        if first:
            raise KeyboardInterrupt

    def _note(self, number: int, frame) -> None:
        now = time.monotonic()
        if self.received is None:
            self.received, self._time = number, now
        elif now - self._time > REPEATED_SIGNAL_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def requested(self, step: int) -> bool:
        """Whether any process got a signal: all stop at the same step."""
        mine = self.received is not None
        if self.accelerator.num_processes == 1:
            return mine
        if self.accelerator.device.type != "cpu" and step % STEPS_BETWEEN_CHECKS:
            return False
        flag = torch.tensor(float(mine), device=self.accelerator.device)
        stop = self.accelerator.reduce(flag, "sum").item() > 0
        if stop and not mine:
            self.received, self._time = signal.SIGTERM, time.monotonic()
        return stop
