"""The models: what the outputs do not depend on, gradients, saving and loading, and bad input."""

from dataclasses import fields

import pytest
import torch
from tiny import (
    LENGTH,
    MODELS,
    PREDICTION_TYPES,
    VOCAB,
    at_rate_one,
    make_config,
    make_ids,
    make_model,
    make_tokenizer,
    randomize,
    seeded,
)
from tiny_baseline import make_baseline
from tiny_masked import make_masked

from diffusers_text_nfdm.models import TextDiffusionOutput
from diffusers_text_nfdm.models.configuration import PREDICTORS


PER_EXAMPLE = (
    "bound",
    "diffusion",
    "reconstruction",
    "prior",
    "context",
    "rescaled_diffusion",
    "t",
    "reconstruction_accuracy",
)


@pytest.fixture(params=[(name, kind) for name in MODELS for kind in PREDICTION_TYPES], ids="-".join)
def model(request):
    name, prediction_type = request.param
    return make_model(name, prediction_type=prediction_type)


def make_like(model, **options):
    """The same model with another config."""
    other = type(model)(type(model.config)(**{**model.config.to_dict(), **options})).to(model.dtype).eval()
    other.load_state_dict(model.state_dict())
    return other


# --- invariance ---


def test_terms_of_an_example_do_not_depend_on_its_batch(model):
    ids, draws = make_ids(4), model.draw(4, seeded(1))
    together = model(ids, draws=draws)
    for i in range(4):
        alone = model(ids[i : i + 1], draws=draws.slice(i, i + 1))
        for term in PER_EXAMPLE:
            torch.testing.assert_close(alone[term], together[term][i : i + 1], rtol=1e-10, atol=1e-12, msg=term)


def test_prediction_of_an_example_does_not_depend_on_the_others(model):
    z, t = torch.randn(3, *model.latent_shape, dtype=torch.float64), torch.rand(3, LENGTH, dtype=torch.float64)
    context = None if model.context_dim is None else torch.randn(3, model.context_dim, dtype=torch.float64)
    before = model.denoise(z, t, context).embeddings
    z[1:], t[1:] = torch.randn_like(z[1:]), torch.rand_like(t[1:])
    if context is not None:
        context[1:] = torch.randn_like(context[1:])
    after = model.denoise(z, t, context).embeddings
    torch.testing.assert_close(after[0], before[0], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(after[1:], before[1:])


def test_every_position_counts_padding_included(model):
    ids, draws = make_ids(2), model.draw(2, seeded(1))
    changed = ids.clone()
    changed[:, -1] = (ids[:, -1] + 1) % VOCAB
    assert (model(ids, draws=draws).reconstruction != model(changed, draws=draws).reconstruction).all()


def test_the_same_generator_seed_gives_the_same_output_and_another_seed_another(model):
    ids = make_ids(3)
    first, second, third = (model(ids, generator=seeded(seed)) for seed in (5, 5, 6))
    for term in PER_EXAMPLE:
        assert torch.equal(first[term], second[term]), term
    assert not torch.equal(first.bound, third.bound)
    assert torch.equal(first.bound, model(ids, draws=model.draw(3, seeded(5))).bound)


def test_draws_slice_into_the_parts_they_were_made_of(model):
    draws = model.draw(5, seeded(0))
    parts = [draws.slice(0, 2), draws.slice(2, 5)]
    names = {field.name for field in fields(draws)}
    missing = {name for name in names if getattr(draws, name) is None}
    assert missing == {"self_conditioned"} | ({"context_noise"} if model.context_dim is None else set())
    for name in names - missing:
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(draws, name)), name


