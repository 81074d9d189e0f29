"""SIGKILL, at random times and before every touch of a file, every training step and every sampling step."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from .children import RUN, TOO_LONG, Child, Ended, contents, difference, fresh, half_written, start, write_settings
from .tally import Campaign, Tally


# What is being done when the next file is touched, by the beginning of its path. The first that fits.
MOMENTS = (
    ("a checkpoint is written", ("checkpoint-",)),
    ("pipeline or best is released", ("pipeline", "best", "samples.jsonl", "summary.json")),
    ("metrics are logged", ("metrics.jsonl",)),
    ("the run's folder is set up", ("",)),
)
# Kills in a row before a run may come to its end.
KILLS_IN_A_ROW = 5
# The least number of kills, however short the time, by the number of processes; and the share of the time.
LEAST_KILLS = {1: 80, 2: 25}
SHARES = {1: 0.6, 2: 0.4}


def moment(event: str, path: str) -> str:
    if event in ("training", "sampling"):
        return event
    if event == "os.rename":
        return "a folder or file is renamed"
    if event in ("os.remove", "os.rmdir", "shutil.rmtree"):
        return "something is removed"
    return next(name for name, starts in MOMENTS if path.startswith(starts))


def run(campaign: Campaign) -> Tally:
    tally = Tally("kills")
    for processes, share in SHARES.items():
        ends, least = time.monotonic() + campaign.seconds * share, tally.tried + LEAST_KILLS[processes]
        victim = Victim(campaign, tally, processes)
        while time.monotonic() < ends or tally.tried < least:
            victim.series()
    return tally


class Victim:
    """A run of one or two processes that is killed again and again, beside one that nothing disturbs."""

    def __init__(self, campaign: Campaign, tally: Tally, processes: int):
        self.random, self.tally, self.processes = campaign.random, tally, processes
        self.name = "" if processes == 1 else f"{processes} processes, "
        self.folder = campaign.folder / f"processes-{processes}"
        self.settings = write_settings(self.folder / "settings")
        whole, started = fresh(self.folder / "whole"), time.monotonic()
        ended = self._wait(self._start(whole, None))
        self.seconds = time.monotonic() - started
        assert ended.code == 0, ended.printed[-3000:]
        self.reference = contents(whole / RUN)
        places: dict[str, list[int]] = {}
        for place, name in enumerate(self._ticks(whole)):
            places.setdefault(name, []).append(place)
        self.places = places
        # Every moment in turn, so that a short campaign meets all of them.
        self.turn = 0

    def series(self) -> None:
        """Kill a run and resume it, several times, let it finish, and compare it with the one that was never killed.

        The first kill is before a tick of the next moment; those after it before any tick, or at any time.
        """
        names = sorted(self.places)
        plan: list[int | None] = [self.random.choice(self.places[names[self.turn % len(names)]])]
        self.turn += 1
        anywhere = [place for places in self.places.values() for place in places]
        plan += [self.random.choice([None, self.random.choice(anywhere)]) for _ in range(KILLS_IN_A_ROW - 1)]
        folder, parts, story = fresh(self.folder / "killed"), [], []
        options: tuple[str, ...] = ()
        for place in plan:
            where = self._kill(folder, options, place)
            options = ("--resume", "latest")
            if where is None:
                break
            parts.append(self.name + where)
            story.append(f"{where} ({'by the clock' if place is None else f'tick {place}'})")
            if (half := half_written(self.reference, folder / RUN)) is not None:
                self.tally.fail("half-written", parts.pop(), f"killed: {', then '.join(story)}: {half}")
                break
        found = judge(self._wait(self._start(folder, None, *options)), self.reference, folder / RUN)
        if found is not None:
            last = parts.pop() if parts else "no kill"
            self.tally.fail(found[0], last, f"killed: {', then '.join(story)}: {found[1]}")
        for part in parts:
            self.tally.survive(part)

    def _start(self, folder: Path, place: int | None, *options: str) -> list[Child]:
        """The script. Before the tick of number `place` the main process kills itself."""
        log = os.open(folder / "ticks", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        left = [float("inf") if place is None else place]

        def tick(event: str, path: str) -> None:
            os.write(log, f"{moment(event, path)}\n".encode())
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        children = start(self.settings, folder, *options, processes=self.processes, ticks=tick)
        os.close(log)
        return children

    @staticmethod
    def _ticks(folder: Path) -> list[str]:
        return (folder / "ticks").read_text().splitlines()

    @staticmethod
    def _wait(children: list[Child]) -> Ended:
        return [child.wait() for child in children][0]

    def _kill(self, folder: Path, options: tuple[str, ...], place: int | None) -> str | None:
        """Start the script, kill it, and say at which moment; `None` if it had ended before."""
        children = self._start(folder, place, *options)
        if place is None:
            while not self._ticks(folder) and children[0].running:
                time.sleep(0.01)
            time.sleep(self.random.random() * self.seconds / 2)
            # Any of them may be the first to go.
            self.random.shuffle(children)
            children[0].kill()
        first = children[0].wait()
        assert first.code != TOO_LONG, first.printed[-2000:]
        # Whatever ends one process of several ends the others: launchers see to it.
        for child in children[1:]:
            child.kill()
            child.wait()
        return self._ticks(folder)[-1] if first.code == -signal.SIGKILL and self._ticks(folder) else None


def judge(ended: Ended, reference: dict[str, bytes], run: Path) -> tuple[str, str] | None:
    """A run that was resumed must end well and be the one that was never killed."""
    if ended.code != 0:
        return "obscure", f"the resumed run ended with {ended.code}: {ended.printed[-300:]}"
    if (other := difference(reference, run)) is not None:
        return "silent", f"not bit-equal: {other}"
    return None
