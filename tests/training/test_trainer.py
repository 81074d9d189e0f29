"""The training loop in this process, at tiny size."""

import json
import os
import re
import resource
import signal

import pytest
import torch

from diffusers_text_nfdm import NFDMTextPipeline
from diffusers_text_nfdm.models import TextDiffusionModel
from diffusers_text_nfdm.training import Trainer, signals, train
from diffusers_text_nfdm.training import trainer as trainer_module
from diffusers_text_nfdm.training.checkpoints import checkpoint_folders
from runs import arguments, assert_close_weights, assert_same_run, averages, metrics, weights


def steps(run, key):
    return [entry[key] for entry in metrics(run) if key in entry]


def test_a_run_writes_what_it_promises(data, tmp_path, capsys):
    run = tmp_path / "run"
    summary = train(arguments(data, run, report_to="tensorboard", save_plots=True, checkpoints_total_limit=1))
    assert summary == json.loads((run / "summary.json").read_text())
    assert [path.name for path in checkpoint_folders(run)] == ["checkpoint-00000008"]
    assert sorted(path.name for path in (run / "plots").iterdir()) == [
        "loss.png", "schedule.png", "similarity.png", "times.png", "volatility.png"
    ]  # fmt: skip
    assert list((run / "logs").rglob("events.out.tfevents.*"))
    assert [entry["step"] for entry in metrics(run) if "train/loss" in entry] == list(range(1, 9))
    assert [entry["step"] for entry in metrics(run) if "validation/bound" in entry] == [0, 4, 8]
    named = "loss bound diffusion reconstruction prior context nats_per_token gradient_norm reconstruction_accuracy "
    named += "embedding_norm nearest_neighbor_distance unknown_share steps_per_second tokens_per_second learning_rate"
    last = [entry for entry in metrics(run, timings=True) if "train/loss" in entry][-1]
    assert {f"train/{name}" for name in named.split()} <= set(last)
    # What is released, and read back, is the averaged weights.
    pipeline = NFDMTextPipeline.from_pretrained(run / "pipeline")
    released = dict(pipeline.model.named_parameters())
    assert released.keys() == averages(run, 8).keys()
    assert all(torch.equal(released[name], average) for name, average in averages(run, 8).items())
    card = (run / "pipeline" / "README.md").read_text()
    assert "`batch_size`: 8" in card and "nats per text" in card
    assert "# NFDM trained on train.jsonl\n" in card and str(data) not in card and str(tmp_path) not in card
    printed = capsys.readouterr().out
    assert "Bound on the validation texts" in printed and "train: 200 texts" in printed
    assert not list(run.glob("*.tmp")) and not list(run.glob("*.trash"))


def test_the_card_of_a_run_shows_names_as_text_and_no_folders(data, tmp_path):
    """Of the data, and of the tokenizer or checkpoint that the run starts from."""
    texts = tmp_path / "![x](evil.example)<b>*.jsonl"
    texts.write_text((data / "train.jsonl").read_text())
    options = {"dataset": str(texts), "max_steps": 1, "num_samples": 0, "final_samples": 1, "hub_model_id": "user/x"}
    train(arguments(data, tmp_path / "first", **options))
    for name in ("tokenizer", "model_name_or_path"):
        start = tmp_path / "first" / ("tokenizer" if name == "tokenizer" else "pipeline")
        train(arguments(data, tmp_path / name, **options, **{name: str(start)}))
        card = (tmp_path / name / "pipeline" / "README.md").read_text()
        assert f"- `{name}`: {start.name}\n" in card
        assert str(tmp_path) not in card and str(data) not in card and "user/x" not in card
        # A code span shows what it holds.
        shown = re.sub("`[^`\n]*`", "", card)
        assert "![" not in shown and "<b>" not in shown
        assert shown.count("!\\[x\\](evil.example)&lt;b>\\*.jsonl") == 2


