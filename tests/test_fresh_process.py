"""A process that has imported nothing yet: what it imports, and what it reads of models and tokenizers that another
one wrote.

One process does everything, as the imports take seconds; the tests read what it reported.
"""

import json
import os
import subprocess
import sys

import pytest
import torch
from tiny import MODELS, PREDICTION_TYPES, make_ids, make_model, seeded

from diffusers_text_nfdm.tokenization import END, WordTokenizer


TEXTS = [
    "Dan's parents couldn't believe it. They weren't rich!",
    'She said "I\'m tired" and left (quietly).',
    "It cost $5, or 10% of it; he'd paid at 5:30... Mr. Smith's co-worker didn't mind.",
    f"She {END} left",
]
# accelerate is left out: transformers imports it wherever it is installed.
EXTRAS = ("matplotlib", "mauve", "evaluate", "tensorboard", "spacy")
# What takes a second to import, and is needed where texts are read only.
SLOW = ("datasets", "pandas", "pyarrow")
CODE = f"""
import json, sys, torch, transformers, diffusers
before = set(sys.modules)
import diffusers_text_nfdm, diffusers_text_nfdm.data, diffusers_text_nfdm.stories, diffusers_text_nfdm.training
report = {{"early": [name for name in {EXTRAS + SLOW!r} if name in set(sys.modules) - before]}}

from transformers import AutoConfig, AutoModel, AutoTokenizer
torch.set_num_threads(1)
torch.set_grad_enabled(False)
texts, tokenizer, *folders = sys.argv[1:]
report["tokenizers"] = []
for kind in (diffusers_text_nfdm.WordTokenizer, AutoTokenizer):
    read = kind.from_pretrained(tokenizer)
    ids = [read.encode(text) for text in json.loads(texts)]
    decoded = read.batch_decode(ids, skip_special_tokens=True)
    report["tokenizers"].append([type(read).__name__, len(read), read.model_max_length, ids, decoded])
for folder in folders:
    model = AutoModel.from_pretrained(folder)
    assert type(AutoConfig.from_pretrained(folder)) is type(model.config)
    for parameter in model.parameters():
        # Mapped from a file they start at any address, and the last bit of a product depends on the alignment.
        parameter.data = parameter.data.clone()
    output = model(torch.load(folder + "/inputs.pt")["ids"], generator=torch.Generator().manual_seed(3))
    torch.save({{"class": type(model).__name__, **output}}, folder + "/outputs.pt")
print("REPORT" + json.dumps(report))
"""


@pytest.fixture(scope="module")
def tokenizer():
    return WordTokenizer.from_texts(TEXTS[:-1], min_count=0)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of saved models, and what each makes of some texts."""
    expected = {}
    for name in MODELS:
        for kind in PREDICTION_TYPES:
            folder = tmp_path_factory.mktemp(f"{name}-{kind}")
            model = make_model(name, torch.float32, prediction_type=kind)
            model.save_pretrained(folder)
            assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}
            ids = make_ids(3)
            torch.save({"ids": ids}, folder / "inputs.pt")
            with torch.no_grad():
                output = model(ids, generator=seeded(3))
            expected[folder] = {"class": type(model).__name__, **output}
    return expected


@pytest.fixture(scope="module")
def report(tokenizer, models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    # Padding that was once asked for is not saved.
    tokenizer(TEXTS[0], padding="max_length", truncation=True)
    tokenizer.save_pretrained(folder)
    command = [sys.executable, "-c", CODE, json.dumps(TEXTS), str(folder), *map(str, models)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.split("REPORT")[1])


def test_importing_the_package_and_its_training_imports_no_extra_and_no_library_of_data(report):
    assert report["early"] == []


def test_a_tokenizer_is_read_as_it_was_written(report, tokenizer):
    ids = [tokenizer.encode(text) for text in TEXTS]
    expected = ["WordTokenizer", len(tokenizer), 64, ids, tokenizer.batch_decode(ids, skip_special_tokens=True)]
    assert report["tokenizers"] == [expected, expected]


def test_every_model_is_read_from_safetensors_and_computes_the_same_bits(report, models):
    for folder, output in models.items():
        loaded = torch.load(folder / "outputs.pt")
        assert loaded.keys() == output.keys() and loaded["class"] == output["class"]
        for key in output.keys() - {"class"}:
            assert torch.equal(loaded[key], output[key]), (folder.name, key)
