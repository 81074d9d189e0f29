"""Saving and loading a pipeline: the same texts in a fresh process, and clear words about what is no checkpoint."""

import json
import resource
import shutil
from pathlib import Path

import pytest
import torch
from diffusers import DiffusionPipeline
from safetensors.torch import load_file, save_file
from tiny import MODELS, logged_warnings, make_pipeline, seeded
from transformers import AutoModel

from diffusers_text_nfdm import (
    MarkovChainScheduler,
    NFDMModel,
    NFDMTextPipeline,
    ReverseODEScheduler,
    ReverseSDEScheduler,
    WordTokenizer,
)
from diffusers_text_nfdm.metrics.checkpoint import load_pipeline
from diffusers_text_nfdm.model_card import UNKNOWN, write_model_card


COMPONENTS = ("model", "scheduler", "tokenizer")
STEPS = {"num_samples": 4, "num_inference_steps": 6}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / "nfdm"
    make_pipeline("nfdm", ReverseSDEScheduler(volatility_scale=0.5)).save_pretrained(path)
    return path


@pytest.fixture
def copy(folder, tmp_path):
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def load(folder, **options):
    pipe = NFDMTextPipeline.from_pretrained(folder, **options)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.mark.parametrize("name", MODELS)
def test_a_loaded_pipeline_makes_the_same_texts_without_a_warning(name, tmp_path):
    pipe = make_pipeline(name, MarkovChainScheduler(noise_fraction=0.4))
    pipe.save_pretrained(tmp_path)
    with logged_warnings() as messages:
        loaded = load(tmp_path)
    assert messages == []
    assert type(loaded.model) is type(pipe.model) and type(loaded.tokenizer) is WordTokenizer
    assert loaded.scheduler.config.noise_fraction == 0.4 and not loaded.model.training
    for seed in (0, 1):
        expected, actual = (p(generator=seeded(seed), output_type="latent", **STEPS).latents for p in (pipe, loaded))
        assert torch.equal(expected, actual)
    assert loaded(generator=seeded(0), **STEPS).texts == pipe(generator=seeded(0), **STEPS).texts


def test_checkpoint_names_no_file_of_the_package(tmp_path):
    pipe = make_pipeline("mulan")
    for scheduler in (MarkovChainScheduler(), ReverseSDEScheduler(), ReverseODEScheduler("heun")):
        pipe.scheduler = type(scheduler).from_config(pipe.scheduler.config, **scheduler.config)
        pipe.save_pretrained(tmp_path)
        index = json.loads((tmp_path / "model_index.json").read_text())
        assert {name: index[name][0] for name in COMPONENTS} == dict.fromkeys(COMPONENTS, "diffusers_text_nfdm")
        assert index["scheduler"][1] == type(scheduler).__name__
        # A dot after the package would be a module inside it.
        assert not [path for path in tmp_path.rglob("*.json") if "diffusers_text_nfdm." in path.read_text()]
        assert type(load(tmp_path).scheduler) is type(scheduler)


def test_names_in_the_checkpoint_are_those_of_the_package_root(folder):
    import diffusers_text_nfdm

    index = json.loads((folder / "model_index.json").read_text())
    for name in COMPONENTS:
        assert hasattr(diffusers_text_nfdm, index[name][1])


def test_a_tokenizer_from_transformers_keeps_its_own_library(tmp_path):
    from transformers import PreTrainedTokenizerFast

    pipe = make_pipeline()
    special = {"bos_token": "<START>", "eos_token": "<END>", "unk_token": "<UNK>", "pad_token": "<PAD>"}
    pipe.tokenizer = PreTrainedTokenizerFast(tokenizer_object=pipe.tokenizer.backend_tokenizer, **special)
    pipe.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "model_index.json").read_text())["tokenizer"][0] == "transformers"
    assert load(tmp_path)(generator=seeded(0), **STEPS).texts == pipe(generator=seeded(0), **STEPS).texts


@pytest.mark.parametrize(
    "scheduler", [MarkovChainScheduler(noise_fraction=0.0), ReverseODEScheduler("heun"), ReverseSDEScheduler()]
)
def test_another_scheduler_may_be_given_on_loading(folder, scheduler):
    with logged_warnings() as messages:
        pipe = load(folder, scheduler=scheduler)
    assert pipe.scheduler is scheduler and messages == []
    assert len(pipe(**STEPS).texts) == 4