def test_a_given_time_replaces_the_drawn_one_with_weight_one(model):
    ids, draws = make_ids(3), model.draw(3, seeded(1))
    drawn = model(ids, draws=draws)
    given = model(ids, t=drawn.t, draws=draws)
    weight = model.time_sampler(at_rate_one(draws.uniforms)).rate[:, 0]
    assert torch.equal(given.t, drawn.t) and not torch.equal(weight, torch.ones_like(weight))
    # A term that vanishes is a difference of drifts, which have the weight in them.
    torch.testing.assert_close(given.diffusion * weight, drawn.diffusion, rtol=1e-12, atol=1e-16)


def test_one_time_per_text_is_the_same_time_for_each_of_its_tokens(model):
    ids, draws, t = make_ids(3), model.draw(3, seeded(1)), torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)
    of_texts, of_tokens = model(ids, t=t, draws=draws), model(ids, t=t[:, None].expand(3, LENGTH), draws=draws)
    assert of_texts.t.shape == (3, 1) and of_tokens.t.shape == (3, LENGTH)
    for term in ("bound", "diffusion", "rescaled_diffusion"):
        torch.testing.assert_close(of_tokens[term], of_texts[term], rtol=1e-11, atol=0, msg=term)


def test_a_clock_of_forward_is_that_of_a_config(model):
    ids, draws = make_ids(3), model.draw(3, seeded(1))
    other = make_like(model, clock="random:2")
    given = model(ids, clock="random:2", draws=draws)
    assert torch.equal(given.bound, other(ids, draws=draws).bound)
    assert torch.equal(other(ids, clock="shared", draws=draws).bound, model(ids, draws=draws).bound)
    assert given.t.shape == (3, LENGTH) and not torch.equal(given.bound, model(ids, draws=draws).bound)


def test_return_dict_false_gives_the_same_values_as_a_tuple(model):
    ids, draws = make_ids(2), model.draw(2, seeded(1))
    for a, b in zip(model(ids, draws=draws, return_dict=False), model(ids, draws=draws).to_tuple(), strict=True):
        assert torch.equal(a, b)


# --- gradients ---


def loss_gradients(model, ids, draws):
    model.zero_grad()
    torch.manual_seed(0)  # dropout
    model(ids, draws=draws).loss.backward()
    return {name: p.grad for name, p in model.named_parameters()}


def test_every_parameter_receives_a_gradient(model):
    # DistributedDataParallel waits for every parameter.
    for name, gradient in loss_gradients(model, make_ids(4), model.draw(4, seeded(0))).items():
        assert gradient is not None and gradient.isfinite().all(), name
        # Attention does not see a shift of all keys.
        assert "key.bias" in name or gradient.abs().max() > 0, name


def test_every_parameter_receives_a_gradient_from_the_first_step(model):
    fresh = type(model)(model.config)
    for name, gradient in loss_gradients(fresh, make_ids(4), fresh.draw(4, seeded(0))).items():
        assert gradient is not None, name


@pytest.mark.parametrize("name", MODELS)
def test_gradient_checkpointing_recomputes_the_layers_and_changes_no_gradient(name):
    dropout = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}
    model = make_model(name, **dropout).train()
    ids, draws, calls = make_ids(2), model.draw(2, seeded(0)), []
    model.predictor.encoder.layer[0].attention.register_forward_hook(lambda *_: calls.append(None))
    plain = loss_gradients(model, ids, draws)
    assert len(calls) == 1
    model.gradient_checkpointing_enable()
    checkpointed = loss_gradients(model, ids, draws)
    assert len(calls) == 3
    for key in plain:
        torch.testing.assert_close(checkpointed[key], plain[key], rtol=1e-12, atol=1e-12, msg=key)


def test_eager_and_fused_attention_agree(model):
    ids, draws = make_ids(3), model.draw(3, seeded(0))
    outputs, used = {}, []
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        used.append(model.predictor.encoder.layer[0].attention.self.config._attn_implementation)
        outputs[implementation] = model(ids, draws=draws).bound
    assert used == ["eager", "sdpa"]
    torch.testing.assert_close(outputs["eager"], outputs["sdpa"], rtol=1e-10, atol=0)


