"""Checkpoints, pipelines and recipes of an enemy: none may run code, and odd values are refused in a sentence."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
import yaml
from tiny import make_pipeline, seeded

from diffusers_text_nfdm import NFDMModel, NFDMTextPipeline, WordTokenizer
from diffusers_text_nfdm.training import checkpoints, parse_arguments

from .children import RUN, Child, Ended, finish, fresh, write_settings
from .tally import Campaign, Tally, describe, is_sentence, said


PICKLES = (
    "optimizer.bin", "optimizer_1.bin", "scheduler.bin", "sampler.bin", "random_states_0.pkl", "scaler.pt",
    "custom_checkpoint_0.pkl", "custom_checkpoint_1.pkl", "pytorch_model.bin", "model.safetensors",
    "average.safetensors", "progress.json", "training_arguments.json",
)  # fmt: skip
WRITERS: dict[str, Callable] = {
    "torch.save": torch.save,
    "old torch.save": lambda value, path: torch.save(value, path, _use_new_zipfile_serialization=False),
    "pickle": lambda value, path: Path(path).write_bytes(pickle.dumps(value)),
}
ODD_VALUES = (None, True, -1, 0, 1.5, float("nan"), 1e308, "", "x", "../../x", [], [[]], {}, {"a": 1}, ["a", 1])


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def run(campaign: Campaign) -> Tally:
    tally = Tally("hostile")
    settings = write_settings(campaign.folder / "settings")
    whole = fresh(campaign.folder / "whole")
    assert finish(settings, whole).code == 0
    pipeline = campaign.folder / "pipeline"
    make_pipeline("nfdm").save_pretrained(pipeline)
    for name in PICKLES:
        for writer in WRITERS:
            tally.judge("a pickle in a checkpoint", pickle_in_checkpoint(campaign, settings, whole, name, writer))
    for name, attack in ATTACKS.items():
        tally.judge(name, attack(campaign, pipeline))
    for path in sorted(pipeline.rglob("*.json")):
        for key in json.loads(path.read_text()):
            for value in ODD_VALUES:
                found = odd_value(campaign, pipeline, path.relative_to(pipeline), key, value)
                tally.judge("an odd value in JSON", found)
    return tally


def pickle_in_checkpoint(campaign, settings, whole, name: str, writer: str) -> tuple[str, str] | None:
    folder, owned = fresh(campaign.folder / "resumed"), campaign.folder / "owned"
    shutil.copytree(whole / RUN, folder / RUN)
    checkpoint = checkpoints.checkpoint_folders(folder / RUN)[-1]
    if name == "pytorch_model.bin":
        (checkpoint / "model.safetensors").unlink()
    (checkpoint / name).unlink(missing_ok=True)
    WRITERS[writer]({"state": Payload(owned), "step": 8}, checkpoint / name)
    # Who can write the files can write their checksums.
    (checkpoint / checkpoints.CHECKSUMS_FILE).write_text(json.dumps(checkpoints.folder_checksums(checkpoint)))
    ended = finish(settings, folder, "--resume", "latest")
    return _judge_run(ended, owned, f"{name} by {writer}")


def _judge_run(ended: Ended, owned: Path, what: str) -> tuple[str, str] | None:
    if owned.exists():
        owned.rmdir()
        return "silent", f"{what} ran code"
    if ended.code == 0:
        return None
    told = said(ended.printed)
    fine = ended.code == 1 and "Traceback" not in ended.printed and is_sentence(told) and "checkpoint" in told
    return None if fine else ("obscure", f"{what}: {ended.printed[-300:]}")


# ---- Pipelines and recipes ------------------------------------------------------------------------------------------


def _attempt(campaign: Campaign, owned: Path, action: Callable[[], object]) -> tuple[str, str] | None:
    """Run `action` in a process of its own; code that ran shows in `owned`."""

    def inside() -> int:
        try:
            action()
        except (OSError, ValueError) as error:
            if is_sentence(str(error)):
                return 0
            print(describe(error))
            return 1
        except SystemExit:
            return 0
        except BaseException as error:
            print(describe(error))
            return 1
        return 0

    ended = Child(inside, campaign.folder / "log.txt").wait()
    if owned.exists():
        owned.rmdir()
        return "silent", "it ran code"
    return None if ended.code == 0 else ("obscure", ended.printed.strip()[-300:] or f"exit code {ended.code}")


def _copy(campaign: Campaign, pipeline: Path) -> Path:
    folder = campaign.folder / "odd"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(pipeline, folder)
    return folder


def _edit(path: Path, **values) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def use(folder: Path) -> None:
    pipeline = NFDMTextPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    pipeline(num_samples=1, num_inference_steps=2, generator=seeded(0))


def pickled_weights(campaign: Campaign, pipeline: Path) -> tuple[str, str] | None:
    folder, owned = _copy(campaign, pipeline), campaign.folder / "owned"
    (folder / "model" / "model.safetensors").unlink()
    torch.save({"state": Payload(owned)}, folder / "model" / "pytorch_model.bin")
    return _attempt(campaign, owned, lambda: use(folder))


def pickled_model_alone(campaign: Campaign, pipeline: Path) -> tuple[str, str] | None:
    folder, owned = _copy(campaign, pipeline), campaign.folder / "owned"
    (folder / "model" / "model.safetensors").unlink()
    torch.save({"state": Payload(owned)}, folder / "model" / "pytorch_model.bin")
    return _attempt(campaign, owned, lambda: NFDMModel.from_pretrained(folder / "model"))


def _code(owned: Path) -> str:
    return f"import os\nos.mkdir({str(owned)!r})\nclass Evil: pass\nclass Pipeline: pass\n"


def custom_model_code(campaign: Campaign, pipeline: Path) -> tuple[str, str] | None:
    folder, owned = _copy(campaign, pipeline), campaign.folder / "owned"
    (folder / "model" / "evil.py").write_text(_code(owned))
    _edit(folder / "model" / "config.json", auto_map={"AutoModel": "evil.Evil", "AutoConfig": "evil.Evil"})
    return _attempt(campaign, owned, lambda: use(folder))


def custom_tokenizer_code(campaign: Campaign, pipeline: Path) -> tuple[str, str] | None:
    folder, owned = _copy(campaign, pipeline), campaign.folder / "owned"
    (folder / "tokenizer" / "evil.py").write_text(_code(owned))
    _edit(folder / "tokenizer" / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Evil", "evil.Evil"]})
    return _attempt(campaign, owned, lambda: WordTokenizer.from_pretrained(folder / "tokenizer"))


def custom_pipeline_code(campaign: Campaign, pipeline: Path) -> tuple[str, str] | None:
    folder, owned = _copy(campaign, pipeline), campaign.folder / "owned"
    (folder / "pipeline.py").write_text(_code(owned))
    _edit(folder / "model_index.json", _class_name=["pipeline", "Pipeline"])
    return _attempt(campaign, owned, lambda: use(folder))


def foreign_module(campaign: Campaign, pipeline: Path) -> tuple[str, str] | None:
    folder, owned = _copy(campaign, pipeline), campaign.folder / "owned"
    (folder / "model" / "evil.py").write_text(_code(owned))
    _edit(folder / "model_index.json", model=["evil", "Evil"])
    return _attempt(campaign, owned, lambda: use(folder))


def yaml_tags(campaign: Campaign, pipeline: Path) -> tuple[str, str] | None:
    owned, recipe = campaign.folder / "owned", campaign.folder / "evil.yaml"
    recipe.write_text(f"max_steps: !!python/object/apply:os.mkdir [{str(owned)!r}]\n")
    return _attempt(campaign, owned, lambda: parse_arguments(["--config", str(recipe)]))


def yaml_values(campaign: Campaign, pipeline: Path) -> tuple[str, str] | None:
    owned = campaign.folder / "owned"
    value = f"a=!!python/object/apply:os.mkdir [{str(owned)!r}]"
    return _attempt(campaign, owned, lambda: parse_arguments(["--model_config", value]))


def card_header(campaign: Campaign, pipeline: Path) -> tuple[str, str] | None:
    """A card that another tool would read as YAML."""
    folder, owned = _copy(campaign, pipeline), campaign.folder / "owned"
    header = yaml.dump({"license": "mit"}) + f"x: !!python/object/apply:os.mkdir [{str(owned)!r}]\n"
    (folder / "README.md").write_text(f"---\n{header}---\n# A card\n")
    return _attempt(campaign, owned, lambda: use(folder))


ATTACKS = {
    "pickled weights of a pipeline": pickled_weights,
    "pickled weights of a model": pickled_model_alone,
    "code beside a model": custom_model_code,
    "code beside a tokenizer": custom_tokenizer_code,
    "code beside a pipeline": custom_pipeline_code,
    "a foreign module": foreign_module,
    "a YAML tag in a recipe": yaml_tags,
    "a YAML tag on the command line": yaml_values,
    "a YAML tag in a card": card_header,
}


def odd_value(campaign: Campaign, pipeline: Path, path: Path, key: str, value) -> tuple[str, str] | None:
    folder = _copy(campaign, pipeline)
    _edit(folder / path, **{key: value})
    found = _attempt(campaign, campaign.folder / "owned", lambda: use(folder))
    return found and (found[0], f"{path} with {key!r}: {value!r}: {found[1]}")
