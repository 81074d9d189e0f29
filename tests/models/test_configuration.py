"""Configurations: what is refused, what survives JSON, and the sizes the paper states."""

import pytest
import torch
from tiny import MODELS, make_config

from diffusers_text_nfdm import DiffusionLMConfig, DiffusionLMModel, MuLANConfig, MuLANModel, NFDMConfig, NFDMModel


BAD = [
    ("diffusion-lm", {"prediction_type": "noise"}, ["`prediction_type`", "'noise'", "'embedding'", "'categorical'"]),
    ("diffusion-lm", {"decoder": "mlp"}, ["`decoder`", "'mlp'", "'linear'", "'gaussian'"]),
    ("diffusion-lm", {"objective": "simple"}, ["`objective`", "'simple'", "'bound'", "'rescaled'"]),
    ("diffusion-lm", {"time_sampler": "loss"}, ["`time_sampler`", "'loss'", "'uniform'", "'buckets'"]),
    ("nfdm", {"time_conditioning": "none"}, ["`time_conditioning`", "'none'", "'adaln'", "'additive'", "'head'"]),
    ("nfdm", {"objective": "rescaled"}, ["`objective`", "'rescaled'", "'bound'"]),
    ("diffusion-lm", {"predictor": "gpt"}, ["`predictor`", "'gpt'", "'bert'", "'two_stream'"]),
    (
        "diffusion-lm",
        {"clock": "sundial"},
        ["'sundial'", "'shared'", "'ramp:WIDTH'", "'random:WIDTH'", "'blocks:SIZE'"],
    ),
    ("diffusion-lm", {"clock": "ramp:-1"}, ["`width`", "-1", "at least 0"]),
    (
        "diffusion-lm",
        {"clock": {"name": "ramp", "width": 1, "offsets": [0, 1]}},
        ["`offsets`", "2 numbers", "5 tokens"],
    ),
    ("diffusion-lm", {"clock": "blocks:1"}, ["'blocks:1'", "`predictor` 'bert'", "'two_stream'"]),
    ("diffusion-lm", {"checkpoint_format": 1}, ["`checkpoint_format` is 1", "format 2", "Train the model again"]),
    ("diffusion-lm", {"checkpoint_format": 3}, ["`checkpoint_format` is 3", "up to 2", "Upgrade"]),
    ("nfdm", {"delta": 0.0}, ["`delta`", "0.0"]),
    ("nfdm", {"delta": -0.1}, ["`delta`", "-0.1"]),
    ("nfdm", {"delta": float("nan")}, ["`delta`", "nan"]),
    ("nfdm", {"delta": 1.0}, ["`delta`", "1.0", "below 1"]),
    ("nfdm", {"volatility_floor": 0.0}, ["`volatility_floor`", "0.0"]),
    ("nfdm", {"forward_hidden_size": 18, "forward_num_heads": 4}, ["`forward_hidden_size`", "18", "4"]),
    ("mulan", {"gamma_min": 3.0, "gamma_max": 3.0}, ["`gamma_min`", "3.0", "`gamma_max`"]),
    ("mulan", {"gamma_min": 5.0, "gamma_max": -5.0}, ["`gamma_min`", "5.0", "-5.0"]),
    ("mulan", {"context_hidden_size": 15, "context_num_heads": 2}, ["`context_hidden_size`", "15", "2"]),
    # 6 / 2 = 3: the heads divide, but their size is odd.
    ("diffusion-lm", {"hidden_size": 6, "num_attention_heads": 2}, ["`hidden_size`", "6", "2", "even"]),
    ("diffusion-lm", {"hidden_size": 16, "num_attention_heads": 3}, ["`hidden_size`", "16", "3"]),
    *(
        ("diffusion-lm", {field: 0}, [f"`{field}`", "0"])
        for field in (
            "vocab_size",
            "max_length",
            "embedding_dim",
            "hidden_size",
            "num_attention_heads",
            "num_time_buckets",
        )
    ),
]


@pytest.mark.parametrize("name, options, parts", BAD, ids=[str(options) for _, options, _ in BAD])
def test_a_bad_value_is_refused_by_name_and_value(name, options, parts):
    with pytest.raises(ValueError) as error:
        make_config(name, **options)
    for part in parts:
        assert part in str(error.value)


CLOCKS = ["shared", "ramp:2.5", "random:8", "blocks:1", {"name": "ramp", "width": 2, "offsets": [1, 0, 0.5, 0, 1]}]


@pytest.mark.parametrize("clock", CLOCKS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_config_survives_json(name, clock, tmp_path):
    config = make_config(
        name,
        prediction_type="categorical",
        embedding_sphere=True,
        pad_token_id=3,
        predictor="two_stream",
        clock=clock,
    )
    config.save_pretrained(tmp_path)
    loaded = type(config).from_pretrained(tmp_path)
    assert loaded.to_diff_dict() == config.to_diff_dict()
    assert loaded.to_dict() == config.to_dict()
    assert (loaded.vocab_size, loaded.prediction_type, loaded.pad_token_id) == (11, "categorical", 3)
    assert (loaded.predictor, loaded.clock) == ("two_stream", clock)


def millions(module):
    return sum(p.numel() for p in module.parameters()) / 1e6


@pytest.mark.parametrize(
    "model_class, config",
    [
        (NFDMModel, NFDMConfig()),
        (NFDMModel, NFDMConfig(time_conditioning="additive")),
        (NFDMModel, NFDMConfig(time_conditioning="head")),
        (MuLANModel, MuLANConfig()),
        (MuLANModel, MuLANConfig(rescaled_schedule=True, gamma_min=-4.6, gamma_max=13.8)),
        (DiffusionLMModel, DiffusionLMConfig()),
    ],
    ids=MODELS,
)
def test_default_sizes_are_those_of_the_paper(model_class, config):
    with torch.device("meta"):
        model = model_class(config)
    assert millions(model.predictor) + millions(model.embeddings) == pytest.approx(90, rel=0.05)
    if config.model_type == "nfdm":
        if config.time_conditioning == "adaln":
            assert millions(model.forward_process.network) == pytest.approx(10, rel=0.05)
        else:
            # Without the modulations the same trunk is smaller.
            assert 3.5 < millions(model.forward_process.network) < 10.5
    if model.context_encoder is not None:
        assert millions(model.context_encoder) == pytest.approx(10, rel=0.05)
