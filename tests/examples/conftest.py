"""The example scripts' own modules can be imported, as when a script runs."""

import sys
from pathlib import Path


sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