def test_resumed_equals_uninterrupted(data, tmp_path):
    """Stopped at a step without a checkpoint of its own and between two log entries; dropout on."""
    options = {"model_config": {"hidden_dropout_prob": 0.1}, "log_every": 2}
    train(arguments(data, tmp_path / "whole", **options))
    assert train(arguments(data, tmp_path / "parts", stop_after_steps=3, **options)) is None
    assert train(arguments(data, tmp_path / "parts", resume="latest", **options)) is not None
    assert_same_run(tmp_path / "whole", tmp_path / "parts", 8)


def test_a_run_that_was_killed_before_it_removed_a_checkpoint_removes_it_when_it_goes_on(data, tmp_path, monkeypatch):
    """`checkpoints_total_limit` holds, though no further checkpoint is written."""
    options = {"checkpoints_total_limit": 1, "checkpoint_every": 4}

    def killed(*_):
        if len(checkpoint_folders(tmp_path)) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(trainer_module, "remove_old", killed)
    with pytest.raises(KeyboardInterrupt):
        train(arguments(data, tmp_path, **options))
    monkeypatch.undo()
    assert train(arguments(data, tmp_path, resume="latest", **options)) is not None
    assert [path.name for path in checkpoint_folders(tmp_path)] == ["checkpoint-00000008"]


def test_evaluations_share_their_draws_so_that_the_weights_alone_move_the_bound(data, tmp_path):
    rates = dict.fromkeys(("learning_rate", "muon_learning_rate", "time_sampler_learning_rate"), 1e-30)
    run = tmp_path / "run"
    train(arguments(data, run, max_steps=3, evaluate_every=1, num_samples=0, final_samples=1, **rates))
    bounds = steps(run, "validation/bound")
    assert len(bounds) == 4 and bounds == pytest.approx([bounds[0]] * 4, rel=1e-6)


def test_accumulation_changes_nothing(data, tmp_path):
    for accumulation in (1, 4):
        options = {"gradient_accumulation_steps": accumulation, "final_samples": 1, "evaluate_every": 8}
        train(arguments(data, tmp_path / str(accumulation), **options))
    one, four = tmp_path / "1", tmp_path / "4"
    for key in ("train/bound", "train/gradient_norm", "train/diffusion", "validation/bound"):
        assert steps(one, key) == pytest.approx(steps(four, key), rel=1e-3)
    assert_close_weights(weights(one, 4), weights(four, 4), weights(one, 8), learning_rate=2e-3)


def test_clipping_begins_at_its_step(data, tmp_path, monkeypatch):
    limits = []
    clip = trainer_module.Accelerator.clip_grad_norm_
    monkeypatch.setattr(
        trainer_module.Accelerator,
        "clip_grad_norm_",
        lambda self, parameters, limit: limits.append(limit) or clip(self, parameters, limit),
    )
    train(arguments(data, tmp_path / "run", max_steps=4, clip_after_steps=2, max_grad_norm=0.7))
    assert limits == [float("inf"), float("inf"), 0.7, 0.7]
    # The norm that is logged is that before clipping.
    assert min(steps(tmp_path / "run", "train/gradient_norm")[2:]) > 0.7


def test_context_divergence_is_warmed_up(data, tmp_path, monkeypatch):
    seen = []
    forward = TextDiffusionModel.forward

    def spy(self, *args, **options):
        if self.training:
            seen.append(options["context_weight"])
        return forward(self, *args, **options)

    monkeypatch.setattr(TextDiffusionModel, "forward", spy)
    options = {"model_type": "mulan", "max_steps": 5, "evaluate_every": 5}
    train(arguments(data, tmp_path / "run", context_warmup_steps=4, **options))
    assert seen == [0.25, 0.5, 0.75, 1.0, 1.0]


# ---- What stops a run -----------------------------------------------------------------------------------------------