@pytest.mark.parametrize("name", MODELS)
def test_weights_may_be_loaded_in_bfloat16(name, tmp_path):
    make_pipeline(name).save_pretrained(tmp_path)
    with logged_warnings() as messages:
        pipe = load(tmp_path, dtype=torch.bfloat16)
    assert messages == [] and pipe.model.dtype == torch.bfloat16
    for scheduler in (MarkovChainScheduler(0.5), ReverseSDEScheduler(), ReverseODEScheduler("heun")):
        pipe.scheduler = scheduler
        latents = pipe(generator=seeded(0), output_type="latent", **STEPS).latents
        assert latents.dtype == torch.float32 and torch.isfinite(latents).all()
    assert len(pipe(**STEPS).texts) == 4


def test_a_loaded_pipeline_takes_its_card_along_unless_its_weights_change(copy, tmp_path):
    write_model_card(load(copy), copy, data="Tales.", results="| nats | 1.5 |")
    card = (copy / "README.md").read_text()
    pipe = load(copy)
    pipe.save_pretrained(tmp_path / "same")
    assert (tmp_path / "same" / "README.md").read_text() == card
    pipe.save_pretrained(tmp_path / "named", repo_id="user/tiny")
    assert (tmp_path / "named" / "README.md").read_text() == card.replace("path/or/repo", "user/tiny")
    pipe.scheduler = MarkovChainScheduler.from_config(pipe.scheduler.config)
    pipe.save_pretrained(tmp_path / "other")
    note = "The scheduler of this copy is `MarkovChainScheduler`. What the card says of samples is of"
    assert (tmp_path / "other" / "README.md").read_text() == f"{card}\n{note} `ReverseSDEScheduler`.\n"
    with torch.no_grad():
        next(pipe.model.parameters()).add_(0.1)
    pipe.save_pretrained(tmp_path / "changed")
    changed = (tmp_path / "changed" / "README.md").read_text()
    assert "Tales." not in changed and "| nats | 1.5 |" not in changed and UNKNOWN in changed


def test_saving_twice_into_a_folder_keeps_its_card(copy):
    (copy / "README.md").write_text("my own card")
    load(copy).save_pretrained(copy)
    assert (copy / "README.md").read_text() == "my own card"


# --- what is no checkpoint ---


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=f"The folder '{tmp_path}' is no pipeline checkpoint: it has no model_index.json"
    ):
        load(tmp_path)


def test_the_folder_of_a_model_alone_is_refused_with_the_way_to_load_it(folder):
    with pytest.raises(ValueError, match="load a model alone with `AutoModel.from_pretrained`"):
        load(folder / "model")


def test_a_file_is_refused(folder):
    with pytest.raises(ValueError, match="model_index.json' is a file; give the folder of a checkpoint"):
        load(folder / "model_index.json")


@pytest.mark.parametrize("name", ["no/such/folder/here", "./missing", "/tmp/does-not-exist-at-all"])
def test_a_missing_folder_is_refused_by_name(name):
    with pytest.raises(ValueError, match=name.replace(".", "\\.")):
        load(name)


def test_a_repository_that_was_never_downloaded_is_refused_offline(tmp_path):
    with pytest.raises(OSError, match="'user/unknown'.*offline, download it once beforehand"):
        load("user/unknown", cache_dir=tmp_path)


@pytest.mark.parametrize(
    "number, message",
    [
        (99, "`checkpoint_format` is 99; .*reads formats up to 2. Upgrade it"),
        (1, "`checkpoint_format` is 1; .*reads format 2 only. Train the model again"),
    ],
)
def test_a_checkpoint_of_another_format_is_refused(copy, number, message):
    config = json.loads((copy / "model" / "config.json").read_text())
    assert config["checkpoint_format"] == 2
    (copy / "model" / "config.json").write_text(json.dumps({**config, "checkpoint_format": number}))
    with pytest.raises(ValueError, match=message):
        load(copy)


