"""Checkpoints and released pipelines with a file that is missing, empty, cut, or has another bit."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from safetensors.torch import save

from diffusers_text_nfdm import NFDMTextPipeline

from .children import RUN, contents, finish, fresh, write_settings
from .kills import judge
from .tally import Campaign, Tally, describe, is_sentence, said


HARMS = ("missing", "empty", "cut", "flipped")
# The checkpoint that is damaged, and the one before it.
LAST, BEFORE = "checkpoint-00000008", "checkpoint-00000006"


def run(campaign: Campaign) -> Tally:
    tally = Tally("damaged")
    settings = write_settings(campaign.folder / "settings")
    whole = fresh(campaign.folder / "whole")
    assert finish(settings, whole).code == 0
    reference = contents(whole / RUN)
    files = {
        "a checkpoint": [path for path in (whole / RUN / LAST).rglob("*") if path.is_file()],
        "the run": [whole / RUN / "training_arguments.json", *(whole / RUN / "tokenizer").iterdir()],
        # Its files may be edited, so it has no checksums, and another bit of a weight is another model.
        "a pipeline": [path for path in (whole / RUN / "pipeline").rglob("*") if path.is_file()],
    }
    cases = [
        (part, path, harm)
        for part, paths in files.items()
        for path in sorted(paths)
        for harm in HARMS
        if (part, harm) != ("a pipeline", "flipped")
    ]
    first = True
    while first or not campaign.over:
        # Places of cuts and bits are drawn anew in every round; a round begun is brought to its end only once.
        for part, path, harm in campaign.random.sample(cases, len(cases)):
            if campaign.over and not first:
                break
            folder = fresh(campaign.folder / "damaged")
            shutil.copytree(whole / RUN, folder / RUN)
            name = path.relative_to(whole / RUN)
            inflict(harm, folder / RUN / name, campaign.random)
            if part == "a pipeline":
                found = judge_pipeline(folder / RUN / "pipeline", whole / RUN / "pipeline")
            else:
                found = judge_resume(settings, folder, reference, name)
            tally.judge(f"{part}, {harm}", found and (found[0], f"{name}: {found[1]}"))
        first = False
    return tally


def inflict(harm: str, path: Path, random) -> None:
    content = bytearray(path.read_bytes())
    if harm == "missing":
        path.unlink()
    elif harm == "empty":
        path.write_bytes(b"")
    elif harm == "cut":
        path.write_bytes(content[: random.randrange(1, len(content))])
    else:
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
        path.write_bytes(content)


def judge_resume(settings: Path, folder: Path, reference: dict, name: Path) -> tuple[str, str] | None:
    """Refused with the name of what is damaged and a way back that works, or the same run to the end."""
    ended = finish(settings, folder, "--resume", "latest")
    if ended.code == 0:
        return judge(ended, reference, folder / RUN)
    told = said(ended.printed)
    if ended.code != 1 or "Traceback" in ended.printed or not is_sentence(told):
        return "obscure", f"exit code {ended.code}: {ended.printed[-300:]}"
    if not any(part in told for part in (LAST, name.name, name.parts[0])):
        return "obscure", f"neither the file nor its folder is named: {told}"
    if name.parts[0] != LAST:
        return None
    if f"--resume {Path(RUN) / BEFORE}" not in told:
        return "obscure", f"the checkpoint before it is not offered: {told}"
    return judge(finish(settings, folder, "--resume", f"{RUN}/{BEFORE}"), reference, folder / RUN)


def fingerprint(pipeline: NFDMTextPipeline) -> str:
    """Of all that decides the texts."""
    digest = hashlib.sha256(save({name: x.contiguous() for name, x in pipeline.model.state_dict().items()}))
    for part in (pipeline.model.config.to_json_string(), str(sorted(pipeline.scheduler.config.items()))):
        digest.update(part.encode())
    digest.update(pipeline.tokenizer.backend_tokenizer.to_str().encode())
    return digest.hexdigest()


def judge_pipeline(folder: Path, whole: Path) -> tuple[str, str] | None:
    """Loaded as it was saved, or refused with its name."""
    try:
        loaded = fingerprint(NFDMTextPipeline.from_pretrained(folder))
    except (OSError, ValueError) as error:
        named = is_sentence(str(error)) and (str(folder) in str(error) or RUN in str(error))
        return None if named else ("obscure", describe(error))
    except Exception as error:
        return "obscure", describe(error)
    same = loaded == fingerprint(NFDMTextPipeline.from_pretrained(whole))
    return None if same else ("silent", "it is another pipeline")
