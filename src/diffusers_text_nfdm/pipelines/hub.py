"""Checkpoints in folders and on the Hub, for a pipeline that lives outside diffusers."""

from __future__ import annotations

import functools
import json
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import diffusers
from huggingface_hub import create_repo, snapshot_download, upload_folder
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from safetensors import SafetensorError

from ..files import file_digest, git_digest, write_file, writing
from ..model_card import keep_model_card, write_model_card
from ..tokenization import forget_origin


PACKAGE = __name__.split(".")[0]
# Weights as safetensors only: nothing that could hold a pickle is fetched.
ALLOWED_FILES = ["*.json", "*.safetensors", "*.txt", "*.md", "*.model"]

# Seconds between the tries of a push.
PAUSES = (1.0, 5.0)
AGAIN = "Save or download it again; `force_download=True` replaces what is in the cache."
# What each component is read from, and model_index.json. Without its own, transformers takes a default configuration.
COMPONENT_FILES = {
    "model": ("config.json",),
    "scheduler": ("scheduler_config.json",),
    "tokenizer": ("tokenizer.json", "tokenizer_config.json"),
}
JSON_FILES = ("model_index.json", *(name for names in COMPONENT_FILES.values() for name in names))


def check_json_files(folder: Path, given: Collection[str] = ()) -> None:
    """Raise an OSError for a file of a checkpoint that is missing or holds no JSON object, but for those of components
    that are `given`.
    """
    for path in sorted(path for name in JSON_FILES for path in (*folder.glob(name), *folder.glob(f"*/{name}"))):
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
            raise OSError(f"{str(path)!r} is not a valid JSON file ({error}). {AGAIN}") from error
        if not isinstance(value, dict):
            raise OSError(f"{str(path)!r} holds a {type(value).__name__} in place of an object. {AGAIN}")
        if path.name == "model_index.json":
            for key, pair in value.items():
                named = isinstance(pair, list) and len(pair) == 2 and all(isinstance(x, str | None) for x in pair)
                if not key.startswith("_") and not named:
                    raise OSError(f"{str(path)!r} has {key!r}: {pair!r}; a component is [library, class]. {AGAIN}")
                # Tokenizers of other libraries have files of their own.
                needed = COMPONENT_FILES.get(key, ()) if named and pair[0] == PACKAGE and key not in given else ()
                for missing in (name for name in needed if not (folder / key / name).is_file()):
                    raise OSError(f"{str(folder / key / missing)!r} is missing. {AGAIN}")


def check_fetched(folder: Path, where: str) -> None:
    """Raise an OSError for a file that is not what the Hub has.

    The cache links every file to one that is named by the Hub's checksum, SHA-256 or git's. The client compares sizes.
    """
    for path in sorted(path for path in folder.rglob("*") if path.is_symlink()):
        expected = path.resolve().name
        digest = {64: file_digest, 40: git_digest}.get(len(expected))
        if digest is not None and digest(path) != expected:
            raise OSError(f"{path.relative_to(folder)} of {where} was damaged on the way or on the disk. {AGAIN}")


def _explain(error: Exception, name: str, where: str) -> Exception | None:
    """What a failed download means to the caller, `None` for an error of another kind."""
    if _status(error) == 403:
        return OSError(
            f"The Hub refuses access to {where} (403). Ask for it on the repository's page, and give a token that has "
            "it: `token=` or `hf auth login`."
        )
    if isinstance(error, RevisionNotFoundError):
        return ValueError(f"There is no such revision: {where}. Give an existing branch, tag or commit.")
    if isinstance(error, (RepositoryNotFoundError, HFValidationError)):
        return ValueError(
            f"There is no such repository, nor such a folder: {name!r}. Check the name; a private repository needs "
            "`token=` or `hf auth login`."
        )
    if isinstance(error, LocalEntryNotFoundError):
        return OSError(
            f"Could not fetch {where}, and it is not whole in the cache. Check the connection and try again; offline, "
            "download it once beforehand."
        )
    if isinstance(error, (HfHubHTTPError, EntryNotFoundError)):
        return OSError(f"The Hub did not deliver {where}: {error}. Nothing half-loaded is kept; try again.")
    if _is_interruption(error):
        return OSError(
            f"The download of {where} was interrupted ({type(error).__name__}: {error}). What was fetched whole is "
            "kept; try again."
        )
    return None


