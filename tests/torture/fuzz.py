"""Every public entry point with one or two odd arguments, drawn by hypothesis from its signature.

An error must be a ValueError, TypeError or OSError that names one of them; a result must make sense.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import time

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from .entry_points import Entry, entry_points
from .odd_values import fits, odd_values
from .tally import Campaign, Tally, describe, is_sentence


# Of every entry point in a round; there is one round at least.
EXAMPLES = 12
EXPECTED = (ValueError, TypeError, OSError)


def run(campaign: Campaign) -> Tally:
    tally = Tally("fuzz")
    entries = entry_points(campaign.folder)
    seed = campaign.seed
    while seed == campaign.seed or not campaign.over:
        for entry in entries:
            if campaign.over and seed > campaign.seed:
                break
            fuzz_entry(entry, tally, EXAMPLES, seed)
        seed += 1
    return tally


def fuzz_entry(entry: Entry, tally: Tally, examples: int, seed: int) -> None:
    parameters = {
        name: parameter.annotation
        for name, parameter in inspect.signature(entry.signature or entry.call).parameters.items()
        if name not in entry.fixed and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    names = st.lists(st.sampled_from(sorted(parameters)), min_size=1, max_size=2, unique=True)
    # A mistake in one place is the common one.
    cases = names.flatmap(
        lambda chosen: st.fixed_dictionaries({name: odd_values(parameters[name]) for name in chosen})
    )

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(cases)
    def trial(case):
        values = {name: make() for name, (_, make) in case.items()}
        shown = ", ".join(f"{name}={label}" for name, (label, _) in case.items())
        found = judge(entry, values, parameters)
        tally.judge(entry.name, found and (found[0], f"({shown}) {found[1]}"))

    trial()


def judge(entry: Entry, values: dict, annotations: dict) -> tuple[str, str] | None:
    started = time.monotonic()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            result = entry.call(**{**entry.arguments(), **values})
            problem = entry.check(result)
    except EXPECTED as error:
        names = [word for name in values for word in (name, *entry.other_names.get(name, ()))]
        return None if is_sentence(str(error), names) else ("obscure", describe(error))
    except Exception as error:
        return "obscure", describe(error)
    finally:
        seconds = time.monotonic() - started
        if seconds > 60:
            print(f"{entry.name} took {seconds:.0f} s")
    wrong = [name for name in values if not fits(values[name], annotations[name])]
    if wrong:
        return "silent", f"{', '.join(wrong)} is no {annotations[wrong[0]]}, and was taken"
    return problem and ("silent", problem)