def test_non_finite_loss_names_the_term_and_the_time(data, tmp_path, monkeypatch):
    run = tmp_path / "run"
    calls = []
    draw = TextDiffusionModel.draw

    def poisoned(self, *args, **options):
        draws = draw(self, *args, **options)
        if self.training:
            calls.append(draws)
            if len(calls) == 6:
                draws.noise[3] = float("inf")
        return draws

    monkeypatch.setattr(TextDiffusionModel, "draw", poisoned)
    with pytest.raises(
        FloatingPointError, match=r"at step 5: diffusion is (nan|inf) at t = 0\.\d+\. The checkpoints in"
    ):
        train(arguments(data, run, gradient_accumulation_steps=2))
    assert [path.name for path in checkpoint_folders(run)] == ["checkpoint-00000004"]
    assert all(torch.isfinite(weight).all() for weight in weights(run, 4).values())
    monkeypatch.undo()
    assert train(arguments(data, run, gradient_accumulation_steps=2, resume="latest")) is not None


def test_non_finite_gradient_is_not_stepped_on(data, tmp_path, monkeypatch):
    trainer = Trainer(arguments(data, tmp_path / "run", max_steps=4, checkpoint_every=2))
    trainer.model.token_bias.register_hook(
        lambda gradient: gradient * float("nan") if trainer.progress.step == 3 else gradient
    )
    with pytest.raises(FloatingPointError, match="at step 3: the norm of the gradient is nan"):
        trainer.train()
    assert all(torch.isfinite(parameter).all() for parameter in trainer.model.parameters())
    assert [path.name for path in checkpoint_folders(trainer.run)] == ["checkpoint-00000002"]


def test_steps_follow_the_clocks_of_the_mixture_and_begin_with_the_next_token(data, tmp_path, monkeypatch):
    seen, forward = [], TextDiffusionModel.forward

    def spy(self, *args, **options):
        if self.training:
            seen.append(options)
        return forward(self, *args, **options)

    monkeypatch.setattr(TextDiffusionModel, "forward", spy)
    clocks = {"shared": 0.25, "random:2": 0.25, "blocks:8": 0.5}
    settings = arguments(
        data, tmp_path / "run", max_steps=40, evaluate_every=40, checkpoint_every=40, clocks=clocks,
        next_token_weight=0.5, next_token_steps=4, sampling_steps=3,
        model_config={"predictor": "two_stream", "prediction_type": "categorical", "clock": "blocks:8"},
    )  # fmt: skip
    train(settings)
    assert all(options["next_token_only"] for options in seen[:4])
    drawn = [str(options["clock"]) for options in seen[4:]]
    assert len(drawn) == 36 and set(drawn) == set(clocks) and 10 <= drawn.count("blocks:8") <= 26
    # Where the text is not in blocks the clean stream is not read.
    assert [options["next_token_weight"] for options in seen[4:]] == [0.5 * (clock == "blocks:8") for clock in drawn]


def test_the_curvature_is_logged_in_steps_on_the_bound_and_falls_by_its_weight(data, tmp_path):
    curvatures = {}
    for weight in (1e-9, 10.0):
        run = tmp_path / f"run-{weight}"
        settings = arguments(
            data, run, max_steps=60, batch_size=16, evaluate_every=60, checkpoint_every=60, num_samples=0,
            straightness_weight=weight, cross_entropy_steps=1, learning_rate=1e-2, warmup_steps=0,
            model_config={"prediction_type": "categorical"},
        )  # fmt: skip
        train(settings)
        entries = [entry for entry in metrics(run) if "train/loss" in entry]
        logged = [entry for entry in entries if "train/curvature" in entry]
        assert len(logged) == 30 and all("train/bound" in entry for entry in logged)
        for entry in logged:
            total = entry["train/bound"] + weight * entry["train/curvature"]
            assert entry["train/loss"] == pytest.approx(total, rel=1e-5)
        curvatures[weight] = sum(entry["train/curvature"] for entry in logged[-10:])
    assert curvatures[10.0] < 0.7 * curvatures[1e-9]


