"""Limits of time that a machine five times slower, or one with other work, does not reach."""

import re
from pathlib import Path


TESTS = Path(__file__).parent
# Nothing takes a fifth of this.
LEAST_SECONDS = 600


# Limits in seconds: of subprocesses, as an argument or a default, and of whole tests; and in milliseconds, of a page.
SECONDS = re.compile(r"\btimeout(?:: float)? ?= ?(\d+)|\.(?:timeout|wait)\((\d+)\)|monotonic\(\) \+ (\d+)")
MILLISECONDS = re.compile(r"timeout\((\d+)_000\)")


def test_what_is_waited_for_has_time():
    """Of a request that is repeated until it is answered nothing is asked."""
    found = []
    for path in sorted(TESTS.rglob("*.py")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if "urlopen(" not in line:
                limits = [next(filter(None, one)) for one in SECONDS.findall(line)] + MILLISECONDS.findall(line)
                found += [(path.name, int(limit)) for limit in limits]
    assert len(found) > 15 and [one for one in found if one[1] < LEAST_SECONDS] == []
    assert ("test_app.py", 600) in found


def test_a_test_has_time_for_what_it_waits_for():
    (seconds,) = re.findall(r"^timeout = (\d+)$", (TESTS.parent / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    assert int(seconds) >= 3 * LEAST_SECONDS
