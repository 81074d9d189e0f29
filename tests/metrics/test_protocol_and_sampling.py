"""Names of protocols and of ways of sampling."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffusers_text_nfdm import MarkovChainScheduler, ReverseODEScheduler, ReverseSDEScheduler
from diffusers_text_nfdm.metrics import PROTOCOLS, Protocol, Sampling, get_protocol


def test_the_default_is_the_one_of_ld4lg():
    protocol = get_protocol("ld4lg")
    assert (protocol.num_samples, len(protocol.seeds), protocol.memorization_texts) == (1000, 5, None)
    assert protocol.judge == "gpt2-large" and protocol.assumptions == ""
    assert set(PROTOCOLS) == {"ld4lg", "paper"}


def test_the_paper_s_protocol_names_what_its_text_leaves_open():
    protocol = get_protocol("paper")
    assert (protocol.num_samples, len(protocol.seeds), protocol.judge) == (1000, 5, "gpt2-large")
    assert protocol.reference_splits == ("test",) and protocol.detokenisation == "round_trip"
    for part in ("samples", "repeats", "errors", "references of MAUVE", "training texts of memorization"):
        assert part in protocol.assumptions.split("leaves open")[1]


def test_another_size_is_another_name():
    protocol = get_protocol("ld4lg")
    small = protocol.resized(200, 2)
    assert (small.name, small.num_samples, small.seeds, small.likelihood_texts) == ("ld4lg-200x2", 200, (0, 1), 200)
    assert (
        protocol.resized(num_samples=200).name == "ld4lg-200x5"
        and protocol.resized(num_repeats=1).name == "ld4lg-1000x1"
    )
    assert protocol.resized(1000, 5) is protocol.resized() is protocol


def test_another_setting_is_another_name():
    protocol = get_protocol("ld4lg").resized(200, 2)
    changed = protocol.changed(judge="models/Qwen", likelihood_texts=200, detokenisation="round_trip")
    assert changed.name == "ld4lg-200x2-judge=qwen-detokenisation=round_trip"
    assert (changed.judge, changed.detokenisation) == ("models/Qwen", "round_trip")
    assert protocol.changed(judge=None).name == "ld4lg-200x2-judge=none"
    assert protocol.changed(likelihood_texts=200) is protocol


def test_a_protocol_survives_json():
    values = get_protocol("paper").to_dict()
    assert json.loads(json.dumps(values)) == values and values["mauve"]["scaling_factor"] == 5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_samples": 1}, "`num_samples` is 1"),
        ({"seeds": ()}, "`seeds` is"),
        ({"seeds": (1, 1)}, "none twice"),
        ({"memorization_texts": 0}, "`memorization_texts` is 0"),
        ({"detokenisation": "moses"}, "`detokenisation` is 'moses'"),
        ({"likelihood_draws": 3}, "`likelihood_draws` is 3"),
    ],
)
def test_a_protocol_that_cannot_be_followed(options, said):
    with pytest.raises(ValueError, match=said):
        Protocol("mine", **options)
    with pytest.raises(ValueError, match="`protocol` is 'mine'"):
        get_protocol("mine")


def test_samplings_by_name():
    star = Sampling.parse("star:64")
    assert isinstance(star.build(), MarkovChainScheduler) and star.build().config.noise_fraction == 1.0
    assert star.num_inference_steps == 64 and star.name == "star:64"
    assert Sampling.parse("chain:8:noise_fraction=0.5").build().config.noise_fraction == 0.5
    assert Sampling.parse("chain:8:noise_fraction=snr").build().config.noise_fraction == "snr"
    sde = Sampling.parse("sde:256:volatility_scale=0.5:time_grid=learned").build()
    assert (
        isinstance(sde, ReverseSDEScheduler)
        and sde.config.volatility_scale == 0.5
        and sde.config.time_grid == "learned"
    )
    ode = Sampling.parse("ode:32:method=heun").build()
    assert isinstance(ode, ReverseODEScheduler) and ode.config.method == "heun"
    assert Sampling.parse("ancestral:top_p=0.9:top_k=5").prepare(None) == {"top_p": 0.9, "top_k": 5}
    assert Sampling.parse("ancestral:min_p=0.02").config == {"min_p": 0.02}
    assert Sampling.parse("ancestral:min_p=0.02").prepare(None) == {"min_p": 0.02}
    assert Sampling.parse("ancestral").to_dict() == {
        "name": "ancestral", "scheduler": None, "config": {}, "num_inference_steps": None, "clock": None,
    }  # fmt: skip


def test_masked_diffusion_has_the_options_of_its_pipeline():
    sampling = Sampling.parse("masked:64:remasking=confidence:block_size=8:min_p=0.02")
    assert (sampling.kind, sampling.num_inference_steps, sampling.clock) == ("masked", 64, "blocks:8")
    options = {"num_inference_steps": 64, "remasking": "confidence", "block_size": 8, "min_p": 0.02}
    assert sampling.prepare(None) == options and Sampling.parse("masked:8").clock is None
    assert [Sampling.parse(name).kind for name in ("star:8", "ancestral")] == ["diffusion", "ancestral"]


@pytest.mark.parametrize("clock", ["shared", "ramp:2", "blocks:8", "blocks:8:random:2"])
def test_a_clock_keeps_its_colons(clock):
    sampling = Sampling.parse(f"star:64:prediction=tokens:clock={clock}:min_p=0.02")
    assert sampling.clock == clock and sampling.build().config.min_p == 0.02
    assert Sampling.parse(f"star:64:prediction=tokens:min_p=0.02:clock={clock}").clock == clock
    assert Sampling.parse("star:64").clock is None


def test_a_confidence_threshold_is_one_of_the_call():
    sampling = Sampling.parse("star:64:clock=ramp:8:confidence_threshold=0.9:time_grid=learned")
    assert (sampling.clock, dict(sampling.config)) == ("ramp:8", {"time_grid": "learned", "noise_fraction": 1.0})
    pipeline = SimpleNamespace()
    options = {"num_inference_steps": 64, "clock": "ramp:8", "confidence_threshold": 0.9}
    assert sampling.prepare(pipeline) == options and sampling.to_dict()["confidence_threshold"] == 0.9
    assert "confidence_threshold" not in Sampling.parse("star:64").prepare(pipeline)


@given(st.floats(0, 1), st.integers(1, 5000))
def test_any_number_survives_its_name(fraction, steps):
    sampling = Sampling.parse(f"chain:{steps}:noise_fraction={fraction}")
    assert sampling.num_inference_steps == steps and sampling.build().config.noise_fraction == fraction


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("star", "of the form method:steps"),
        ("moon:64", "of the form method:steps"),
        ("star:many", "of the form method:steps"),
        ("star:0", "`num_inference_steps` is 0"),
        ("chain:64", "needs its noise_fraction"),
        ("star:64:noise_fraction=0.5", "write chain"),
        ("chain:64:noise_fraction=2", "`noise_fraction` is 2"),
        ("ode:32:method=rk4", "`method` is 'rk4'"),
        ("ode:32:heun", "not of the form option=value"),
        ("sde:32:method=heun", "ReverseSDEScheduler has volatility_scale"),
        ("ancestral:64", "which is not of the form option=value"),
        ("ancestral:block_size=8", "ancestral has temperature, top_k, top_p, min_p"),
        ("ancestral:clock=ramp:8", "an autoregressive model has none"),
        ("star:64:min_p=0.02", "has `min_p`, but its chain follows a mean"),
        ("star:64:prediction=tokens:min_p=0.02:contrast=0.5", "MarkovChainScheduler has noise_fraction"),
        ("masked", "of the form method:steps"),
        ("masked:0", "`num_inference_steps` is 0"),
        ("masked:8:noise_fraction=1", "masked has remasking, block_size"),
        ("masked:8:clock=ramp:2", "masked diffusion has a block_size instead"),
    ],
)
def test_samplings_that_do_not_exist(name, said):
    with pytest.raises(ValueError, match=said):
        Sampling.parse(name)
    with pytest.raises(ValueError, match="it must be one of MarkovChainScheduler"):
        Sampling("mine", "DDIMScheduler", {}, 8)
