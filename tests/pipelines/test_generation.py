"""The pipeline: every model with every scheduler, and what a sample may depend on."""

import contextlib
import io

import pytest
import torch
from tiny import DIM, LENGTH, MODELS, VOCAB, make_pipeline, make_tokenizer, seeded

from diffusers_text_nfdm import MarkovChainScheduler, RefinementScheduler, ReverseODEScheduler, ReverseSDEScheduler
from diffusers_text_nfdm.pipelines import NFDMTextPipelineOutput
from diffusers_text_nfdm.tokenization import END, PAD, START, UNK


# The random networks are rough in t: a loose tolerance keeps the adaptive method quick.
SCHEDULERS = {
    "star": lambda: MarkovChainScheduler(),
    "chain": lambda: MarkovChainScheduler(noise_fraction=0.5),
    "deterministic": lambda: MarkovChainScheduler(noise_fraction=0.0),
    "ancestral": lambda: MarkovChainScheduler(noise_fraction="snr"),
    "learned-grid": lambda: MarkovChainScheduler(time_grid="learned"),
    "sde": lambda: ReverseSDEScheduler(),
    "euler": lambda: ReverseODEScheduler("euler"),
    "heun": lambda: ReverseODEScheduler("heun"),
    "adaptive": lambda: ReverseODEScheduler("adaptive", rtol=1.0, atol=1.0),
}
CALLS = {"heun": 15}


@pytest.fixture(scope="module")
def pipelines():
    return {name: make_pipeline(name) for name in MODELS}


@pytest.fixture
def pipe():
    return make_pipeline("mulan")


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("name", MODELS)
def test_every_scheduler_makes_texts_with_every_model(pipelines, name, scheduler):
    pipe = pipelines[name]
    pipe.scheduler = SCHEDULERS[scheduler]()
    if scheduler == "ancestral" and name.startswith("nfdm"):
        with pytest.raises(ValueError, match="NFDMProcess has no signal-to-noise ratio"):
            pipe(num_inference_steps=8)
        return
    output = pipe(num_samples=3, num_inference_steps=8, generator=seeded(0))
    assert isinstance(output, NFDMTextPipelineOutput)
    assert len(output.texts) == 3 and all(isinstance(text, str) for text in output.texts)
    assert output.sequences.shape == (3, LENGTH) and output.sequences.dtype == torch.int64
    assert output.sequences.min() >= 0 and output.sequences.max() < VOCAB
    assert output.latents is output.trajectory is output.trajectory_times is None
    calls = output.num_function_evaluations
    assert output.calls.tolist() == [calls] * 3
    assert calls % 3 == 1 and calls > 4 if scheduler == "adaptive" else calls == CALLS.get(scheduler, 8)
    again = pipe(num_samples=3, num_inference_steps=8, generator=seeded(0), output_type="latent")
    assert again.latents.shape == (3, LENGTH, DIM) and torch.isfinite(again.latents).all()
    assert again.texts is again.sequences is None
    decoded = pipe.model.decode(again.latents, torch.zeros(3, pipe.model.context_dim or 1)).argmax(-1)
    assert torch.equal(decoded, output.sequences)


# --- what a sample depends on ---


@pytest.mark.parametrize("scheduler", ["chain", "sde", "heun", "adaptive"])
@pytest.mark.parametrize("name", ["nfdm", "mulan-rescaled"])
def test_a_sample_is_the_same_in_every_batch(name, scheduler):
    # In float64: the drift of a random NFDM is so rough that it blows float32's rounding up to a thousandth.
    pipe = make_pipeline(name, SCHEDULERS[scheduler](), torch.float64)
    options = {"num_inference_steps": 8, "output_type": "latent"}
    sampled = {"num_inference_steps": 8, "temperature": 1.0, "output_type": "seq"}
    whole = pipe(num_samples=5, generator=seeded(7), **options).latents
    tokens = pipe(num_samples=5, generator=seeded(7), **sampled).sequences
    assert (whole[0] - whole[1:]).flatten(1).norm(dim=1).min() > 0.1
    for batch_size in (1, 2, 5):
        split = pipe(num_samples=5, generator=seeded(7), batch_size=batch_size, **options).latents
        torch.testing.assert_close(split, whole, rtol=1e-6, atol=1e-6)
        split = pipe(num_samples=5, generator=seeded(7), batch_size=batch_size, **sampled).sequences
        assert torch.equal(split, tokens)
    first = pipe(num_samples=3, generator=seeded(7), **options).latents
    torch.testing.assert_close(first, whole[:3], rtol=1e-6, atol=1e-6)

    listed = pipe(num_samples=4, generator=[seeded(seed) for seed in (3, 1, 4, 5)], **options).latents
    split = pipe(num_samples=4, generator=[seeded(seed) for seed in (3, 1, 4, 5)], batch_size=3, **options).latents
    torch.testing.assert_close(split, listed, rtol=1e-6, atol=1e-6)
    for i, seed in enumerate((3, 1, 4, 5)):
        alone = pipe(generator=[seeded(seed)], **options).latents
        torch.testing.assert_close(alone[0], listed[i], rtol=1e-6, atol=1e-6)