# --- initialisation ---


@pytest.mark.parametrize("predictor", PREDICTORS)
@pytest.mark.parametrize("kind", PREDICTION_TYPES)
@pytest.mark.parametrize("name", MODELS)
def test_a_new_model_starts_where_the_docstrings_say(name, kind, predictor):
    config = make_config(name, prediction_type=kind, predictor=predictor, vocab_size=2000)
    torch.manual_seed(0)
    model = MODELS[name][0](config)
    assert model.embeddings.weight.std().item() == pytest.approx(1, abs=0.05)
    assert model.embeddings.weight.mean().item() == pytest.approx(0, abs=0.05)
    assert not model.token_bias.any() and not model.time_sampler.log_terms.any()
    zeros = {
        n: p for n, p in model.named_parameters() if "modulation.linear" in n or "film.linear" in n or "gate" in n
    }
    assert not any(p.any() for p in zeros.values())
    assert bool(zeros) == (name in ("nfdm", "nfdm-head") or kind == "categorical")
    output = model.predictor.output if kind == "categorical" else model.predictor.output[2]
    assert output.weight.std().item() == pytest.approx(config.initializer_range, rel=0.3)
    if predictor == "two_stream":
        assert not any(layer.attention_output.weight.any() for layer in model.predictor.layers)
        assert not any(layer.mlp_output.weight.any() for layer in model.predictor.layers)
        if kind == "categorical":
            assert model.predictor.token_rows.weight.std().item() == pytest.approx(1, rel=0.05)


def test_embeddings_on_the_sphere_have_length_sqrt_dim():
    model = make_model("nfdm", embedding_sphere=True)
    norms = model.embed(make_ids(3)).norm(dim=-1)
    torch.testing.assert_close(norms, torch.full_like(norms, model.config.embedding_dim**0.5))


# --- bad input ---


def bad_ids(value):
    ids = make_ids(2)
    ids[1, 2] = value
    return ids


BAD_INPUTS = {
    "id above": (lambda: {"input_ids": bad_ids(VOCAB)}, ["`input_ids`", f"to {VOCAB};", f"[0, {VOCAB - 1}]"]),
    "id below": (lambda: {"input_ids": bad_ids(-100)}, ["`input_ids`", "-100"]),
    "too short": (
        lambda: {"input_ids": make_ids(2)[:, 1:]},
        ["`input_ids`", f"(2, {LENGTH - 1})", f"(batch, {LENGTH})"],
    ),
    "no batch": (lambda: {"input_ids": make_ids(2)[0]}, ["`input_ids`", f"({LENGTH},)"]),
    "t above": (lambda: {"input_ids": make_ids(2), "t": torch.tensor([0.5, 1.25])}, ["`t`", "1.25", "[0, 1]"]),
    "t below": (lambda: {"input_ids": make_ids(2), "t": torch.tensor([-0.5, 1.0])}, ["`t`", "-0.5", "[0, 1]"]),
    "t nan": (lambda: {"input_ids": make_ids(2), "t": torch.tensor([0.5, torch.nan])}, ["`t`", "nan"]),
    "t scalar": (lambda: {"input_ids": make_ids(2), "t": torch.tensor(0.5)}, ["`t`", "()", "(2,)"]),
    "t of some tokens": (
        lambda: {"input_ids": make_ids(2), "t": torch.rand(2, LENGTH - 1)},
        ["`t`", f"(2, {LENGTH - 1})", f"(2, {LENGTH})"],
    ),
    "known as numbers": (
        lambda: {"input_ids": make_ids(2), "known": torch.zeros(2, LENGTH)},
        ["`known`", "float32", "booleans", f"(2, {LENGTH})"],
    ),
    "known of one text": (
        lambda: {"input_ids": make_ids(2), "known": torch.zeros(LENGTH, dtype=torch.bool)},
        ["`known`", f"({LENGTH},)", f"(2, {LENGTH})"],
    ),
    "known to the end": (
        lambda: {"input_ids": make_ids(2), "known": torch.arange(2)[:, None].expand(2, LENGTH) > 0},
        ["`known`", "text 1", "nothing is left"],
    ),
    "a clock that there is not": (lambda: {"input_ids": make_ids(2), "clock": "sundial"}, ["'sundial'", "'shared'"]),
    "blocks for BERT": (
        lambda: {"input_ids": make_ids(2), "clock": "blocks:1"},
        ["'blocks:1'", "'bert'", "'two_stream'"],
    ),
    "a next token from BERT": (
        lambda: {"input_ids": make_ids(2), "next_token_weight": 0.5},
        ["`next_token_weight` is 0.5", "'two_stream'", "'categorical'"],
    ),
    "t of another batch": (lambda: {"input_ids": make_ids(2), "t": torch.rand(3)}, ["`t`", "(3,)", "(2,)"]),
}


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_bad_input_is_refused_by_name_and_value(case):
    make_arguments, parts = BAD_INPUTS[case]
    with pytest.raises(ValueError) as error:
        make_model("diffusion-lm")(**make_arguments())
    for part in parts:
        assert part in str(error.value)