@pytest.mark.parametrize("clock", ["blocks:8", "ramp:4"])
def test_steps_on_the_bound_follow_the_models_own_clock_and_give_no_tokens(data, tmp_path, monkeypatch, clock):
    """Those on the cross-entropy follow the mixture, with windows or without, and some texts are known in part."""
    seen, forward = [], TextDiffusionModel.forward

    def spy(self, *args, **options):
        if self.training:
            seen.append(options)
        return forward(self, *args, **options)

    monkeypatch.setattr(TextDiffusionModel, "forward", spy)
    settings = arguments(
        data, tmp_path / "run", max_steps=20, evaluate_every=20, checkpoint_every=20, cross_entropy_steps=3,
        clocks={"random:2": 0.5, "ramp:2": 0.5}, known_texts={"prefix": 0.5, "scattered": 0.25},
        gradient_accumulation_steps=2, next_token_weight=0.5, sampling_steps=3,
        model_config={"predictor": "two_stream", "prediction_type": "categorical", "clock": clock},
    )  # fmt: skip
    train(settings)
    steps = [seen[i : i + 2] for i in range(0, len(seen), 2)]
    on_bound = [step for step in steps if "cross_entropy" not in step[0]]
    others = [step for step in steps if "cross_entropy" in step[0]]
    assert len(on_bound) == 5 and len(others) == 15
    assert all(str(o["clock"]) == clock and o["known"] is None for step in on_bound for o in step)
    assert {str(options["clock"]) for step in others for options in step} == {"random:2", "ramp:2"}
    for options in (options for step in others for options in step):
        assert options["next_token_weight"] == 0.5 * (str(options["clock"]) == "ramp:2")
        assert options["known"].shape == (settings.batch_size // 2, settings.max_length)
    known = torch.cat([options["known"] for step in others for options in step])
    assert 0.6 < known.any(-1).float().mean() < 0.9 and not known.all(-1).any()


def test_signal_ends_the_run_with_a_checkpoint_and_only_a_later_one_kills(data, tmp_path, monkeypatch):
    trainer = Trainer(arguments(data, tmp_path / "run", checkpoint_every=100))
    step, killed = trainer._step, []
    monkeypatch.setattr(signals.os, "kill", lambda process, number: killed.append(number))
    monkeypatch.setattr(signals.signal, "SIG_DFL", signal.SIG_IGN)
    clock = [0.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: clock[0])

    def interrupted(batches):
        if trainer.progress.step == 2:
            for clock[0] in (10.0, 10.5):
                signal.raise_signal(signal.SIGINT)
            assert killed == [], "the launcher passes on what the terminal sent already"
            clock[0] = 14.0
            signal.raise_signal(signal.SIGTERM)
            assert killed == [signal.SIGTERM]
        return step(batches)

    monkeypatch.setattr(trainer, "_step", interrupted)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    assert trainer.train() is None
    assert [path.name for path in checkpoint_folders(trainer.run)] == ["checkpoint-00000003"]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers


def test_a_signal_before_the_first_step_is_obeyed_at_once(data, tmp_path, monkeypatch, capsys):
    def measure(*_):
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("The evaluation went on.")

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "validation_bound", measure)
        assert train(arguments(data, tmp_path / "run")) is None
    assert "Stopped by a signal before the first step." in capsys.readouterr().out
    assert not checkpoint_folders(tmp_path / "run")
    assert train(arguments(data, tmp_path / "run", resume="latest")) is not None
    train(arguments(data, tmp_path / "whole"))
    assert_same_run(tmp_path / "run", tmp_path / "whole", 8)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("moment", ["last step", "final samples"])