def test_many_samples_begin_with_the_few_of_the_same_seed(pipe):
    # More than 16 numbers take another path through torch's generator than fewer.
    few, many = (pipe(num_samples=n, num_inference_steps=2, generator=seeded(1)).texts for n in (3, 40))
    assert many[:3] == few


def test_a_generator_moves_on_and_the_global_seed_stands_in_for_none(pipe):
    options = {"num_samples": 2, "num_inference_steps": 2, "output_type": "latent"}
    generator = seeded(0)
    first, second = (pipe(generator=generator, **options).latents for _ in range(2))
    assert not torch.allclose(first, second)
    torch.manual_seed(5)
    first = pipe(**options).latents
    second = pipe(**options).latents
    torch.manual_seed(5)
    assert torch.equal(pipe(**options).latents, first) and not torch.allclose(first, second)


@pytest.mark.parametrize("name", ["nfdm", "diffusion-lm"])
def test_latents_take_the_place_of_the_first_noise(pipelines, name):
    pipe = pipelines[name]
    pipe.scheduler = MarkovChainScheduler(noise_fraction=0.0)
    options = {"num_inference_steps": 4, "output_type": "latent"}
    latents = torch.cat([torch.randn(1, LENGTH, DIM, generator=seeded(seed)) for seed in (1, 2, 3)])
    before = latents.clone()
    given = pipe(latents=latents, batch_size=2, **options).latents
    drawn = pipe(num_samples=3, generator=[seeded(seed) for seed in (1, 2, 3)], **options).latents
    torch.testing.assert_close(given, drawn, rtol=1e-4, atol=1e-5)
    assert torch.equal(latents, before)


def test_the_model_is_left_in_the_mode_it_was_in(pipe):
    pipe.model.train()
    pipe(num_inference_steps=1)
    assert pipe.model.training
    pipe.model.eval()
    pipe(num_inference_steps=1)
    assert not pipe.model.training


def test_dropout_is_off_while_sampling():
    pipe = make_pipeline("nfdm", hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5)
    pipe.model.train()
    options = {"num_inference_steps": 2, "output_type": "latent"}
    assert torch.equal(pipe(generator=seeded(0), **options).latents, pipe(generator=seeded(0), **options).latents)


def test_no_gradient_is_kept(pipe):
    assert not pipe(num_inference_steps=2, output_type="latent").latents.requires_grad


# --- outputs ---


@pytest.mark.parametrize("output_type", ["text", "seq", "latent"])
@pytest.mark.parametrize("trajectory", [False, True])
def test_the_tuple_holds_what_the_output_holds(pipe, output_type, trajectory):
    options = {"num_inference_steps": 3, "output_type": output_type, "return_trajectory": trajectory}
    output = pipe(generator=seeded(0), **options)
    values = pipe(generator=seeded(0), return_dict=False, **options)
    names = {"text": ["texts", "sequences"], "seq": ["sequences"], "latent": ["latents"]}[output_type]
    names += ["trajectory", "trajectory_times"] * trajectory + ["num_function_evaluations", "calls"]
    assert list(output.keys()) == names and len(values) == len(names)
    for name, value in zip(names, values):
        same = torch.equal(value, output[name]) if isinstance(value, torch.Tensor) else value == output[name]
        assert same, name


def test_texts_stop_at_end_and_show_unknown_words(pipe, monkeypatch):
    ids = {token: i for i, token in enumerate((START, END, UNK, PAD))}
    assert pipe.tokenizer.convert_ids_to_tokens([0, 1, 2, 3]) == list(ids)
    word = pipe.tokenizer.convert_tokens_to_ids("fox")
    chosen = torch.tensor([[0, word, 2, 1, word], [word, 3, word, 1, 1], [1, word, word, word, word]])
    monkeypatch.setattr(
        "diffusers_text_nfdm.pipelines.pipeline_nfdm_text.draw_tokens", lambda *args, **options: chosen
    )
    assert pipe(num_samples=3, num_inference_steps=1).texts == [f"fox {UNK}", "fox fox", ""]


