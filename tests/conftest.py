"""Every test starts from the same random state, on one thread, without the network."""

import os


os.environ["HF_HUB_OFFLINE"] = "1"

import hypothesis  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402


torch.set_num_threads(1)
hypothesis.settings.register_profile("tests", max_examples=25, deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("tests")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
    yield
    # Scripts change this for their process.
    torch.set_flush_denormal(False)
