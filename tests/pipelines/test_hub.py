"""A pipeline and its parts over HTTP: pushed by one process, loaded by others, through the real client of the Hub.

Four client processes do everything (each costs seconds of imports); the tests read what they reported.
"""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_baseline
import tiny_masked
import torch
from hub_server import HubServer, card_metadata
from tiny import make_pipeline, seeded

from diffusers_text_nfdm import ReverseODEScheduler


PRELUDE = """
import json, os, sys, torch
import diffusers_text_nfdm.pipelines.hub as hub_module
from diffusers_text_nfdm import *
from transformers import AutoModel, AutoTokenizer

def generate(pipe):
    pipe.set_progress_bar_config(disable=True)
    return pipe(num_samples=4, num_inference_steps=6, generator=torch.Generator().manual_seed(3)).texts

def attempt(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
        return ["ok", ""]
    except Exception as error:
        return [type(error).__name__, str(error)]

def write(pipe):
    pipe.set_progress_bar_config(disable=True)
    return pipe(num_samples=4, generator=torch.Generator().manual_seed(3)).texts

load = NFDMTextPipeline.from_pretrained
baselines = {"autoregressive": AutoregressivePipeline, "masked": MaskedDiffusionPipeline}
result = {}
"""
REPORT = "\nprint('REPORT' + json.dumps(result))\n"
BASELINES = {"autoregressive": tiny_baseline.make_pipeline, "masked": tiny_masked.make_pipeline}


def client(hub, home, code, **options):
    options = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", ""), **options}
    output = hub.run(PRELUDE + code + REPORT, home, **options)
    return SimpleNamespace(**json.loads(output[output.index("REPORT") + len("REPORT") :]))


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    make_pipeline("mulan").save_pretrained(root / "source")
    for name, make in BASELINES.items():
        make(torch.float32).save_pretrained(root / name)
    return root


@pytest.fixture(scope="module")
def texts():
    """What the pipeline writes with its first and its second scheduler."""
    pipe, written = make_pipeline("mulan"), []
    for scheduler in (pipe.scheduler, ReverseODEScheduler("heun")):
        pipe.scheduler = scheduler
        written.append(pipe(num_samples=4, num_inference_steps=6, generator=seeded(3)).texts)
    assert written[0] != written[1]
    return written


@pytest.fixture(scope="module")
def hub():
    with HubServer() as server:
        yield server


@pytest.fixture(scope="module")
def pushed(hub, places):
    hub.fail(match="/api/models/user/push-unwell/commit")
    hub.fail(match="/api/models/user/push-busy/commit", status=429)
    hub.cut(match="/api/models/user/push-broken/commit", after_bytes=5, reset=True)
    hub.garble(match="/api/models/user/push-garbled/commit")
    hub.fail(times=99, match="/api/models/user/push-forbidden/commit", status=403)
    code = f"""
pipe = load({str(places / "source")!r})
result["texts"] = generate(pipe)
result["commit"] = pipe.push_to_hub("tiny", commit_message="First")
pipe.scheduler = ReverseODEScheduler.from_config(pipe.scheduler.config, method="heun")
pipe.push_to_hub("user/tiny")
pipe.push_to_hub("user/secret", private=True)
hub_module.PAUSES = (0.01, 0.01)
for name in ("unwell", "busy", "broken", "garbled", "forbidden"):
    result["push-" + name] = attempt(pipe.push_to_hub, "user/push-" + name)
pipe.save_pretrained({str(places / "saved")!r}, push_to_hub=True, repo_id="user/saved", commit_message="Saved")
pipe.model.push_to_hub("user/model-alone")
pipe.scheduler.push_to_hub("user/scheduler-alone")
pipe.tokenizer.push_to_hub("user/tokenizer-alone")
for name, kind in baselines.items():
    pipe = kind.from_pretrained(f"{str(places)}/{{name}}")
    pipe.push_to_hub("user/" + name)
    result[name] = write(pipe)
"""
    return client(hub, places / "pusher", code)


