import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from diffusers_text_nfdm.training import TrainingArguments, parse_arguments, recipe_names
from diffusers_text_nfdm.training.arguments import FREE_ON_RESUME
from diffusers_text_nfdm.training.recipe_files import read_config
from runs import arguments


def refusal(capsys, *argv):
    """The message and exit code 2 of a refused command line."""
    with pytest.raises(SystemExit) as stop:
        parse_arguments(list(argv))
    assert stop.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("recipe", recipe_names())
def test_printed_configuration_reads_back_the_same(recipe, tmp_path, capsys):
    assert parse_arguments(["--config", recipe, "--seed", "7", "--print_config"]) is None
    path = tmp_path / "printed.yaml"
    path.write_text(capsys.readouterr().out)
    again = parse_arguments(["--config", str(path)])
    assert again == TrainingArguments.from_config(recipe, seed=7)
    groups = [line[2:] for line in path.read_text().splitlines() if line.startswith("# ")]
    assert groups == ["model", "data", "optimisation", "run", "reporting", "hub"]


def test_command_line_overrides_the_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("model_config: {delta: 0.2, hidden_size: 32}\nmax_steps: 5\nlearning_rate: 1e-3\nuse_muon: true\n")
    options = (
        "--max_steps 1e3 --model_config delta=5e-2 volatility=markovian --no-use_muon --checkpoints_total_limit none"
    )
    parsed = parse_arguments(["--config", str(path), *options.split()])
    assert parsed.max_steps == 1000 and isinstance(parsed.max_steps, int)
    assert parsed.model_config == {"delta": 0.05, "hidden_size": 32, "volatility": "markovian"}
    assert parsed.use_muon is False and parsed.checkpoints_total_limit is None
    assert parsed.learning_rate == 1e-3, "YAML reads 1e-3 as text"


def test_every_setting_has_help_and_the_default_recipe_is_the_stories(capsys):
    with pytest.raises(SystemExit) as stop:
        parse_arguments(["--help"])
    shown = capsys.readouterr().out
    assert stop.value.code == 0
    for field in dataclasses.fields(TrainingArguments):
        assert f"--{field.name}" in shown and field.metadata["help"]
    assert parse_arguments([]) == TrainingArguments.from_config("stories-tiny")
    assert parse_arguments([]).dataset == "stories"


