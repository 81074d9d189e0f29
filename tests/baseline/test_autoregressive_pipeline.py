"""Ancestral sampling from the autoregressive baseline, and its checkpoints."""

import itertools
from collections import Counter

import pytest
import torch
from hub_server import card_metadata
from tiny import make_tokenizer, seeded
from tiny_baseline import END, PAD, START, make_baseline, make_pipeline, texts
from transformers import AutoModel

from diffusers_text_nfdm import AutoregressiveModel, AutoregressivePipeline
from diffusers_text_nfdm.baseline.pipeline_autoregressive import draw_tokens


def test_sampling_equals_that_without_a_cache():
    pipe, generators = make_pipeline(), [seeded(seed) for seed in range(6)]
    output = pipe(num_samples=6, generator=generators)
    model = pipe.model.eval()
    for seed, sequence in enumerate(output.sequences):
        uniforms = torch.rand(7, generator=seeded(seed), dtype=torch.float64)
        ids = [START]
        for uniform in uniforms:
            logits, _ = model.token_logits(torch.tensor([ids]))
            ids.append(draw_tokens(logits[:, -1], uniform[None], 1.0).item())
            if ids[-1] == END:
                break
        assert sequence.tolist() == ids + [PAD] * (8 - len(ids))
    assert len({tuple(row.tolist()) for row in output.sequences}) > 1


def test_a_sample_does_not_depend_on_its_batch():
    pipe = make_pipeline()
    together = pipe(num_samples=7, generator=seeded(3))
    apart = pipe(num_samples=7, batch_size=2, generator=seeded(3))
    assert torch.equal(together.sequences, apart.sequences) and together.texts == apart.texts
    alone = pipe(num_samples=1, generator=[seeded(5)])
    assert torch.equal(pipe(num_samples=3, generator=[seeded(s) for s in (4, 5, 6)]).sequences[1:2], alone.sequences)


def test_samples_have_the_probabilities_of_the_model():
    """Chi-square over all texts of up to two words."""
    model = make_baseline(max_length=4)
    pipe = AutoregressivePipeline(model, make_tokenizer())
    pipe.set_progress_bar_config(disable=True)
    rows = [(*body, END) for length in range(3) for body in itertools.product((2, 4, 5), repeat=length)]
    rows += itertools.product((2, 4, 5), repeat=3)
    ids, number = texts(*rows, length=4), 8000
    probabilities = torch.exp(-model(ids).bound)
    drawn = pipe(num_samples=number, batch_size=2000, generator=seeded(0)).sequences
    counts = Counter(tuple(row) for row in drawn.tolist())
    assert set(counts) <= {tuple(row) for row in ids.tolist()}
    observed = torch.tensor([counts[tuple(row)] for row in ids.tolist()]).double()
    common = probabilities * number > 5
    expected = torch.cat([probabilities[common], 1 - probabilities[common].sum()[None]]) * number
    observed = torch.cat([observed[common], number - observed[common].sum()[None]])
    freedom = len(expected) - 1
    statistic = ((observed - expected) ** 2 / expected.clamp_min(1)).sum().item()
    assert freedom > 10 and statistic < freedom + 4 * (2 * freedom) ** 0.5


def test_temperature():
    logits = torch.log(torch.tensor([[0.1, 0.2, 0.7, 0.0]], dtype=torch.float64))
    grid = ((torch.arange(1000, dtype=torch.float64) + 0.5) / 1000)[:, None]
    for temperature in (1.0, 0.5, 2.0):
        expected = torch.softmax(logits[0] / temperature, -1)
        drawn = torch.cat([draw_tokens(logits, uniform, temperature) for uniform in grid])
        assert torch.allclose(torch.bincount(drawn, minlength=4).double() / 1000, expected, atol=2e-3)
    assert draw_tokens(logits, torch.tensor([0.05]), 0).item() == 2
    # A number next to 1 does not reach the token of probability zero, nor a tiny temperature an overflow.
    assert draw_tokens(logits, torch.tensor([1 - 2**-53], dtype=torch.float64), 1.0).item() == 2
    assert draw_tokens(logits, torch.tensor([0.05], dtype=torch.float64), 1e-300).item() == 2