def test_texts_stop_at_end_with_a_tokenizer_that_does_not_know_how(pipe, monkeypatch):
    from transformers import PreTrainedTokenizerFast

    plain = PreTrainedTokenizerFast(
        tokenizer_object=pipe.tokenizer.backend_tokenizer, bos_token=START, eos_token=END, unk_token=UNK, pad_token=PAD
    )
    pipe.tokenizer = plain
    word = plain.convert_tokens_to_ids("fox")
    chosen = torch.tensor([[0, word, 2, 1, word]])
    monkeypatch.setattr(
        "diffusers_text_nfdm.pipelines.pipeline_nfdm_text.draw_tokens", lambda *args, **options: chosen
    )
    assert pipe(num_inference_steps=1).texts == [f"fox {UNK}"]


def test_a_tokenizer_without_end_is_refused_before_any_work(pipe, monkeypatch):
    pipe.tokenizer.eos_token = None
    monkeypatch.setattr(pipe.model, "denoise", None)
    with pytest.raises(ValueError, match="no END token"):
        pipe(num_inference_steps=1)


@pytest.mark.parametrize(
    "name, scheduler, calls", [("nfdm", "star", 6), ("diffusion-lm", "heun", 11), ("diffusion-lm", "adaptive", None)]
)
def test_trajectory_holds_the_best_tokens_of_every_prediction(pipelines, name, scheduler, calls):
    pipe = pipelines[name]
    pipe.scheduler = SCHEDULERS[scheduler]()
    seen = []

    def watch(pipeline, step, timestep, tensors):
        seen.append(tensors["tokens"])
        return {}

    options = {"num_samples": 3, "num_inference_steps": 6, "generator": seeded(2), "return_trajectory": True}
    output = pipe(**options, callback_on_step_end=watch, callback_on_step_end_tensor_inputs=["tokens"])
    calls = calls or output.num_function_evaluations
    assert output.trajectory.shape == (calls, 3, LENGTH) and output.trajectory_times.shape == (calls, 3)
    assert torch.equal(output.trajectory, torch.stack(seen))
    times = output.trajectory_times
    assert (times[0] == times[0, 0]).all() and times.min() >= 0 and (times[-1] < times[0]).all()
    if scheduler != "adaptive":
        pipe.scheduler.set_timesteps(6)
        torch.testing.assert_close(times, pipe.scheduler.timesteps[:, None].expand(calls, 3))
    if scheduler == "star":
        # NFDM's mean at 0 is the last prediction itself.
        assert torch.equal(output.trajectory[-1], output.sequences)


def test_trajectory_of_several_batches_is_that_of_one(pipelines):
    pipe = pipelines["diffusion-lm"]
    for scheduler in ("star", "adaptive"):
        pipe.scheduler = SCHEDULERS[scheduler]()
        options = {"num_samples": 5, "num_inference_steps": 4, "return_trajectory": True}
        one, several = (pipe(generator=seeded(2), batch_size=size, **options) for size in (5, 2))
        assert torch.equal(one.sequences, several.sequences)
        assert torch.equal(one.trajectory[0], several.trajectory[0])
        assert torch.equal(one.trajectory[-1], several.trajectory[-1])
        assert one.trajectory.shape == several.trajectory.shape
        assert one.num_function_evaluations == several.num_function_evaluations


# --- callbacks, clamping, times, progress ---


def test_callback_sees_what_it_asks_for_and_may_replace_the_latents(pipe):
    seen = []

    def replace(pipeline, step, timestep, tensors):
        assert pipeline is pipe and set(tensors) == {"latents", "prediction", "tokens"}
        assert tensors["latents"].shape == tensors["prediction"].shape == (2, LENGTH, DIM)
        assert tensors["tokens"].shape == (2, LENGTH) and tensors["tokens"].dtype == torch.int64
        seen.append((step, float(timestep)))
        return {"latents": torch.full_like(tensors["latents"], 3.0)} if step == 3 else None

    output = pipe(
        num_samples=2,
        num_inference_steps=4,
        output_type="latent",
        callback_on_step_end=replace,
        callback_on_step_end_tensor_inputs=["latents", "prediction", "tokens"],
    )
    assert seen == [(0, 1.0), (1, 0.75), (2, 0.5), (3, 0.25)]
    assert (output.latents == 3.0).all()


