"""The stream of calls: texts are written in a thread, and the page gets each call as it comes."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

from diffusers_text_nfdm import NFDMTextPipeline

from .showing import render_live, render_result
from .writing import Request, Result, Stopped, write


# Seconds between two pictures of a text in the making.
PAUSE = 0.08


def stream(pipe: NFDMTextPipeline, request: Request) -> Iterator[str]:
    """The page's result as it comes about. Closing it ends the writing."""
    frames: queue.SimpleQueue = queue.SimpleQueue()
    stopped = threading.Event()

    def show(*frame: Any) -> None:
        if stopped.is_set():
            raise Stopped
        frames.put(frame)

    def work() -> None:
        try:
            frames.put(write(pipe, request, show))
        except Exception as error:
            frames.put(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        yield '<div class="result live"><div class="player">writing …</div></div>'
        while True:
            news = frames.get()
            # Who is late sees the newest.
            while isinstance(news, tuple) and not frames.empty():
                news = frames.get()
            if isinstance(news, Exception):
                raise news
            if isinstance(news, Result):
                yield render_result(pipe, news, request.condition)
                return
            yield render_live(pipe, *news, request.condition)
            time.sleep(PAUSE)
    finally:
        stopped.set()
