"""Models without dropout, in one thread or several."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from weakref import WeakKeyDictionary

from torch import nn


# Models that are being evaluated: by how many, and their mode before.
_EVALUATED: WeakKeyDictionary[nn.Module, tuple[int, bool]] = WeakKeyDictionary()
_EVALUATION_LOCK = Lock()


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """The model without dropout, and back in the mode it was in, whatever happens.

    Several threads may evaluate one model: the last of them brings it back.
    """
    with _EVALUATION_LOCK:
        users, was_training = _EVALUATED.get(model, (0, model.training))
        _EVALUATED[model] = users + 1, was_training
        model.eval()
    try:
        yield
    finally:
        with _EVALUATION_LOCK:
            users, was_training = _EVALUATED.pop(model)
            if users > 1:
                _EVALUATED[model] = users - 1, was_training
            else:
                model.train(was_training)