def test_signal_near_the_end_stops_the_run_too(moment, number, data, tmp_path, monkeypatch):
    options = {"max_steps": 2, "evaluate_every": 2, "num_samples": 0, "final_samples": 1}
    trainer = Trainer(arguments(data, tmp_path / "run", **options))
    step = trainer._step

    def last(batches):
        if trainer.progress.step == 1:
            signal.raise_signal(number)
        return step(batches)

    if moment == "last step":
        monkeypatch.setattr(trainer, "_step", last)
    else:
        monkeypatch.setattr(trainer, "generate", lambda *_, **__: signal.raise_signal(number))
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    assert trainer.train() is None and not (tmp_path / "run" / "summary.json").exists()
    assert [path.name for path in checkpoint_folders(trainer.run)] == ["checkpoint-00000002"]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert train(arguments(data, tmp_path / "run", resume="latest", **options)) is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 201}, "`batch_size` is 201, but there are only 200 training texts"),
        ({"batch_size": 9, "gradient_accumulation_steps": 2}, "must be a multiple of 2"),
        ({"text_column": "story"}, "story"),
        ({"report_to": "wandb"}, "`report_to` is 'wandb', which is not installed"),
        ({"model_config": {"hidden_size": 15}}, "`hidden_size` is 15"),
        ({"dataset": "EMPTY"}, "no text|empty|holds no"),
    ],
)
def test_refused_before_anything_is_written(options, message, data, tmp_path):
    if options.get("dataset") == "EMPTY":
        (tmp_path / "empty.jsonl").write_text("")
        options = {"dataset": str(tmp_path / "empty.jsonl"), "validation_file": None}
    with pytest.raises((ValueError, OSError), match=message):
        train(arguments(data, tmp_path / "run", **options))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("writer", "name"), [("_own_run", ".lock"), ("_write_run_files", "tokenizer"), ("_record", "metrics.jsonl")]
)
def test_a_file_of_the_run_that_cannot_be_written_is_named(writer, name, data, tmp_path, monkeypatch):
    """The kernel refuses files beyond a limit."""
    trainer = Trainer(arguments(data, tmp_path / "run", max_steps=1, num_samples=0))
    write, (soft, hard) = getattr(trainer, writer), resource.getrlimit(resource.RLIMIT_FSIZE)

    def limited(*args):
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
        try:
            write(*args)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    monkeypatch.setattr(trainer, writer, limited)
    with pytest.raises(OSError, match=f"Could not write {tmp_path / 'run' / name}: .*File too large"):
        trainer.train()


def test_other_run_in_the_folder_is_left_alone(data, tmp_path):
    run = tmp_path / "run"
    train(arguments(data, run, max_steps=2, evaluate_every=2))
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="holds another run"):
        train(arguments(data, run))
    with pytest.raises(ValueError, match="seed: 0 in the checkpoint, 5 here"):
        train(arguments(data, run, max_steps=2, evaluate_every=2, seed=5, resume="latest"))
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()} == before


def test_checkpoint_continues_in_another_folder(data, tmp_path):
    train(arguments(data, tmp_path / "one"))
    train(arguments(data, tmp_path / "two", resume=str(tmp_path / "one" / "checkpoint-00000004")))
    one, two = weights(tmp_path / "one", 8), weights(tmp_path / "two", 8)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert metrics(tmp_path / "two")[0]["step"] == 5
    for path in (tmp_path / "one" / "tokenizer").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / "tokenizer" / path.name).read_bytes()


def test_what_divergence_advises_can_be_done(data, tmp_path, capsys):
    run = tmp_path / "run"
    trainer = Trainer(arguments(data, run, max_steps=4, checkpoint_every=2))
    trainer.model.token_bias.register_hook(
        lambda gradient: gradient * float("nan") if trainer.progress.step == 3 else gradient
    )
    with pytest.raises(FloatingPointError, match="`--resume latest` and a lower learning rate.*: learning_rate, .*"):
        trainer.train()
    changed = {"learning_rate": 1e-3, "muon_learning_rate": 1e-2, "clip_after_steps": 0}
    assert train(arguments(data, run, max_steps=4, checkpoint_every=2, resume="latest", **changed)) is not None
    assert "Changed: learning_rate: 0.002 in the checkpoint, 0.001 here." in capsys.readouterr().out
    assert steps(run, "train/learning_rate")[2:] == [pytest.approx(1e-3 * factor) for factor in (1, 0.5)]