@pytest.mark.parametrize("term", ["diffusion", "reconstruction", "prior", "context"])
def test_non_finite_terms_names_the_term_and_the_time(term):
    values = {name: torch.zeros(3) for name in ("diffusion", "reconstruction", "prior", "context")}
    output = TextDiffusionOutput(**values, t=torch.tensor([0.25, 0.5, 0.75]))
    assert output.non_finite_terms() is None
    output[term][1] = torch.inf
    assert output.non_finite_terms() == f"{term} is inf at t = 0.5"


def test_non_finite_terms_of_a_broken_model_are_found():
    model = make_model("nfdm", torch.float32)
    with torch.no_grad():
        model.predictor.output[2].bias.fill_(torch.nan)
    output = model(make_ids(2), t=torch.tensor([0.125, 0.5]))
    assert output.non_finite_terms() == "diffusion is nan at t = 0.125, 0.5"


def test_embedding_monitors_are_the_norm_and_the_distance_to_the_nearest_other_token():
    model, ids = make_model("diffusion-lm"), make_ids(3)
    output = model(ids)
    table = model.embedding_table()
    nearest = [min((table[i] - table[j]).norm() for j in range(VOCAB) if j != i) for i in ids.flatten().tolist()]
    assert output.nearest_neighbor_distance.item() == pytest.approx(torch.stack(nearest).mean().item(), rel=1e-6)
    assert output.embedding_norm.item() == pytest.approx(table[ids].norm(dim=-1).mean().item())


def test_randomize_leaves_no_parameter_at_zero():
    model = randomize(MODELS["nfdm"][0](make_config("nfdm")))
    assert all((p != 0).all() for p in model.parameters())


@pytest.mark.parametrize("padding", [True, "max_length"])
@torch.no_grad()
def test_what_a_tokenizer_returns_can_be_passed_as_it_is(padding):
    tokenizer = make_tokenizer()
    texts = ["Tom ran", "a fox"]
    encoded = tokenizer(texts, padding=padding, return_tensors="pt")
    assert "attention_mask" in encoded
    whole = tokenizer(texts, padding="max_length", return_tensors="pt").input_ids
    assert (encoded.input_ids.shape[1] < LENGTH) == (padding is True)
    models = (
        make_model("nfdm", pad_token_id=tokenizer.pad_token_id),
        make_masked(vocab_size=VOCAB, max_length=LENGTH),
        make_baseline(vocab_size=VOCAB, max_length=LENGTH),
    )
    for model in models:
        options = {"draws": model.draw(2, seeded(0))} if hasattr(model, "draw") else {}
        torch.testing.assert_close(model(**encoded, **options).loss, model(whole, **options).loss)