def _status(error: BaseException | None) -> int | None:
    """The status of the answer that the error, or one that it came from, is about."""
    while error is not None:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status is not None:
            return status
        error = error.__cause__ or error.__context__
    return None


def _is_interruption(error: Exception) -> bool:
    """A connection that broke, or an answer that is no JSON: exceptions of whatever HTTP library the client uses."""
    libraries = ("httpx", "httpx2", "httpcore", "requests")
    return isinstance(error, (OSError, json.JSONDecodeError)) or type(error).__module__.split(".")[0] in libraries


def _persist(action: Callable[[], Any]) -> Any:
    """The result of a request that changes the Hub, tried again where the Hub or the connection fails for a moment."""
    for pause in (*PAUSES, None):
        try:
            return action()
        except Exception as error:
            status = _status(error)
            if not _is_interruption(error) or isinstance(error, (LocalTokenNotFoundError, OfflineModeIsEnabled)):
                raise
            if pause is None or not (status is None or status == 429 or status >= 500):
                if isinstance(error, OSError):
                    raise
                raise OSError(f"the Hub did not answer as it should ({type(error).__name__}: {error})") from error
            time.sleep(pause)


class HubCheckpointMixin:
    """Overrides of `DiffusionPipeline` for saving, loading and pushing."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # `DiffusionPipeline.from_pretrained` looks in diffusers for the class that model_index.json names.
        if not hasattr(diffusers, cls.__name__):
            setattr(diffusers, cls.__name__, cls)

    def register_to_config(self, **kwargs: Any) -> None:
        # model_index.json names our components by the package alone, so that a checkpoint survives a move of files
        # inside it.
        for name, value in kwargs.items():
            if isinstance(value, (tuple, list)) and value and str(value[0]).split(".")[0] == PACKAGE:
                kwargs[name] = (PACKAGE, value[1])
        super().register_to_config(**kwargs)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, **kwargs: Any):
        """Load a pipeline from a folder or a Hub repository.

        Takes the arguments of `DiffusionPipeline.from_pretrained`: `revision`, `token`, `cache_dir`,
        `local_files_only`, `variant`, `dtype`, and components such as `scheduler=`. Only safetensors weights are read.
        """
        if kwargs.pop("use_safetensors", True) is False:
            raise ValueError(
                "`use_safetensors` is False, but pickled weights are never loaded. Convert them to safetensors."
            )
        path = Path(pretrained_model_name_or_path)
        if path.is_dir() and not (path / "model_index.json").is_file():
            raise ValueError(
                f"The folder {str(path)!r} is no pipeline checkpoint: it has no model_index.json. Give the folder "
                "that "
                "`save_pretrained` wrote, or load a model alone with `AutoModel.from_pretrained`."
            )
        if path.is_file():
            raise ValueError(f"{str(path)!r} is a file; give the folder of a checkpoint or the name of a repository.")
        if path.is_dir():
            check_json_files(path, given=kwargs)
        try:
            return super().from_pretrained(pretrained_model_name_or_path, use_safetensors=True, **kwargs)
        except (SafetensorError, json.JSONDecodeError) as error:
            raise OSError(
                f"The checkpoint {str(pretrained_model_name_or_path)!r} has a damaged file: {error}. {AGAIN}"
            ) from error
        except Exception as error:
            # What odd values in a JSON file lead to in diffusers and transformers; tokenizers raises a bare Exception.
            odd = isinstance(error, (AttributeError, IndexError, KeyError, TypeError)) or type(error) is Exception
            if not odd:
                raise
            raise OSError(
                f"The checkpoint {str(pretrained_model_name_or_path)!r} or an argument has a value of a wrong kind "
                f"({type(error).__name__}: {error}). {AGAIN}"
            ) from error

    @classmethod
    def download(
        cls,
        pretrained_model_name,
        *,
        cache_dir=None,
        force_download: bool = False,
        local_files_only: bool | None = None,
        token=None,
        revision: str | None = None,
        **kwargs: Any,
    ) -> str:
        """Fetch a repository's checkpoint files and return their folder.

        The rest of diffusers' arguments concern modules of its own, which `download` there insists on.
        """
        where = f"the repository {str(pretrained_model_name)!r}" + (f" at revision {revision!r}" if revision else "")
        try:
            folder = snapshot_download(
                str(pretrained_model_name),
                cache_dir=cache_dir,
                force_download=force_download,
                local_files_only=bool(local_files_only),
                token=token,
                revision=revision,
                allow_patterns=ALLOWED_FILES,
            )
        except Exception as error:
            explained = _explain(error, str(pretrained_model_name), where)
            if explained is None:
                raise
            raise explained from error
        if not (Path(folder) / "model_index.json").is_file():
            raise ValueError(f"{where} holds no pipeline: it has no model_index.json.")
        check_fetched(Path(folder), where)
        check_json_files(Path(folder), given=kwargs)
        return folder

    def save_pretrained(
        self, save_directory, *, push_to_hub: bool = False, repo_id: str | None = None, **kwargs: Any
    ) -> None:
        """Write components, model_index.json and, where there is none yet, a model card, which names `repo_id`.

        The card is that of the checkpoint that the pipeline was loaded from, as long as its weights are the same.
        """
        hub_arguments = {name: kwargs.pop(name) for name in PUSH_ARGUMENTS if name in kwargs}
        if hub_arguments and not push_to_hub:
            raise ValueError(f"{', '.join(sorted(hub_arguments))} only matter with `push_to_hub=True`.")
        folder = Path(save_directory)
        if push_to_hub:
            private = hub_arguments.pop("private", None)
            repo_id = create_repository(repo_id or folder.resolve().name, private, hub_arguments.get("token"))
        forget_origin(self.tokenizer)
        with writing(folder):
            super().save_pretrained(str(folder), **kwargs)
            # diffusers notes where a pipeline was loaded from, which may be a folder of this machine.
            index = json.loads((folder / "model_index.json").read_text(encoding="utf-8"))
            index.pop("_name_or_path", None)
            write_file(folder / "model_index.json", json.dumps(index, indent=2, sort_keys=True) + "\n")
            keep_model_card(self, folder, repo=repo_id)
            write_model_card(self, folder, repo=repo_id)
        if push_to_hub:
            upload_pipeline(folder, repo_id, **hub_arguments)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        token: str | bool | None = None,
        commit_message: str | None = None,
        revision: str | None = None,
        create_pr: bool = False,
    ) -> str:
        """Create the repository if need be and upload the pipeline with its model card.

        Returns the address of the commit.
        """
        repo_id = create_repository(repo_id, private, token)
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder, repo_id=repo_id)
            return upload_pipeline(Path(folder), repo_id, token, commit_message, revision, create_pr)


PUSH_ARGUMENTS = ("private", "token", "commit_message", "revision", "create_pr")


def create_repository(repo_id: str, private: bool | None = None, token: str | bool | None = None) -> str:
    """Create the repository where there is none, and return its full name."""
    return _persist(lambda: create_repo(repo_id, private=private, token=token, exist_ok=True).repo_id)


def upload_pipeline(
    folder: Path,
    repo_id: str,
    token: str | bool | None = None,
    commit_message: str | None = None,
    revision: str | None = None,
    create_pr: bool = False,
) -> str:
    """Upload the folder of a pipeline. Returns the address of the commit."""
    upload = functools.partial(
        upload_folder,
        repo_id=repo_id,
        folder_path=str(folder),
        token=token,
        commit_message=commit_message or "Upload pipeline",
        revision=revision,
        create_pr=create_pr,
    )
    return str(_persist(upload))