def test_pickled_weights_are_never_read(copy):
    with pytest.raises(ValueError, match="`use_safetensors` is False, but pickled weights are never loaded"):
        load(copy, use_safetensors=False)
    state = load(copy).model.state_dict()
    (copy / "model" / "model.safetensors").unlink()
    torch.save(state, copy / "model" / "pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        load(copy)


@pytest.mark.parametrize(
    "damaged, message",
    [
        ("model/model.safetensors", "copy/model' are damaged: .*Save or download them again"),
        ("tokenizer/tokenizer.json", "tokenizer.json' is not a valid JSON file"),
        ("model/config.json", "model/config.json' is not a valid JSON file"),
        ("scheduler/scheduler_config.json", "scheduler_config.json' is not a valid JSON file"),
        ("model_index.json", "model_index.json' is not a valid JSON file"),
    ],
)
def test_half_a_file_is_refused(copy, damaged, message):
    data = (copy / damaged).read_bytes()
    (copy / damaged).write_bytes(data[: len(data) // 2])
    for read in (load, load_pipeline):
        with pytest.raises(OSError, match=message):
            read(copy)


JSON_FILES = (
    "model_index.json",
    "model/config.json",
    "scheduler/scheduler_config.json",
    "tokenizer/tokenizer.json",
    "tokenizer/tokenizer_config.json",
)


@pytest.mark.parametrize("content", [b"", b"[1]", b"null", b"\xff\xfe{}", b'{"a": }', b"[" * 100_000])
@pytest.mark.parametrize("name", JSON_FILES)
def test_a_file_without_a_json_object_is_named(name, content, copy):
    (copy / name).write_bytes(content)
    with pytest.raises(OSError, match=f"{name}' (is not a valid JSON file|holds a )"):
        load(copy)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("model_index.json", {"model": 3}),
        ("model_index.json", {"model": ["diffusers_text_nfdm"]}),
        ("model_index.json", {"model": ["diffusers_text_nfdm", None]}),
        ("model_index.json", {"scheduler": {}}),
        ("model/config.json", {"hidden_size": "wide"}),
        ("model/config.json", {"hidden_size": None}),
        ("model/config.json", {"vocab_size": [1]}),
        ("model/config.json", {"clock": 7}),
        ("scheduler/scheduler_config.json", {"volatility_scale": "much"}),
        ("tokenizer/tokenizer.json", {"model": 1}),
    ],
)
def test_odd_values_are_refused_with_the_name_of_the_checkpoint_or_the_value(name, values, copy):
    (copy / name).write_text(json.dumps(json.loads((copy / name).read_text()) | values))
    with pytest.raises((OSError, ValueError), match="copy|" + "|".join(values)):
        load(copy)


# --- a model alone ---


@pytest.mark.parametrize("name", ["model/config.json", "tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json"])
def test_a_missing_file_is_named(name, copy):
    (copy / name).unlink()
    with pytest.raises(OSError, match=f"'{copy / name}' is missing"):
        NFDMTextPipeline.from_pretrained(copy)


def test_a_pipeline_that_was_loaded_is_saved_as_before(folder, tmp_path):
    """No folder of the machine that it was loaded from is written down."""
    load(folder).save_pretrained(tmp_path / "again")
    for path in (path for path in folder.rglob("*") if path.is_file()):
        assert (tmp_path / "again" / path.relative_to(folder)).read_bytes() == path.read_bytes(), path.name


def test_a_component_that_is_given_needs_no_file(copy):
    (copy / "scheduler" / "scheduler_config.json").unlink()
    with pytest.raises(OSError, match="scheduler_config.json' is missing"):
        NFDMTextPipeline.from_pretrained(copy)
    assert NFDMTextPipeline.from_pretrained(copy, scheduler=MarkovChainScheduler()) is not None


def test_a_model_alone_is_read_from_safetensors_only(copy):
    folder = copy / "model"
    model = NFDMModel.from_pretrained(folder)
    with pytest.raises(ValueError, match="pickled weights are never loaded"):
        NFDMModel.from_pretrained(folder, use_safetensors=False)
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    for reader in (NFDMModel, AutoModel):
        with pytest.raises(OSError, match="safetensors"):
            reader.from_pretrained(folder)


def test_a_missing_weight_is_an_error(copy):
    file = copy / "model" / "model.safetensors"
    weights = load_file(file)
    del weights["token_bias"]
    save_file(weights, file, metadata={"format": "pt"})
    for read in (load, lambda folder: NFDMModel.from_pretrained(folder / "model")):
        with pytest.raises(ValueError, match="lack token_bias"):
            read(copy)


def test_weights_that_are_not_finite_are_refused(copy):
    file = copy / "model" / "model.safetensors"
    weights = load_file(file)
    weights["token_bias"][3] = float("nan")
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="not finite, in token_bias"):
        load(copy)


def test_a_pipeline_that_cannot_be_written_names_its_folder(tmp_path):
    """The kernel refuses files beyond a limit."""
    pipe = make_pipeline()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match=f"Could not write {tmp_path / 'new'}: .*File too large"):
            pipe.save_pretrained(tmp_path / "new")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_hub_arguments_without_a_push_are_refused(tmp_path):
    with pytest.raises(ValueError, match="commit_message, private only matter with `push_to_hub=True`"):
        make_pipeline().save_pretrained(tmp_path, private=True, commit_message="First")
    assert not list(tmp_path.iterdir())


def test_diffusers_finds_the_class_that_a_checkpoint_names(folder):
    pipe = DiffusionPipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    assert type(pipe) is NFDMTextPipeline
    assert pipe(generator=seeded(0), **STEPS).texts == load(folder)(generator=seeded(0), **STEPS).texts