@pytest.mark.parametrize("changed", ["dataset", "validation_file", "validation_file of a stream"])
def test_resuming_with_other_texts_is_refused(changed, data, tmp_path):
    setting, *stream = changed.split(" of ")
    texts = tmp_path / "texts.jsonl"
    lines = (data / f"{'train' if setting == 'dataset' else 'valid'}.jsonl").read_text().splitlines(keepends=True)
    texts.write_text("".join(lines))
    options = {setting: str(texts), "streaming": bool(stream), "max_steps": 4}
    assert train(arguments(data, tmp_path / "run", stop_after_steps=2, **options)) is None
    texts.write_text("".join([*lines[1:], lines[0]]))
    with pytest.raises(ValueError, match=r"The texts of .* are not those that .*checkpoint-00000002 was trained on"):
        train(arguments(data, tmp_path / "run", resume="latest", **options))
    texts.write_text("".join(lines))
    assert train(arguments(data, tmp_path / "run", resume="latest", **options)) is not None


def test_a_run_in_use_is_left_alone(data, tmp_path, monkeypatch):
    run = tmp_path / "run"
    trainer, late = (Trainer(arguments(data, run, max_steps=2, evaluate_every=2)) for _ in range(2))
    step, refused = trainer._step, []

    def interrupted(batches):
        for start in (late.train, lambda: train(arguments(data, run, resume="latest"))):
            with pytest.raises(ValueError, match=f"{run} is in use by process {os.getpid()} on "):
                start()
            refused.append(start)
        return step(batches)

    monkeypatch.setattr(trainer, "_step", interrupted)
    assert trainer.train() is not None and len(refused) == 4
    # It was decided to use an empty folder.
    with pytest.raises(ValueError, match="Another process has written into"):
        late.train()


# ---- Ways to train --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"mixed_precision": "bf16"},
        {"gradient_checkpointing": True, "model_config": {"hidden_dropout_prob": 0.1}},
        {"streaming": True},
        pytest.param({"compile": True}, marks=pytest.mark.slow),
    ],
    ids=lambda options: next(iter(options)),
)
def test_ways_to_train(options, data, tmp_path):
    train(arguments(data, tmp_path / "run", max_steps=4, **options))
    losses = torch.tensor(steps(tmp_path / "run", "train/loss"))
    assert len(losses) == 4 and losses.isfinite().all()
    plain = {key: value for key, value in options.items() if key == "model_config"}
    if not options.get("streaming"):
        trainer_module.Accelerator().state._reset_state(reset_partial_state=True)
        train(arguments(data, tmp_path / "plain", max_steps=4, **plain))
        # bf16 has 8 bits; the other ways compute the same in another order.
        tolerance = 0.05 if "mixed_precision" in options else 1e-4
        assert losses.tolist() == pytest.approx(steps(tmp_path / "plain", "train/loss"), rel=tolerance)


@pytest.mark.parametrize(("multiplies", "precision"), [(True, "bf16"), (False, "no")])
def test_the_device_may_decide_the_precision(multiplies, precision, data, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer_module, "multiplies_bfloat16", lambda device: multiplies)
    train(arguments(data, tmp_path / "run", max_steps=1, mixed_precision="auto"))
    trainer_module.Accelerator().state._reset_state(reset_partial_state=True)
    assert json.loads((tmp_path / "run" / "training_arguments.json").read_text())["mixed_precision"] == precision
    train(arguments(data, tmp_path / "same", max_steps=1, mixed_precision=precision))
    assert steps(tmp_path / "run", "train/loss") == steps(tmp_path / "same", "train/loss")


def test_a_run_has_its_own_precision_whatever_ran_before(data, tmp_path):
    for number, precision in enumerate([None, "bf16", None, "no"]):
        train(arguments(data, tmp_path / str(number), max_steps=1, mixed_precision=precision))
    losses = [steps(tmp_path / str(number), "train/loss") for number in range(4)]
    assert losses[0] == losses[2] == losses[3] != losses[1]


def test_streams_are_resumed_too(data, tmp_path):
    options = {"streaming": True, "max_steps": 6, "evaluate_every": 6, "evaluation_texts": 20}
    train(arguments(data, tmp_path / "whole", **options))
    assert train(arguments(data, tmp_path / "parts", stop_after_steps=2, **options)) is None
    train(arguments(data, tmp_path / "parts", resume="latest", **options))
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "parts")
    # Counted on the validation texts, a few words of which are in no training text.
    assert 0 < metrics(tmp_path / "whole")[1]["train/unknown_share"] < 0.05