def test_callback_changes_what_comes_after_it(pipe):
    pipe.scheduler = MarkovChainScheduler(noise_fraction=0.0)
    options = {"num_inference_steps": 4, "output_type": "latent"}

    def shift(pipeline, step, timestep, tensors):
        return {"latents": tensors["latents"] + 5.0} if step == 0 else {}

    plain = pipe(generator=seeded(0), **options).latents
    unchanged = pipe(generator=seeded(0), callback_on_step_end=lambda *args: {}, **options).latents
    shifted = pipe(generator=seeded(0), callback_on_step_end=shift, **options).latents
    assert torch.equal(plain, unchanged) and not torch.allclose(plain, shifted)


@pytest.mark.parametrize(
    ("latents", "message"),
    [
        (torch.zeros(1, 5, 3), "The callback's `latents` has shape \\(1, 5, 3\\); it must be \\(1, 5, 4\\)"),
        (torch.zeros(2, 5, 4), "The callback's `latents` has shape"),
        (torch.full((1, 5, 4), torch.nan), "The callback's `latents` has values that are not finite"),
        ("none", "The callback's `latents` is a str"),
    ],
)
def test_latents_of_a_callback_are_checked(pipe, latents, message):
    with pytest.raises(ValueError, match=message):
        pipe(num_inference_steps=4, callback_on_step_end=lambda *args: {"latents": latents})


@pytest.mark.parametrize("name", MODELS)
def test_clamping_puts_every_prediction_on_its_nearest_embedding(pipelines, name):
    pipe = pipelines[name]
    pipe.scheduler = MarkovChainScheduler()
    free, clamped = [], []
    denoise, table = pipe.model.denoise, pipe.model.embedding_table()

    def watch(pipeline, step, timestep, tensors):
        clamped.append(tensors["prediction"])

    def record(*args, **options):
        prediction = denoise(*args, **options)
        free.append(prediction.embeddings)
        return prediction

    pipe.model.denoise = record
    try:
        pipe(
            num_samples=2,
            num_inference_steps=4,
            clamp_predictions=True,
            generator=seeded(0),
            callback_on_step_end=watch,
            callback_on_step_end_tensor_inputs=["prediction"],
        )
    finally:
        del pipe.model.denoise
    assert len(free) == len(clamped) == 4
    for before, after in zip(free, clamped):
        distances = (before[:, :, None] - table).square().sum(-1)
        torch.testing.assert_close(after, table[distances.argmin(-1)])
        assert not torch.allclose(before, after)


def test_given_times_are_those_of_the_predictor(pipe):
    times = []
    options = {"generator": seeded(0), "callback_on_step_end": lambda _, step, t, tensors: times.append(float(t))}
    output = pipe(timesteps=[1.0, 0.5, 0.25], **options)
    assert times == [1.0, 0.5, 0.25] and output.num_function_evaluations == 3


@pytest.mark.parametrize("scheduler, calls", [("star", 64), ("sde", 512), ("euler", 512)])
def test_steps_default_to_what_the_scheduler_needs(pipelines, scheduler, calls):
    pipe = pipelines["diffusion-lm"]
    pipe.scheduler = SCHEDULERS[scheduler]()
    assert pipe().num_function_evaluations == calls
    assert SCHEDULERS["adaptive"]().default_steps == 64


@pytest.mark.parametrize("scheduler, shown", [("star", "8/8"), ("heun", "14/14"), ("adaptive", "it")])
def test_progress_bar_counts_the_predictor_calls_of_all_batches(pipelines, scheduler, shown):
    pipe = pipelines["diffusion-lm"]
    pipe.scheduler = SCHEDULERS[scheduler]()
    pipe.set_progress_bar_config(disable=False)
    written = io.StringIO()
    try:
        with contextlib.redirect_stderr(written):
            pipe.set_progress_bar_config(file=written)
            pipe(num_samples=4, batch_size=2, num_inference_steps=4)
    finally:
        pipe.set_progress_bar_config(disable=True)
    assert shown in written.getvalue()