@pytest.mark.parametrize("argv", [[], ["--config", "rocstories-nfdm"]])
def test_help_shows_what_the_recipe_sets(argv, capsys):
    with pytest.raises(SystemExit):
        parse_arguments([*argv, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    recipe = TrainingArguments.from_config(*argv[1:])
    for setting in ("max_steps", "batch_size", "learning_rate", "scheduler", "ema_decay"):
        assert f"(default: {getattr(recipe, setting)})" in text, setting
    assert f"(default: {'yes' if recipe.use_muon else 'no'})" in text
    assert "(default: None)" not in text and "(default: {})" not in text


def test_an_error_is_the_last_of_two_lines(capsys):
    with pytest.raises(SystemExit) as stop:
        parse_arguments(["--config", "nonsense"])
    usage, error = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and usage.startswith("usage: ")
    assert "error: `config` is 'nonsense'; it must be a YAML file or one of the recipes " in error


def test_a_quiet_launcher_ends_with_our_error():
    script = Path(__file__).parents[2] / "examples" / "train_nfdm.py"
    command = [sys.executable, "-m", "accelerate.commands.launch", "--quiet", str(script), "--config", "nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "error: `config` is 'nonsense'" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("recipe", ["stories-tiny", "stories-masked", "stories-autoregressive", "rocstories-nfdm"])
def test_another_length_needs_no_other_setting(recipe):
    assert parse_arguments(["--config", recipe, "--max_length", "80"]).max_length == 80


@pytest.mark.parametrize("mixture", ["clocks", "jump_clocks"])
def test_a_share_of_zero_takes_a_part_out_of_a_mixture(mixture):
    shares = getattr(TrainingArguments.from_config(), mixture)
    (gone, share), (grown, own), *others = shares.items()
    arguments = parse_arguments([f"--{mixture}", f"{gone}=0", f"{grown}={share + own}"])
    assert getattr(arguments, mixture) == {grown: share + own, **dict(others)}


def test_unknown_key_of_a_file_is_refused_with_a_suggestion(tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    path.write_text("lerning_rate: 1.0e-3\n")
    message = refusal(capsys, "--config", str(path))
    assert "unknown setting 'lerning_rate'; did you mean 'learning_rate'?" in message and str(path) in message


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--model_config", "detla=0.1"], "'detla', which NFDMConfig does not have; did you mean 'delta'?"),
        (["--model_config", "vocab_size=5"], "'vocab_size'"),
        (["--model_config", "delta"], "`model_config` has 'delta'; it must be KEY=VALUE"),
        (
            ["--config", "stories-masked", "--model_config", "block_size=a"],
            "`model_config` has block_size 'a'; it must be of type int",
        ),
        (["--model_config", "hidden_size=[1"], "`model_config` has hidden_size '[1'; it must be of type int"),
        (["--learning_rate", "{a: [b"], "`learning_rate` is '{a: [b'; it must be of type float"),
        (["--max_steps", "!!python/name:os.system"], "`max_steps` is '!!python/name:os.system'"),
        (["--max_steps", "2020-99-99"], "`max_steps` is '2020-99-99'"),
        (["--max_steps", "[" * 5000], "`max_steps` is '[[["),
        (["--frontier", "few=3"], "`frontier[few]` is 3; it must be a sampling such as star:16"),
        (["--frontier", "few=masked:8"], "'masked:8', which is no way to sample from a model of `model_type` 'nfdm'"),
        (["--frontier", "few=star"], "The sampling is 'star'; it must be of the form"),
        (["--config", "stories-masked", "--model_config", "block_size=[1]"], "value of a wrong kind"),
        (["--max_steps", "many"], "`max_steps` is 'many'; it must be of type int"),
        (["--max_steps", "1.5"], "`max_steps` is 1.5; it must be of type int"),
        (["--max_steps", "0"], "`max_steps` is 0; it must be above 0"),
        (["--learning_rate", "fast"], "`learning_rate` is 'fast'; it must be of type float"),
        (["--learning_rate", "nan"], "`learning_rate` is nan; it must be above 0"),
        (["--warmup_steps", "-1"], "`warmup_steps` is -1; it must be at least 0"),
        (["--ema_decay", "1"], "`ema_decay` is 1.0; it must be in [0, 1)"),
        (
            ["--config", "stories-tiny", "--model_config", "clock=blocks:1", "--sampling_steps", "32"],
            "`sampling_steps` is 32; along the clock 'blocks:1' texts take at least 64",
        ),
        (["--model_config", "clock=blocks:7"], "The `size` of blocks is 7; it must divide the 64 tokens"),
        (["--model_config", "clock=spiral"], "The clock is 'spiral'; it must be 'shared'"),
        (["--config", "rocstories-nfdm", "--clocks", "shared=0.5", "ramp:2=0.4"], "must add up to 1, not 0.9"),
        (["--config", "rocstories-nfdm", "--clocks", "shared=0.5", "ramp:x=0.5"], "The clock is 'ramp:x'"),
        (["--config", "rocstories-nfdm", "--clocks", "shared=2", "ramp:2=-1"], "`clocks[ramp:2]`"),
        (
            ["--next_token_weight", "0", "--next_token_steps", "9"],
            "`next_token_steps` is 9; it needs a `next_token_weight` above 0",
        ),
        (
            ["--cross_entropy_steps", "0", "--growth_steps", "7"],
            "`growth_steps` is 7; it needs `cross_entropy_steps` above 0",
        ),
        (["--straightness_weight", "-1"], "`straightness_weight` is -1.0; it must be at least 0"),
        (
            ["--config", "rocstories-mulan", "--straightness_weight", "0.1"],
            "`straightness_weight` is 0.1 with `model_type` 'mulan'; only 'nfdm' learns paths",
        ),
        (["--first_largest_time", "0"], "`first_largest_time` is 0.0; it must be in (0, 1]"),
        (
            "--config rocstories-nfdm --scheduler_config prediction=tokens".split(),
            "`scheduler_config` has `prediction` 'tokens' with `prediction_type` 'embedding'",
        ),
        (
            ["--known_texts", "suffix=0.5"],
            "`known_texts` has 'suffix'; a kind must be one of 'prefix', 'span', 'scattered'",
        ),
        (["--known_texts", "prefix=0.7", "span=0.5"], "the shares must add up to at most 1, not 1.25"),
        (["--known_texts", "prefix=-0.1"], "`known_texts[prefix]` is -0.1; it must be a number above 0"),
        (["--known_texts", "span=much"], "`known_texts[span]` is 'much'; it must be a number above 0"),
        (
            ["--known_texts", "span=0.5", "--cross_entropy_steps", "0", "--growth_steps", "0"],
            "`known_texts` is {'span': 0.5, 'scattered': 0.05}; it needs `cross_entropy_steps` above 0",
        ),
        (["--evaluation_draws", "3"], "`evaluation_draws` is 3; it must be an even number"),
        (["--model_type", "gpt"], "`model_type` is 'gpt'; it must be one of 'nfdm', 'mulan', 'diffusion_lm'"),
        (["--mixed_precision", "int8"], "`mixed_precision` is 'int8'"),
        (["--checkpoints_total_limit", "0"], "`checkpoints_total_limit` is 0"),
        (["--config", "storeis"], "one of the recipes"),
        (["--num_epochs", "3"], "unrecognized arguments: --num_epochs"),
    ],
)
def test_wrong_arguments_are_refused_by_name(argv, message, capsys):
    assert message in refusal(capsys, *argv)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"- a\n- b\n", "holds a list"),
        (b"a: [", "no valid YAML"),
        (b"\x93NUMPY\xff", "no valid YAML"),
        (b"3: 4", "unknown setting 3"),
        (b"[" * 5000, "no valid YAML"),
        (b"max_steps: !!python/object/apply:os.getpid []", "no valid YAML"),
    ],
)
def test_files_that_hold_no_settings(text, message, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=message):
        read_config(str(path), [])


