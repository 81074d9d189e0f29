"""Stories in files, and a fresh Accelerate for every test."""

import json

import pytest
from accelerate.state import AcceleratorState

from diffusers_text_nfdm.stories import StoryGrammar


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A folder with train.jsonl (200 stories) and valid.jsonl (40)."""
    folder = tmp_path_factory.mktemp("stories")
    for name, number in (("train", 200), ("valid", 40)):
        texts = StoryGrammar().sample(number, seed=name)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return folder


@pytest.fixture(autouse=True)
def _fresh_accelerate():
    yield
    # Accelerate keeps the precision of the first Accelerator for the whole process.
    AcceleratorState._reset_state(reset_partial_state=True)
