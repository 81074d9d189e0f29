"""What our models take from a folder or the Hub."""

from __future__ import annotations

from typing import Any

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel


class SafetensorsModel(PreTrainedModel):
    """Reads weights from safetensors only, and only a model of which every weight is there and finite."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args: Any, **kwargs: Any):
        """Takes the arguments of `PreTrainedModel.from_pretrained`."""
        if kwargs.pop("use_safetensors", None) is False:
            raise ValueError(
                "`use_safetensors` is False, but pickled weights are never loaded. Convert them to safetensors."
            )
        with_info = kwargs.pop("output_loading_info", False)
        where = f"The weights of {str(pretrained_model_name_or_path)!r}"
        try:
            model, info = super().from_pretrained(
                pretrained_model_name_or_path, *args, use_safetensors=True, output_loading_info=True, **kwargs
            )
        except SafetensorError as error:
            raise OSError(
                f"{where} are damaged: {error}. Save or download them again; `force_download=True` replaces those in "
                "the cache."
            ) from error
        if info["missing_keys"]:
            raise ValueError(
                f"{where} lack {', '.join(sorted(info['missing_keys']))}; save or download them again, or build the "
                "model from its config to train it anew."
            )
        for name, value in model.state_dict().items():
            if value.is_floating_point() and not torch.isfinite(value).all():
                raise ValueError(f"{where} have values that are not finite, in {name}; take another checkpoint.")
        return (model, info) if with_info else model