@pytest.fixture(scope="module")
def loaded(hub, places, pushed):
    files, first = hub.repos["user/tiny"].files(), hub.repos["user/tiny"].log()[1].sha
    for name in ("unwell", "cut", "model-page"):
        hub.add(f"user/{name}", files)
    hub.add("user/half", {path: data for path, data in files.items() if path != "model_index.json"})
    pickled = {path: data for path, data in files.items() if not path.endswith(".safetensors")}
    hub.add("user/pickled", {**pickled, "model/pytorch_model.bin": files["model/model.safetensors"]})
    for name in ("forbidden", "garbled"):
        hub.add(f"user/{name}", files)
    hub.fail(times=99, match="/user/forbidden", status=403)
    hub.add("user/flipped", files)
    hub.flip(match="GET /user/flipped/resolve*model.safetensors", place=0.9)
    hub.garble(match="/api/models/user/garbled")
    hub.fail(match="GET /user/unwell/resolve")
    hub.fail(match="/api/models/user/model-page")
    hub.cut(match="/user/cut/resolve", after_bytes=100, reset=True)
    code = f"""
result["texts"] = generate(load("user/tiny"))
result["first_texts"] = generate(load("user/tiny", revision={first!r}))
result["overridden"] = generate(load("user/tiny", scheduler=MarkovChainScheduler()))
result["from_saved"] = generate(load("user/saved"))
result["private_texts"] = generate(load("user/secret"))

model = AutoModel.from_pretrained("user/model-alone")
scheduler = ReverseODEScheduler.from_pretrained("user/scheduler-alone")
tokenizer = WordTokenizer.from_pretrained("user/tokenizer-alone")
found = AutoTokenizer.from_pretrained("user/tokenizer-alone")
result["types"] = [type(part).__name__ for part in (model, tokenizer, found)]
result["from_parts"] = generate(NFDMTextPipeline(model, tokenizer, scheduler))
model = MuLANModel.from_pretrained("user/tiny", subfolder="model")
scheduler = MarkovChainScheduler.from_pretrained("user/tiny", subfolder="scheduler", revision={first!r})
tokenizer = WordTokenizer.from_pretrained("user/tiny", subfolder="tokenizer")
result["from_subfolders"] = generate(NFDMTextPipeline(model, tokenizer, scheduler))
for name, kind in baselines.items():
    result[name] = write(kind.from_pretrained("user/" + name))

result["missing"] = attempt(load, "user/missing")
result["missing_revision"] = attempt(load, "user/tiny", revision="v99")
result["half"] = attempt(load, "user/half")
result["pickled"] = attempt(load, "user/pickled")
result["forbidden"] = attempt(load, "user/forbidden")
result["flipped"] = [attempt(load, "user/flipped", force_download=again) for again in (False, True)]
for name in ("unwell", "cut", "model-page", "garbled"):
    result[name] = [attempt(load, "user/" + name) for _ in range(2)]
"""
    return client(hub, places / "loader", code)


@pytest.fixture(scope="module")
def anonymous(hub, places, pushed):
    code = """
result["texts"] = generate(load("user/tiny"))
result["private"] = attempt(load, "user/secret")
result["push"] = attempt(load("user/tiny").push_to_hub, "user/tiny")
result["with_token"] = generate(load("user/secret", token="hf_test"))
"""
    return client(hub, places / "stranger", code, anonymous=True)


@pytest.fixture(scope="module")
def offline(hub, places, loaded, anonymous):
    hub.stop()
    code = """
result["texts"] = generate(load("user/tiny"))
result["missing"] = attempt(load, "user/never-fetched")
"""
    return client(hub, places / "loader", code, HF_HUB_OFFLINE="1")


def test_a_pushed_repository_holds_the_checkpoint_and_nothing_else(hub, pushed):
    repo = hub.repos["user/tiny"]
    assert set(repo.files()) - {".gitattributes"} == {
        "README.md",
        "model/config.json",
        "model/model.safetensors",
        "model_index.json",
        "scheduler/scheduler_config.json",
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
    }
    assert [commit.message for commit in repo.log()][:2] == ["Upload pipeline", "First"]
    assert pushed.commit.endswith(repo.log()[1].sha)
    assert hub.repos["user/secret"].private and not repo.private
    assert hub.repos["user/saved"].log()[0].message == "Saved"


@pytest.mark.parametrize("name", ["user/tiny", "user/secret", "user/saved"])
def test_the_pushed_card_is_ours_and_names_its_repository(hub, pushed, name):
    card = hub.repos[name].files()["README.md"].decode()
    metadata, errors = card_metadata(card)
    assert errors == [] and metadata["library_name"] == "diffusers_text_nfdm"
    assert {"text-diffusion", "mulan"} <= set(metadata["tags"])
    assert "# MuLAN for text" in card and f'NFDMTextPipeline.from_pretrained("{name}")' in card
    assert "model card" not in card.lower() and "More Information Needed" not in card


