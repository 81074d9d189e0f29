"""Conditions and guidance in the pipelines, and known tokens that come back whatever the sampler."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import make_model, make_pipeline, make_tokenizer, seeded
from tiny_baseline import END, PAD, START, make_baseline
from tiny_masked import make_masked

from diffusers_text_nfdm import (
    AutoregressivePipeline,
    DraftVerifyScheduler,
    JumpScheduler,
    MarkovChainScheduler,
    MaskedDiffusionPipeline,
    RefinementScheduler,
    ReverseODEScheduler,
    ReverseSDEScheduler,
)
from diffusers_text_nfdm.networks.two_stream_predictor import Places
from diffusers_text_nfdm.pipelines.guidance import GuidedModel


LENGTH, CONDITION = 9, 3
TWO_STREAM = {
    "max_length": LENGTH,
    "predictor": "two_stream",
    "prediction_type": "categorical",
    "bos_token_id": START,
    "eos_token_id": END,
    "pad_token_id": PAD,
    "jumps": True,
}
CONDITIONAL = {**TWO_STREAM, "condition_length": CONDITION, "condition_dropout": 0.1}
SCHEDULERS = {
    "star": lambda: MarkovChainScheduler(),
    "tokens": lambda: MarkovChainScheduler(0.5, prediction="tokens"),
    "sde": lambda: ReverseSDEScheduler(),
    "ode": lambda: ReverseODEScheduler(),
    "verified": lambda: DraftVerifyScheduler(block_size=3),
    "jumps": lambda: JumpScheduler(jump_length=2),
    "refinement": lambda: RefinementScheduler(block_length=3),
}
STEPS = {"star": 12, "tokens": 12, "sde": 12, "ode": 12}


@pytest.fixture(scope="module")
def pipeline():
    return make_pipeline("nfdm", dtype=torch.float64, **CONDITIONAL)


def conditional_ids(n: int = 2) -> torch.Tensor:
    ids = torch.randint(4, 11, (n, LENGTH), generator=seeded(3))
    ids[:, 0] = START
    return ids


# --- guidance ---


def without_condition(ids: torch.Tensor) -> torch.Tensor:
    ids = ids.clone()
    ids[:, 1 : CONDITION + 1] = PAD
    return ids


@pytest.mark.parametrize("scale", [0.5, 1.7, 4.0])
def test_guided_logits_of_the_clean_stream(pipeline, scale):
    model, ids = pipeline.model, conditional_ids()
    guided = GuidedModel(model, scale)

    def logits(reader, ids):
        states, weight, bias = reader.next_token_factors(reader.read_clean(ids)[0])
        return states @ weight.T + bias

    expected = scale * logits(model, ids) + (1 - scale) * logits(model, without_condition(ids))
    torch.testing.assert_close(logits(guided, ids), expected)
    # In two pieces, of which the first ends inside the condition.
    first, kept = guided.read_clean(ids[:, :2])
    second, kept = guided.read_clean(ids[:, 2:], kept)
    torch.testing.assert_close(torch.cat([first, second], 1), guided.read_clean(ids)[0])
    assert len(kept) == LENGTH and len(kept.rows(torch.tensor([1])).own.inputs) == 1


@pytest.mark.parametrize("clock", ["shared", "ramp:2"])
def test_guided_predictions_are_mixtures_of_logits(pipeline, clock):
    model, ids, scale = pipeline.model, conditional_ids(), 1.7
    guided = GuidedModel(model, scale)
    clock = model.clock(clock)
    draws = model.draw(2, seeded(0))
    known = torch.zeros(2, LENGTH, dtype=torch.bool)
    known[:, 1 : CONDITION + 1] = True
    times, windows = model.token_times(clock, draws, known)
    logits = []
    for one in (ids, without_condition(ids)):
        z = model.forward_process.marginal(model.embed(ids), times.value, None).sample(draws.noise)
        z = torch.where(known[..., None], model.forward_process.initial_marginal(model.embed(one), None).mean, z)
        clean = None if windows is None else model.read_clean(one)[1]
        logits.append(model.denoise(z, times.value, None, clean, windows=windows, known=known).logits)
    z = torch.where(known[..., None], model.forward_process.initial_marginal(model.embed(ids), None).mean, z)
    clean = None if windows is None else guided.read_clean(ids)[1]
    mine = guided.denoise(z, times.value, None, clean, windows=windows, known=known).logits
    torch.testing.assert_close(mine, scale * logits[0] + (1 - scale) * logits[1])


def test_guided_jumps_and_drafts_are_mixtures_of_logits(pipeline):
    model, ids, scale = pipeline.model, conditional_ids(), 2.5
    guided = GuidedModel(model, scale)
    positions = torch.arange(5, 8)
    places, noise = Places(positions, torch.full_like(positions, 5)), torch.rand(2, 3, generator=seeded(0)).double()
    both = [model.read_clean(one[:, :5])[1] for one in (ids, without_condition(ids))]
    together = guided.read_clean(ids[:, :5])[1]
    for call in (lambda m, c: m.jump(noise, c, places), lambda m, c: m.predict_unseen(c, places)):
        own, weaker = (call(model, clean).logits for clean in both)
        torch.testing.assert_close(call(guided, together).logits, scale * own + (1 - scale) * weaker)


def test_jumps_follow_the_guided_clean_stream(pipeline):
    """Their texts are those of the guided clean stream with the same noise, one token at a time."""
    pipe, scale = pipeline, 2.5
    pipe.scheduler = JumpScheduler(jump_length=3)
    z = torch.randn(3, *pipe.model.latent_shape, generator=seeded(5), dtype=torch.float64)
    ids = without_condition(conditional_ids(3))
    ids[:, 1:3] = conditional_ids(3)[:, 1:3]
    known = (torch.arange(LENGTH) <= CONDITION).expand(3, -1)
    output = pipe(input_ids=ids, known=known, latents=z, guidance_scale=scale)
    guided, noise = GuidedModel(pipe.model, scale), torch.special.ndtr(z[..., 0])
    for row in range(3):
        text = ids[row : row + 1, : CONDITION + 1]
        while text.shape[1] < LENGTH and text[0, -1] != END:
            states, weight, bias = guided.next_token_factors(guided.read_clean(text)[0][:, -1])
            drawn = pipe.scheduler.draw_by_noise(
                states @ weight.T + bias, noise[row, text.shape[1]][None], pipe.model.token_order
            )
            text = torch.cat([text, drawn[None]], 1)
        assert output.sequences[row, : text.shape[1]].tolist() == text[0].tolist()


def test_embedding_prediction_is_guided_too():
    options = {"max_length": LENGTH, "condition_length": CONDITION, "condition_dropout": 0.1, "pad_token_id": PAD}
    model = make_model("diffusion-lm", **options)
    z, t = torch.randn(2, LENGTH, 4, dtype=torch.float64), torch.full((2, 1), 0.5, dtype=torch.float64)
    own = model.denoise(z, t).embeddings
    bare = torch.where(
        ((torch.arange(LENGTH) > 0) & (torch.arange(LENGTH) <= CONDITION))[:, None],
        model.forward_process.initial_marginal(model.embed(torch.tensor([[PAD]])), None).mean,
        z,
    )
    expected = 3 * own - 2 * model.denoise(bare, t).embeddings
    torch.testing.assert_close(GuidedModel(model, 3.0).denoise(z, t).embeddings, expected)


def test_another_model_can_guide(pipeline):
    """A model that guides itself changes nothing; the weaker one sees the condition."""
    pipe = pipeline
    for name, make in SCHEDULERS.items():
        pipe.scheduler = make()
        options = {"condition": ["red fox", "Tom"], "num_inference_steps": STEPS.get(name), "generator": seeded(0)}
        plain = pipe(**options)
        options["generator"] = seeded(0)
        guided = pipe(**options, guidance_scale=2.0, guidance_model=pipe.model)
        assert guided.texts == plain.texts, name
        assert torch.equal(guided.calls, 2 * plain.calls)


def test_a_model_in_training_guides_without_dropout(pipeline):
    options = {"input_ids": conditional_ids(), "known": (torch.arange(LENGTH) <= CONDITION).expand(2, -1)}
    weaker = make_model("nfdm", hidden_dropout_prob=0.5, **CONDITIONAL)
    pipeline.scheduler = JumpScheduler(jump_length=2)
    runs = []
    for training in (False, True):
        weaker.train(training)
        runs.append(pipeline(**options, guidance_scale=3.0, guidance_model=weaker, generator=seeded(0)))
        assert weaker.training == training
    assert torch.equal(runs[0].sequences, runs[1].sequences)


# --- conditions in the pipelines ---


@pytest.mark.parametrize("scale", [1.0, 2.0])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_conditions_stay_and_texts_are_without_them(pipeline, name, scale):
    pipe, tokenizer = pipeline, make_tokenizer()
    pipe.scheduler = SCHEDULERS[name]()
    options = {"num_inference_steps": STEPS.get(name), "guidance_scale": scale}
    conditions = ["red fox", "Tom", None]
    together = pipe(condition=conditions, generator=[seeded(i) for i in range(3)], **options)
    for i, (row, text) in enumerate(zip(together.sequences.tolist(), together.texts)):
        words = (conditions[i] or "").split()
        assert tokenizer.convert_ids_to_tokens(row[: CONDITION + 1]) == [
            "<START>", *words, *["<PAD>"] * (CONDITION - len(words))
        ]  # fmt: skip
        assert len(text.split()) <= LENGTH - CONDITION - 1
    for i in range(3):
        alone = pipe(condition=conditions[i], generator=[seeded(i)], **options)
        assert alone.texts == together.texts[i : i + 1]


def test_a_condition_and_a_beginning(pipeline):
    pipe = pipeline
    pipe.scheduler = RefinementScheduler()
    output = pipe("Tom saw", condition="red fox", num_samples=2, generator=seeded(0))
    assert all(text.startswith("Tom saw") for text in output.texts)
    filled = pipe("Tom [MASK] a [MASK]", condition="fox", generator=seeded(0)).sequences[0, CONDITION + 1 :]
    assert make_tokenizer().convert_ids_to_tokens(filled[[0, 2, 4]]) == ["Tom", "a", "<END>"]
    assert pipe(num_samples=2, generator=seeded(0)).sequences[:, 1 : CONDITION + 1].eq(PAD).all()


def test_the_baselines_take_conditions_and_beginnings():
    options = {"vocab_size": 11, "max_length": 8, "condition_length": CONDITION, "condition_dropout": 0.1}
    tokenizer = make_tokenizer()
    masked = MaskedDiffusionPipeline(make_masked(**options), tokenizer)
    autoregressive = AutoregressivePipeline(make_baseline(**options), tokenizer)
    for pipe in (masked, autoregressive):
        pipe.set_progress_bar_config(disable=True)
        output = pipe(condition=["red fox", "Tom"], generator=[seeded(0), seeded(1)])
        alone = pipe(condition="Tom", generator=[seeded(1)])
        assert output.texts[1:] == alone.texts
        assert tokenizer.convert_ids_to_tokens(output.sequences[0, 1:4]) == ["red", "fox", "<PAD>"]
        assert pipe(prompt="Tom saw", condition="fox", generator=seeded(0)).texts[0].startswith("Tom saw")
    filled = masked(prompt="Tom [MASK] .", condition="fox", generator=seeded(0))
    assert filled.texts[0].startswith("Tom") and filled.texts[0].endswith(".")
    with pytest.raises(ValueError, match="An autoregressive model continues a beginning"):
        autoregressive(prompt="Tom [MASK] .", condition="fox")


def test_the_autoregressive_model_reads_beginnings_of_any_length_at_once():
    """Given its own text up to any token, it goes on as it did."""
    pipe = AutoregressivePipeline(make_baseline(vocab_size=11, max_length=8), make_tokenizer())
    pipe.set_progress_bar_config(disable=True)
    whole = pipe(num_samples=3, generator=[seeded(i) for i in range(3)])
    numbers = torch.tensor([1, 3, 5])
    known = torch.arange(8) < numbers[:, None]
    again = pipe(input_ids=whole.sequences, known=known, generator=[seeded(i) for i in range(3)])
    assert torch.equal(again.sequences, whole.sequences)
    assert (again.calls <= whole.calls).all() and again.calls[2] < whole.calls[2]


def test_copied_slots_are_filled_with_the_values_of_the_record():
    pipe = make_pipeline("nfdm", RefinementScheduler(), **{**CONDITIONAL, "copied_slots": ["name"]})
    pipe.tokenizer = type(pipe.tokenizer).from_texts(
        ["nameValue name [ ] saw a red fox"], min_count=0, max_length=LENGTH
    )
    pipe.model.config.condition_length = 4
    with torch.no_grad():
        pipe.model.predictor.output.bias[pipe.tokenizer.convert_tokens_to_ids("nameValue")] += 50
    output = pipe(condition="name[Blue Spice]", generator=seeded(0))
    assert output.texts[0].startswith("Blue Spice") and "nameValue" not in output.texts[0]


RECORD_WORDS = "nameValue foodValue name food [ ] Aromi"
RECORDS = ["name[Aromi]", "food[Indian]", "name[Aromi] food[Indian]", None]


def record_pipeline(kind: str):
    """A pipeline that prefers the placeholder of `food` by far, with any of the samplers or a baseline."""
    options = {"max_length": 14, "condition_length": 8, "condition_dropout": 0.1, "copied_slots": ["name", "food"]}
    tokenizer = type(make_tokenizer()).from_texts([RECORD_WORDS], min_count=0, max_length=14)
    if kind == "autoregressive":
        pipe = AutoregressivePipeline(make_baseline(vocab_size=11, **options), tokenizer)
    elif kind == "masked":
        pipe = MaskedDiffusionPipeline(make_masked(vocab_size=11, block_size=14, **options), tokenizer)
    else:
        pipe = make_pipeline("nfdm", SCHEDULERS[kind](), **{**TWO_STREAM, **options})
        pipe.tokenizer = tokenizer
    pipe.model.token_bias.data[tokenizer.convert_tokens_to_ids("foodValue")] += 1e8
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *[(kind, {}) for kind in (*SCHEDULERS, "autoregressive", "masked")],
        *[(kind, {"guidance_scale": 2.0}) for kind in SCHEDULERS],
        *[(kind, {"clamp_predictions": True}) for kind in ("star", "sde", "ode")],
        *[(kind, {"prompt": "Aromi [GAP] Aromi", "max_gap_length": 3}) for kind in (*SCHEDULERS, "masked")],
    ],
)
@pytest.mark.filterwarnings("ignore:Not in the vocabulary")
def test_a_placeholder_is_not_drawn_where_the_record_lacks_its_slot(kind, options):
    pipe = record_pipeline(kind)
    if kind in STEPS:
        options = {**options, "num_inference_steps": STEPS[kind]}
    output = pipe(condition=RECORDS * 3, generator=seeded(0), **options)
    name, food = pipe.tokenizer.convert_tokens_to_ids(["nameValue", "foodValue"])
    texts = output.sequences[:, 9:].view(3, len(RECORDS), -1)
    assert not (texts[:, 0] == food).any() and not (texts[:, 1] == name).any()
    # The others may have it, and do.
    assert all((texts[:, row] == food).any() for row in (1, 2, 3))
    assert not any("Value" in text for row, text in enumerate(output.texts) if RECORDS[row % 4])


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_nor_is_it_shown_on_the_way(scheduler):
    pipe = record_pipeline(scheduler)
    output = pipe(condition=RECORDS[0], num_inference_steps=12, return_trajectory=True, generator=seeded(0))
    assert not (output.trajectory[..., 9:] == pipe.tokenizer.convert_tokens_to_ids("foodValue")).any()


def test_what_is_left_out_of_a_prediction_leaves_the_other_tokens_their_proportions(pipeline):
    clean = pipeline.model.read_clean(conditional_ids())[1]
    whole = pipeline.model.predict_unseen(clean, Places.whole(LENGTH, "cpu"))
    excluded = torch.zeros(2, 11, dtype=torch.bool)
    excluded[0, 4] = True
    p, q = (torch.softmax(one.logits, -1) for one in (whole, whole.without(excluded)))
    assert torch.equal(q[1], p[1]) and not q[0, :, 4].any()
    torch.testing.assert_close(q[0], p[0].index_fill(-1, torch.tensor(4), 0) / (1 - p[0, :, 4:5]))


# --- known tokens ---


@settings(max_examples=30, deadline=None)
@given(
    known=st.lists(st.booleans(), min_size=LENGTH - 1, max_size=LENGTH - 1).filter(lambda x: not all(x)),
    scheduler=st.sampled_from(list(SCHEDULERS)),
    clock=st.sampled_from(["shared", "ramp:2", "ramp:50", "random:3", "blocks:3", "blocks:9", "blocks:3:random:9"]),
    seed=st.integers(0, 2**30),
)
def test_known_tokens_come_back_whatever_the_mask_the_clock_and_the_scheduler(known, scheduler, clock, seed):
    pipe = make_pipeline("nfdm", SCHEDULERS[scheduler](), **{**TWO_STREAM, "self_conditioning": seed % 2 == 0})
    ids = torch.randint(0, 11, (2, LENGTH), generator=seeded(seed))
    ids[:, 0] = START
    mask = torch.tensor([[True, *known], [True, *([False] * (LENGTH - 1))]])
    moves = scheduler in STEPS
    options = {"num_inference_steps": 12, "clock": clock} if moves else {}
    output = pipe(input_ids=ids, known=mask, generator=[seeded(seed), seeded(seed + 1)], **options)
    assert torch.equal(output.sequences[mask], ids[mask])
    for i in range(2):
        alone = pipe(input_ids=ids[i : i + 1], known=mask[i : i + 1], generator=[seeded(seed + i)], **options)
        assert torch.equal(alone.sequences, output.sequences[i : i + 1])
        assert torch.equal(alone.calls, output.calls[i : i + 1])


# --- bad input ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"condition": "Tom saw a red fox"}, "has 5 tokens; the model's `condition_length` is 3"),
        ({"condition": ["Tom", "a"], "num_samples": 3}, "There are 2 of `condition` for 3 texts"),
        ({"condition": ["Tom", "a"], "prompt": ["a"]}, "There are 2 of `condition` for 1 texts"),
        ({"condition": []}, r"`condition` is \[\]; it must be a text or a list of texts"),
        ({"condition": "Tom", "guidance_scale": 0}, "`guidance_scale` is 0; it must be a number above 0"),
        ({"condition": "Tom", "guidance_scale": float("nan")}, "`guidance_scale` is nan"),
        ({"condition": "Tom", "input_ids": torch.zeros(1, LENGTH)}, "`prompt` and `condition` say what is known"),
        ({"prompt": "Tom saw a red fox"}, "takes 6 tokens with START and leaves none to write; the model has 6"),
    ],
)
def test_bad_conditions_are_refused_in_a_sentence(pipeline, options, message):
    pipeline.scheduler = RefinementScheduler()
    with pytest.raises(ValueError, match=message):
        pipeline(**options)


def test_what_a_model_was_not_trained_for_is_refused():
    plain = make_pipeline("nfdm", RefinementScheduler(), **TWO_STREAM)
    with pytest.raises(ValueError, match="this model was trained without conditions"):
        plain(condition="Tom")
    with pytest.raises(ValueError, match="never trained without a condition"):
        plain(guidance_scale=2.0)
    with pytest.raises(ValueError, match="`guidance_model` has no effect"):
        plain(guidance_model=plain.model)
    other = make_model("nfdm", **{**TWO_STREAM, "vocab_size": 12})
    with pytest.raises(ValueError, match="`guidance_model` has 12 tokens, and the model 11"):
        plain(guidance_model=other, guidance_scale=2.0)
    for name, value in (("hidden_size", 24), ("max_length", 7), ("self_conditioning", True)):
        other = make_model("nfdm", **{**TWO_STREAM, name: value})
        with pytest.raises(ValueError, match=f"`guidance_model` has `{name}` {value}, and the model"):
            plain(guidance_model=other, guidance_scale=2.0)
    other = make_model("nfdm", torch.float32, **{**TWO_STREAM, "jumps": False})
    assert plain(guidance_model=other, guidance_scale=2.0, generator=seeded(0)).texts
    plain.scheduler = JumpScheduler()
    with pytest.raises(ValueError, match="`guidance_model` has `jumps` False .* under JumpScheduler it must be"):
        plain(guidance_model=other, guidance_scale=2.0)
    always = make_pipeline("nfdm", RefinementScheduler(), **{**CONDITIONAL, "condition_dropout": 0.0})
    with pytest.raises(ValueError, match="always trained with a condition"):
        always()
    with pytest.warns(UserWarning, match="unknown words: 'zebra'"):
        always(condition="zebra", generator=seeded(0))
