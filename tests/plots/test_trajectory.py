"""The picture of a trajectory: what is shown, and in which colour."""

import io

import pytest
import torch
from PIL import Image
from tiny import make_pipeline, make_tokenizer, seeded

from diffusers_text_nfdm import NFDMTextPipelineOutput, WordTokenizer
from diffusers_text_nfdm.plots.film import COLUMNS, _place, film_trajectory
from diffusers_text_nfdm.plots.trajectory import UNSETTLED, plot_trajectory, settling_calls


def cells(figure):
    """Rows of `(word, face colour)` of every table, and the labels of the rows."""
    tables = [axes for axes in figure.axes if axes.get_yticks().size and axes.texts]
    rows = []
    for axes in tables:
        faces = [patch.get_facecolor()[:3] for patch in axes.patches]
        words = [text.get_text() for text in axes.texts]
        assert len(faces) == len(words)
        width = len(words) // len(axes.get_yticklabels())
        pairs = list(zip(words, faces))
        rows.append([pairs[start : start + width] for start in range(0, len(pairs), width)])
    return rows, [label.get_text() for label in tables[0].get_yticklabels()]


def test_settling_is_the_first_call_after_which_nothing_changes():
    trajectory = torch.tensor([[1, 1, 2, 3], [1, 2, 2, 3], [1, 1, 2, 4], [1, 1, 3, 3]])
    assert settling_calls(trajectory, torch.tensor([1, 1, 2, 5])).tolist() == [0, 2, 4, 4]


def test_table_shows_the_words_up_to_end_and_colours_the_settled_ones():
    tokenizer = make_tokenizer()
    tom, fox, ran = (tokenizer.convert_tokens_to_ids(word) for word in ("Tom", "fox", "ran"))
    final = torch.tensor([0, tom, ran, 1, 3])
    trajectory = torch.tensor([[0, fox, 3, 3, 3], [0, tom, fox, 1, 3], [0, tom, fox, 1, 3]])
    output = NFDMTextPipelineOutput(
        sequences=final[None], trajectory=trajectory[:, None], trajectory_times=torch.tensor([[1.0], [0.6], [0.3]])
    )
    ((rows,), labels) = cells(plot_trajectory(output, tokenizer))
    assert labels == ["t = 1.00", "t = 0.60", "t = 0.30", "text"]
    assert [[word for word, _ in row] for row in rows] == [
        ["<START>", "fox", "·", "·"],
        ["<START>", "Tom", "fox", "<END>"],
        ["<START>", "Tom", "fox", "<END>"],
        ["<START>", "Tom", "ran", "<END>"],
    ]
    grey = tuple(int(UNSETTLED[0][i : i + 2], 16) / 255 for i in (1, 3, 5))
    assert [[face == pytest.approx(grey) for _, face in row] for row in rows] == [
        [False, True, True, True],
        [False, False, True, False],
        [False, False, True, False],
        [False, False, False, False],
    ]
    start, tom_face, ran_face, end = (face for _, face in rows[-1])
    assert tom_face == end and len({start, tom_face, ran_face}) == 3


def test_long_texts_are_broken_into_tables_that_fit_a_page():
    words = [f"word{i}" for i in range(60)]
    tokenizer = WordTokenizer.from_texts([" ".join(words)], min_count=0, max_length=64)
    final = torch.tensor(tokenizer(" ".join(words), padding="max_length")["input_ids"])
    output = NFDMTextPipelineOutput(
        sequences=final[None],
        trajectory=final.expand(200, 1, -1),
        trajectory_times=torch.linspace(1, 0.01, 200)[:, None],
    )
    figure = plot_trajectory(output, tokenizer)
    tables, labels = cells(figure)
    assert len(tables) > 1 and len(labels) <= 11 and figure.get_figwidth() < 13
    assert [word for table in tables for word, _ in table[-1]] == ["<START>", *words, "<END>"]


def test_a_film_has_the_words_of_every_call_and_greys_those_that_change(tmp_path):
    tokenizer = make_tokenizer()
    tom, fox, ran = (tokenizer.convert_tokens_to_ids(word) for word in ("Tom", "fox", "ran"))
    final = torch.tensor([0, tom, ran, 1, 3])
    trajectory = torch.tensor([[0, tom, 3, fox, 3], [0, tom, fox, 1, 3], [0, tom, ran, 1, 3]])
    output = NFDMTextPipelineOutput(
        sequences=final[None],
        trajectory=trajectory[:, None],
        trajectory_times=torch.tensor([[1.0], [0.6], [0.3]]),
        calls=torch.tensor([3]),
    )
    since = settling_calls(trajectory, final)
    first, second, third = (
        [(word.letters, word.settled) for word in _place(tokens, tokenizer, since <= i)]
        for i, tokens in enumerate(trajectory)
    )
    assert first == [("Tom", True), ("·", False), ("fox", False)]
    assert second == [("Tom", True), ("fox", False)] and third == [("Tom", True), ("ran", True)]
    film_trajectory(output, tokenizer, tmp_path / "film.gif")
    with Image.open(tmp_path / "film.gif") as film:
        assert film.format == "GIF" and film.n_frames == 4 and film.info["loop"] == 0


def test_the_words_of_a_film_are_broken_into_lines():
    words = [f"word{i}" for i in range(30)]
    tokenizer = WordTokenizer.from_texts([" ".join(words)], min_count=0, max_length=64)
    placed = _place(torch.tensor(tokenizer(" ".join(words))["input_ids"]), tokenizer, torch.ones(64))
    assert [word.letters for word in placed] == words and placed[-1].line > 1
    assert all(word.column + len(word.letters) <= COLUMNS for word in placed)


@pytest.mark.parametrize("steps", [1, 2, 30])
def test_every_length_of_trajectory_makes_a_picture(steps):
    pipe = make_pipeline("mulan")
    output = pipe(num_samples=2, num_inference_steps=steps, generator=seeded(0), return_trajectory=True)
    for sample in range(2):
        file = io.BytesIO()
        plot_trajectory(output, pipe.tokenizer, sample).savefig(file)
        assert file.getvalue().startswith(b"\x89PNG")


def test_what_cannot_be_drawn_is_refused():
    pipe = make_pipeline("mulan")
    with pytest.raises(ValueError, match="call the pipeline with `return_trajectory=True`"):
        plot_trajectory(pipe(num_inference_steps=1), pipe.tokenizer)
    output = pipe(num_inference_steps=1, return_trajectory=True)
    with pytest.raises(ValueError, match="`sample` is 1; there are samples 0 to 0"):
        plot_trajectory(output, pipe.tokenizer, sample=1)
