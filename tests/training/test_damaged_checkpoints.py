"""Checkpoints of strangers, and checkpoints that are not what was written."""

import json
import os
import pickle
import re
import shutil

import pytest
import torch

from diffusers_text_nfdm.training import Trainer, checkpoints, train
from diffusers_text_nfdm.training.checkpoints import CHECKSUMS_FILE, SETTINGS_FILE
from runs import arguments


@pytest.fixture(scope="module")
def made(data, tmp_path_factory):
    """A run of eight steps with checkpoints at 4 and 8."""
    run = tmp_path_factory.mktemp("made") / "run"
    train(arguments(data, run, num_samples=0, final_samples=1))
    return run


@pytest.fixture
def run(made, tmp_path):
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


class Hostile:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("writer", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
@pytest.mark.parametrize(
    "name",
    [
        "optimizer.bin",
        "optimizer_1.bin",
        "random_states_0.pkl",
        "custom_checkpoint_0.pkl",
        "custom_checkpoint_1.pkl",
        "scaler.pt",
        "pytorch_model.bin",
    ],
)
def test_a_hostile_checkpoint_runs_no_code(name, writer, data, run, tmp_path):
    checkpoint, owned = run / "checkpoint-00000004", tmp_path / "owned"
    if name == "pytorch_model.bin":
        (checkpoint / "model.safetensors").unlink()
    writer({"state": Hostile(owned)}, checkpoint / name)
    # Who can write the files can write their checksums.
    (checkpoint / CHECKSUMS_FILE).write_text(json.dumps(checkpoints.folder_checksums(checkpoint)))
    try:
        Trainer(arguments(data, run, num_samples=0, final_samples=1, resume=str(checkpoint)))
    except ValueError as refusal:
        assert str(checkpoint) in str(refusal)
    assert not owned.exists()


def test_pickled_objects_are_refused_without_advice_to_load_them(data, run):
    checkpoint = run / "checkpoint-00000004"
    torch.save({"state": Hostile(run / "owned")}, checkpoint / "optimizer.bin")
    (checkpoint / CHECKSUMS_FILE).write_text(json.dumps(checkpoints.folder_checksums(checkpoint)))
    with pytest.raises(ValueError, match="has a pickle of objects, which are never loaded.$"):
        Trainer(arguments(data, run, num_samples=0, final_samples=1, resume=str(checkpoint)))


def test_damage_to_any_file_of_a_checkpoint_is_found(data, run):
    checkpoint, before = run / "checkpoint-00000008", re.escape(f"`--resume {run / 'checkpoint-00000004'}`.")
    files = [path for path in checkpoint.iterdir() if path.name != CHECKSUMS_FILE]
    assert {"model.safetensors", "average.safetensors", "optimizer.bin", "optimizer_1.bin"} < {f.name for f in files}
    for path in files:
        whole = path.read_bytes()
        flipped = whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]
        for content, what in (
            (flipped, "not what was written"),
            (whole[:-9], "not what was written"),
            (None, "missing"),
        ):
            path.unlink() if content is None else path.write_bytes(content)
            with pytest.raises(ValueError, match=f"{checkpoint} is damaged: {path.name} is {what}. .* {before}"):
                Trainer(arguments(data, run, num_samples=0, final_samples=1, resume="latest"))
        path.write_bytes(whole)


@pytest.mark.parametrize("harm", ["flipped", "removed"])
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_damage_to_the_tokenizer_of_a_run_is_found(name, harm, data, run):
    path = run / "tokenizer" / name
    content = bytearray(path.read_bytes())
    content[content.index(b"UNK")] ^= 1
    path.unlink() if harm == "removed" else path.write_bytes(content)
    with pytest.raises(ValueError, match=f"The files of {run / 'tokenizer'} are not those that .* was made with"):
        Trainer(arguments(data, run, num_samples=0, final_samples=1, resume="latest"))


@pytest.mark.parametrize("content", [b"", b'{"a": ', b"[1]", b"\xff"])
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_tokenizer_that_cannot_be_read_is_named(name, content, data, run):
    """Its checksums are left out, as older versions did."""
    checkpoint = run / "checkpoint-00000008"
    (run / "tokenizer" / name).write_bytes(content)
    settings = checkpoints.read_settings(checkpoint)
    del settings["tokenizer_checksums"]
    (checkpoint / SETTINGS_FILE).write_text(json.dumps(settings))
    (checkpoint / CHECKSUMS_FILE).write_text(json.dumps(checkpoints.folder_checksums(checkpoint)))
    with pytest.raises(ValueError, match=f"The run's tokenizer in {run / 'tokenizer'} cannot be read"):
        Trainer(arguments(data, run, num_samples=0, final_samples=1, resume="latest"))