def test_calls_are_counted_and_end_with_the_last_text():
    pipe = make_pipeline()
    with torch.no_grad():
        pipe.model.token_bias[END] = 100.0
    output = pipe(num_samples=3, generator=seeded(0))
    assert output.num_function_evaluations == 1 and output.sequences[:, 1].tolist() == [END] * 3
    with torch.no_grad():
        pipe.model.token_bias[END] = -1000.0
    output = pipe(num_samples=3, generator=seeded(0))
    assert output.num_function_evaluations == 7 and not (output.sequences == PAD).any()
    assert all(len(text.split()) >= 1 for text in output.texts)
    # Of texts whose beginnings differ in length, the most that one of them took.
    ids, known = torch.full((2, 8), 5), torch.arange(8) < torch.tensor([[3], [7]])
    ids[:, 0] = START
    output = pipe(num_samples=2, input_ids=ids, known=known, generator=seeded(0))
    assert output.calls.tolist() == [5, 1] and output.num_function_evaluations == 5
    ids[0, 3:] = END
    with torch.no_grad():
        pipe.model.token_bias[END] = 100.0
    output = pipe(num_samples=2, input_ids=ids, known=known, generator=seeded(0))
    assert output.calls.tolist() == [1, 1] and output.num_function_evaluations == 1


def given(input_ids):
    """Options by which the first three tokens of each row are known."""
    return {"input_ids": input_ids, "known": torch.arange(input_ids.shape[1]).expand(input_ids.shape) < 3}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_samples": 0}, "`num_samples` is 0; it must be an integer of at least 1"),
        ({"batch_size": 1.5}, "`batch_size` is 1.5"),
        ({"num_samples": 2, "generator": [seeded(0)]}, "`generator` is a list of 1 for 2 samples"),
        ({"generator": 3}, "`generator` has 3; it must be a `torch.Generator`"),
        ({"temperature": -1.0}, "`temperature` is -1.0; it must be at least 0"),
        (given(torch.full((2, 8), 4.7)), "`input_ids` is of type torch.float32; token ids must be integers"),
        (given(torch.full((2, 8), 99)), "`input_ids` has values from 99 to 99; token ids must be in"),
        (
            given(torch.full((2, 8), 5)),
            "`input_ids` has rows that begin with \\[5\\]; every row must begin with START",
        ),
        (given(torch.zeros(2, 7).long()), "`input_ids` has shape \\(2, 7\\); it must be \\(num_samples, 8\\)"),
    ],
)
def test_bad_calls_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make_pipeline()(**options)


def test_saved_and_loaded_it_writes_the_same_texts(tmp_path):
    pipe = make_pipeline(torch.float32)
    pipe.save_pretrained(tmp_path / "saved")
    loaded = AutoregressivePipeline.from_pretrained(tmp_path / "saved")
    loaded.set_progress_bar_config(disable=True)
    for one, other in zip(pipe.model.parameters(), loaded.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert loaded(num_samples=4, generator=seeded(1)).texts == pipe(num_samples=4, generator=seeded(1)).texts
    assert isinstance(AutoModel.from_pretrained(tmp_path / "saved" / "model"), AutoregressiveModel)


def test_the_card_tells_what_it_is_and_its_code_runs(tmp_path, capsys):
    make_pipeline(torch.float32).save_pretrained(tmp_path / "saved", repo_id=str(tmp_path / "saved"))
    card = (tmp_path / "saved" / "README.md").read_text()
    metadata, errors = card_metadata(card)
    assert errors == [] and "autoregressive-baseline" in metadata["tags"] and "text-diffusion" not in metadata["tags"]
    assert "# Autoregressive for text" in card and "The likelihood is exact" in card and "$" not in card
    (code,) = card.split("```python\n")[1:]
    exec(code.split("```")[0], {})
    assert capsys.readouterr().out.startswith("[")
