"""Pages of the public API from its docstrings, by pdoc. Every warning is an error.

python docs/build_api.py build/docs
"""

import sys
import warnings
from pathlib import Path

import pdoc


MODULES = (
    "diffusers_text_nfdm",
    "diffusers_text_nfdm.training",
    "diffusers_text_nfdm.stories",
    "diffusers_text_nfdm.subwords",
    "diffusers_text_nfdm.pipelines.live_text",
    "diffusers_text_nfdm.plots.film",
    "diffusers_text_nfdm.plots.trajectory",
)
# An annotation that configurations inherit from transformers, where the name is imported.
NOT_OURS = "Import of Literal failed"


def build(folder: Path) -> None:
    """Write the pages into a folder; a ValueError names what pdoc warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pdoc.render.configure(docformat="google", show_source=False)
        pdoc.pdoc(*MODULES, output_directory=folder)
    ours = [str(one.message) for one in caught if "pdoc" in one.filename and NOT_OURS not in str(one.message)]
    if ours:
        raise ValueError("The docstrings give warnings:\n" + "\n".join(ours))


if __name__ == "__main__":
    build(Path(sys.argv[1]))
    print(f"Open {Path(sys.argv[1]) / 'index.html'} in a browser.")
