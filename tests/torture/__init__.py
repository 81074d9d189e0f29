"""A campaign against the library, one kind of fault a file: `make torture`, or `python -m torture --help`."""

import sys
from pathlib import Path


# Helpers of the tests: `hub_server`, `tiny`, `runs` in tests/training, `test_threads` in tests/pipelines.
TESTS = Path(__file__).parents[1]
for _folder in (TESTS, TESTS / "training", TESTS / "pipelines"):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))
