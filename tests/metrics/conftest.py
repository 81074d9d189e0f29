import pytest
from judges import save_judge

from diffusers_text_nfdm.metrics import Judge
from diffusers_text_nfdm.stories import StoryGrammar


@pytest.fixture(scope="session")
def grammar():
    return StoryGrammar()


@pytest.fixture(scope="session")
def judge_folder(tmp_path_factory):
    return save_judge(tmp_path_factory.mktemp("judge"))


@pytest.fixture
def judge(judge_folder):
    return Judge.from_pretrained(judge_folder, device="cpu", batch_size=4)
