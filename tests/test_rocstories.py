"""The word tokenizer on ROCStories, where the corpus is at hand, and spaCy as the oracle."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from diffusers_text_nfdm.tokenization import WordTokenizer, word_splitter


ROC_DIR = Path(os.environ.get("ROCSTORIES_DIR", Path(__file__).parents[2] / "shared" / "data"))


def roc_stories(*names: str) -> list[str]:
    stories = []
    for name in names:
        path = ROC_DIR / f"rocstories_{name}.jsonl"
        if not path.exists():
            pytest.skip(f"{path} is absent: set ROCSTORIES_DIR to the folder with the ROCStories files")
        with open(path, encoding="utf-8") as file:
            stories += [json.loads(line)[0] for line in file]
    return stories


@pytest.mark.slow
def test_agreement_with_spacy_on_rocstories():
    """Token F1 over character spans."""
    spacy = pytest.importorskip("spacy", reason="spaCy is not installed: pip install spacy")
    nlp, splitter = spacy.blank("en"), word_splitter()
    common = total = 0
    for story in roc_stories("train", "valid"):
        ours = {span for _, span in splitter.pre_tokenize_str(story)}
        theirs = {(t.idx, t.idx + len(t)) for t in nlp.tokenizer(story) if not t.is_space}
        common += 2 * len(ours & theirs)
        total += len(ours) + len(theirs)
    print(f"agreement with spaCy: {common / total:.7f}")
    assert common / total >= 0.999


@pytest.mark.slow
def test_rocstories_come_back():
    stories = roc_stories("train", "valid")
    tokenizer = WordTokenizer.from_texts(stories, min_count=0)
    decoded = tokenizer.batch_decode(tokenizer(stories, verbose=False)["input_ids"], skip_special_tokens=True)
    share = np.mean([" ".join(story.split()) == text for story, text in zip(stories, decoded)])
    print(f"stories that come back exactly: {share:.4f}")
    assert share > 0.95


@pytest.mark.slow
def test_rocstories_are_tokenized_in_time():
    stories = roc_stories("train")
    tokenizer = WordTokenizer.from_texts(stories)
    begin = time.process_time()
    for position in range(0, len(stories), 1000):
        tokenizer(stories[position : position + 1000], padding="max_length", truncation=True)
    seconds = time.process_time() - begin
    print(f"{len(stories)} stories, {len(tokenizer)} words: {seconds:.1f} s of processor time")
    assert seconds < 10
