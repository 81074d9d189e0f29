"""Print how many parameters each model has at the paper's sizes, and where they are.

python examples/parameter_counts.py
"""

import torch

from diffusers_text_nfdm import DiffusionLMConfig, DiffusionLMModel, MuLANConfig, MuLANModel, NFDMConfig, NFDMModel


MODELS = {
    "NFDM": (NFDMModel, NFDMConfig()),
    "NFDM-Additive": (NFDMModel, NFDMConfig(time_conditioning="additive")),
    "MuLAN": (MuLANModel, MuLANConfig()),
    "MuLAN-Rescaled": (MuLANModel, MuLANConfig(rescaled_schedule=True, gamma_min=-4.6, gamma_max=13.8)),
    "Diffusion-LM": (DiffusionLMModel, DiffusionLMConfig()),
}
PARTS = ("embeddings", "predictor", "forward_process", "context_encoder")


def main() -> None:
    print(
        "".join(["parameters".ljust(16), *(part.replace("_", " ").rjust(17) for part in (*PARTS, "other", "total"))])
    )
    for name, (model_class, config) in MODELS.items():
        # Shapes only: nothing is allocated.
        with torch.device("meta"):
            model = model_class(config)
        counts = [count(getattr(model, part)) for part in PARTS]
        counts += [count(model) - sum(counts), count(model)]
        print("".join([name.ljust(16), *(f"{number:17,d}" for number in counts)]))


def count(module: torch.nn.Module | None) -> int:
    return 0 if module is None else sum(parameter.numel() for parameter in module.parameters())


if __name__ == "__main__":
    main()
