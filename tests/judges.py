"""A GPT-2 of a few thousand random weights, with a tokenizer for the embedded stories."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from diffusers_text_nfdm.stories import StoryGrammar
from diffusers_text_nfdm.tokenization import word_splitter


END_OF_TEXT, UNKNOWN = "<|endoftext|>", "<unk>"


def judge_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    backend.pre_tokenizer = word_splitter()
    trainer = trainers.WordLevelTrainer(special_tokens=[END_OF_TEXT, UNKNOWN], show_progress=False)
    backend.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT, unk_token=UNKNOWN
    )


def judge_model(vocab_size: int) -> GPT2LMHeadModel:
    torch.manual_seed(7)
    config = GPT2Config(
        vocab_size=vocab_size,
        n_positions=96,
        n_embd=16,
        n_layer=2,
        n_head=2,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config).eval()


def save_judge(folder: Path) -> Path:
    """A judge as a folder. (mauve-text wants "gpt2" in its name.)"""
    folder = folder / "gpt2-tiny"
    tokenizer = judge_tokenizer(StoryGrammar().sample(300, seed="judge"))
    tokenizer.save_pretrained(folder)
    judge_model(len(tokenizer)).save_pretrained(folder)
    return folder