def test_types_are_checked_in_python_too():
    with pytest.raises(ValueError, match="`batch_size` is '8x'; it must be of type int"):
        TrainingArguments(batch_size="8x")
    with pytest.raises(ValueError, match="`batch_size` is True"):
        TrainingArguments(batch_size=True)
    with pytest.raises(ValueError, match="`use_muon` is 'yes'"):
        TrainingArguments(use_muon="yes")


def test_differences_leave_out_what_a_continuation_may_change(data, tmp_path):
    mine, saved = arguments(data, tmp_path), arguments(data, tmp_path).to_dict()
    assert mine.differences(saved) == []
    assert set(FREE_ON_RESUME) <= set(saved)
    assert mine.differences(saved | {"output_dir": "elsewhere", "resume": "latest", "dataloader_workers": 3}) == []
    assert mine.differences(saved | {"batch_size": 9}) == ["batch_size: 9 in the checkpoint, 8 here"]


def test_recipes_for_absent_data_say_what_to_pass():
    with pytest.raises(ValueError, match="`--dataset train.jsonl --validation_file valid.jsonl`"):
        TrainingArguments.from_config("rocstories-nfdm").check_data()
    with pytest.raises(ValueError, match="The recipe is for the E2E data, .* `--dataset devset.csv`"):
        TrainingArguments.from_config("e2e").check_data()
    with pytest.raises(ValueError, match="`dataset` is 'stories', which is no local file"):
        TrainingArguments(validation_file="valid.jsonl").check_data()


PAPER = {
    "rocstories-nfdm": ("nfdm", "NFDM"),
    "rocstories-nfdm-additive": ("nfdm", "NFDM-Additive"),
    "rocstories-mulan": ("mulan", "MuLAN"),
    "rocstories-mulan-rescaled": ("mulan", "MuLAN-Rescaled"),
    "rocstories-diffusion-lm": ("diffusion_lm", "Diffusion-LM"),
}


@pytest.mark.parametrize("recipe", PAPER)
def test_recipes_are_the_paper(recipe):
    from diffusers_text_nfdm.model_card import variant_name
    from diffusers_text_nfdm.training.arguments import CONFIGS

    model_type, name = PAPER[recipe]
    settings = TrainingArguments.from_config(recipe)
    config = CONFIGS[model_type](**settings.model_config)
    assert settings.model_type == model_type and variant_name(config) == name
    shared = {
        "batch_size": 512, "max_length": 64, "min_word_count": 10, "max_steps": 800_000, "ema_decay": 0.9999,
        "learning_rate": 1e-4, "warmup_steps": 0, "clip_after_steps": 10_000, "sampling_steps": 2000,
    }  # fmt: skip
    assert {key: getattr(settings, key) for key in shared} == shared
    assert (config.embedding_dim, config.hidden_size, config.num_hidden_layers) == (128, 768, 12)
    assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == 0.1
    assert (config.time_sampler, config.num_time_buckets, config.prediction_type) == ("buckets", 100, "embedding")
    assert settings.use_muon == (model_type == "nfdm")
    if model_type == "nfdm":
        assert (settings.max_grad_norm, settings.muon_learning_rate, settings.muon_momentum) == (0.3, 2e-3, 0.95)
        assert (config.delta, config.objective, config.volatility) == (0.01, "bound", "free")
        assert (config.forward_num_layers, config.forward_hidden_size, config.forward_num_heads) == (5, 256, 8)
    else:
        assert settings.max_grad_norm == 1.5
    if model_type == "mulan":
        rescaled = name == "MuLAN-Rescaled"
        assert (config.gamma_min, config.gamma_max) == ((-4.6, 13.8) if rescaled else (-10, 10))
        assert config.objective == ("rescaled" if rescaled else "bound")
    if model_type == "diffusion_lm":
        assert config.objective == "rescaled" and not config.stabilized_prediction


def test_recipe_files_name_only_known_settings():
    names = [field.name for field in dataclasses.fields(TrainingArguments)]
    for recipe in recipe_names():
        assert set(yaml.safe_load(yaml.safe_dump(read_config(recipe, names)))) <= set(names)