# --- bad input ---


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"num_samples": 0}, "`num_samples` is 0; it must be an integer of at least 1"),
        ({"num_samples": 2.0}, "`num_samples` is 2.0"),
        ({"num_samples": True}, "`num_samples` is True"),
        ({"batch_size": 0}, "`batch_size` is 0; it must be an integer of at least 1"),
        ({"batch_size": "4"}, "`batch_size` is '4'"),
        ({"num_inference_steps": 0}, "`num_inference_steps` is 0"),
        ({"num_inference_steps": 1.5}, "`num_inference_steps` is 1.5"),
        ({"timesteps": [0.1, 0.2]}, "`timesteps` is \\[0.1, 0.2\\]"),
        ({"timesteps": [0.1], "num_inference_steps": 3}, "either `num_inference_steps` or `timesteps`"),
        ({"generator": [torch.Generator()] * 2}, "`generator` is a list of 2 for 1 samples"),
        ({"generator": [torch.Generator()] * 2, "num_samples": 2}, "`generator` has one generator several times"),
        ({"generator": 42}, "`generator` has 42; it must be a `torch.Generator`"),
        ({"generator": [42]}, "`generator` has 42; it must be a `torch.Generator`"),
        ({"latents": torch.zeros(1, 2, 3)}, "`latents` has shape \\(1, 2, 3\\); it must be \\(1, 5, 4\\)"),
        ({"latents": torch.zeros(2, 5, 4), "num_samples": 3}, "`latents` has shape \\(2, 5, 4\\); it must be \\(3, 5"),
        ({"latents": torch.full((1, 5, 4), torch.nan)}, "`latents` has values that are not finite"),
        ({"latents": [[0.0]]}, "`latents` is a list; it must be a tensor of shape \\(1, 5, 4\\)"),
        ({"temperature": -1.0}, "`temperature` is -1.0; it must be at least 0"),
        ({"temperature": float("nan")}, "`temperature` is nan"),
        ({"temperature": "hot"}, "`temperature` is 'hot'"),
        ({"top_k": 3}, "need a `temperature` above 0"),
        ({"min_p": 0.5}, "need a `temperature` above 0"),
        ({"temperature": 1.0, "top_k": 0}, "`top_k` is 0; it must be an integer of at least 1"),
        ({"temperature": 1.0, "top_k": 2.5}, "`top_k` is 2.5"),
        ({"temperature": 1.0, "top_k": True}, "`top_k` is True"),
        ({"temperature": 1.0, "top_p": 0.0}, "`top_p` is 0.0; it must be in \\(0, 1\\]"),
        ({"temperature": 1.0, "top_p": 1.1}, "`top_p` is 1.1"),
        ({"temperature": 1.0, "top_p": "half"}, "`top_p` is 'half'"),
        ({"output_type": "pil"}, "`output_type` is 'pil'; it must be one of 'text', 'seq', 'latent'"),
        (
            {"callback_on_step_end_tensor_inputs": ["latents", "noise"]},
            "`callback_on_step_end_tensor_inputs` has \\['noise'\\]; allowed are",
        ),
    ],
)
def test_bad_input_is_refused_by_name_and_value_before_any_work(pipe, monkeypatch, arguments, message):
    monkeypatch.setattr(pipe.model, "denoise", None)
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=message):
        pipe(**arguments)
    assert torch.equal(torch.get_rng_state(), state)


def test_an_interrupted_call_takes_no_further_step_and_the_next_one_all(pipe):
    taken = []

    def stop(pipeline, step, timestep, tensors):
        taken.append(step)
        pipeline._interrupt = len(taken) == 2

    options = {"num_samples": 3, "batch_size": 2, "num_inference_steps": 6}
    output = pipe(**options, callback_on_step_end=stop)
    assert taken == [0, 1] and pipe.interrupt
    assert output.calls.tolist() == [2, 2, 0] and len(output.texts) == 3
    assert pipe(**options).calls.tolist() == [6, 6, 6] and not pipe.interrupt


@pytest.mark.parametrize("prompted", [False, True])
def test_a_scheduler_that_writes_tokens_is_interrupted_after_a_call(prompted, monkeypatch):
    tokenizer = make_tokenizer()
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    overrides = {"predictor": "two_stream", "prediction_type": "categorical", **ids}
    pipe = make_pipeline("nfdm", RefinementScheduler(block_length=1), **overrides)
    options = {"prompt": ["Tom", "a"]} if prompted else {"num_samples": 2}
    assert pipe(**options, generator=seeded(0)).calls.min() > 1
    denoise = pipe.model.denoise

    def interrupt(*args, **kwargs):
        pipe._interrupt = True
        return denoise(*args, **kwargs)

    monkeypatch.setattr(pipe.model, "denoise", interrupt)
    output = pipe(**options, generator=seeded(0), batch_size=1)
    assert output.calls.tolist() == [1, 1] and len(output.texts) == 2