def test_a_fresh_process_makes_the_same_texts_from_a_folder(pushed, texts):
    assert pushed.texts == texts[0]


def test_a_fresh_process_makes_the_same_texts_from_the_hub(loaded, anonymous, texts):
    assert loaded.texts == loaded.from_saved == loaded.private_texts == anonymous.texts == texts[1]


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_is_pushed_by_one_process_and_loaded_by_another(hub, pushed, loaded, name):
    written = BASELINES[name](torch.float32)(num_samples=4, generator=seeded(3)).texts
    assert getattr(pushed, name) == getattr(loaded, name) == written
    assert set(hub.repos[f"user/{name}"].files()) - {".gitattributes"} == {
        "README.md",
        "model/config.json",
        "model/model.safetensors",
        "model_index.json",
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
    }


def test_a_revision_is_found_by_its_sha(loaded, texts):
    assert loaded.first_texts == texts[0]


def test_a_scheduler_may_be_given_instead_of_the_stored_one(loaded, texts):
    assert loaded.overridden == texts[0]


def test_each_part_loads_alone(loaded, texts):
    assert loaded.types == ["MuLANModel", "WordTokenizer", "WordTokenizer"]
    assert loaded.from_parts == texts[1] and loaded.from_subfolders == texts[0]


def test_a_private_repository_needs_a_token_and_the_error_says_so(anonymous, texts):
    kind, message = anonymous.private
    assert kind == "ValueError" and "'user/secret'" in message
    assert "a private repository needs `token=` or `hf auth login`" in message
    assert anonymous.with_token == texts[1]
    assert anonymous.push[0] != "ok" and "401" in anonymous.push[1]


def test_what_is_missing_is_named(loaded):
    kind, message = loaded.missing
    assert kind == "ValueError" and "no such repository, nor such a folder: 'user/missing'" in message
    kind, message = loaded.missing_revision
    assert kind == "ValueError" and "'user/tiny' at revision 'v99'" in message
    kind, message = loaded.half
    assert kind == "ValueError" and "'user/half' holds no pipeline: it has no model_index.json" in message


def test_access_that_is_refused_is_not_called_a_missing_repository(loaded):
    kind, message = loaded.forbidden
    assert kind == "OSError" and "refuses access to the repository 'user/forbidden' (403)" in message


@pytest.mark.parametrize("name", ["unwell", "busy", "broken", "garbled"])
def test_a_push_outlasts_a_moment_of_trouble(hub, pushed, name):
    assert getattr(pushed, f"push-{name}") == ["ok", ""]
    assert "model/model.safetensors" in hub.repos[f"user/push-{name}"].files()


def test_a_push_that_is_refused_is_not_tried_again(hub, pushed):
    kind, message = getattr(pushed, "push-forbidden")
    assert kind != "ok" and "403" in message
    commits = [request for request in hub.requests if "push-forbidden/commit" in request.path]
    assert len(commits) == 1


@pytest.mark.parametrize("name", ["unwell", "cut", "model-page", "garbled"])
def test_a_failed_download_says_to_try_again_and_the_next_try_works(loaded, name):
    (kind, message), second = getattr(loaded, name)
    assert kind == "OSError" and f"'user/{name}'" in message and "try again" in message
    assert second == ["ok", ""]


def test_another_bit_in_the_weights_is_found_and_the_way_out_works(loaded):
    (kind, message), second = loaded.flipped
    assert kind == "OSError" and "model/model.safetensors of the repository 'user/flipped' was damaged" in message
    assert "force_download=True" in message and second == ["ok", ""]


def test_no_pickle_is_ever_asked_for(hub, loaded, anonymous):
    kind, message = loaded.pickled
    assert kind == "OSError" and "model.safetensors" in message
    suffixes = {Path(request.path.split("?")[0]).suffix for request in hub.requests if "/resolve/" in request.path}
    assert {".json", ".safetensors"} <= suffixes and not suffixes & {".bin", ".pt", ".pth", ".pkl", ".ckpt"}


def test_offline_the_cache_is_enough(offline, texts):
    assert offline.texts == texts[1]
    kind, message = offline.missing
    assert kind == "OSError" and "'user/never-fetched'" in message and "download it once beforehand" in message
