"""MAUVE against mauve-text called with texts."""

import numpy as np
import pytest
from mauve import compute_mauve

from diffusers_text_nfdm.metrics import MauveSettings, mauve, mauve_from_features


SETTINGS = MauveSettings(seeds=(25, 26, 27), num_buckets=4, max_text_length=40)


@pytest.fixture(scope="module")
def sets(grammar):
    stories = grammar.sample(80, seed="mauve")
    # Samples of another distribution: cut short.
    return [story[:40] for story in stories[:40]], stories[40:]


def test_mean_and_deviation_of_the_library_that_reads_the_texts_itself(judge, judge_folder, sets):
    expected = [
        compute_mauve(
            p_text=sets[0],
            q_text=sets[1],
            featurize_model_name=str(judge_folder),
            max_text_length=40,
            num_buckets=4,
            seed=seed,
            batch_size=3,
        ).mauve
        for seed in SETTINGS.seeds
    ]
    result = mauve(*sets, judge, SETTINGS)
    assert result["mauve_by_seed"] == pytest.approx(expected, rel=1e-6)
    assert result["mauve"] == pytest.approx(np.mean(expected))
    assert result["mauve_sd"] == pytest.approx(np.std(expected, ddof=1))
    assert 0 < result["mauve"] < 0.9
    assert result["settings"]["num_buckets"] == 4 and result["settings"]["judge"] == str(judge_folder)
    assert result["settings"]["seeds"] == [25, 26, 27] and result["settings"]["texts"] == 40


def test_a_set_is_itself(judge, sets):
    assert mauve(sets[1], sets[1], judge, SETTINGS)["mauve"] > 0.99


@pytest.mark.parametrize(
    ("samples", "references", "said"),
    [
        (40, 39, "40 texts and `references` 39"),
        (9, 9, "at least 10"),
        (1, 1, "at least 10"),
        (0, 40, "`samples` has 0 texts"),
    ],
)
def test_numbers_of_texts_that_give_no_value(judge, sets, samples, references, said):
    with pytest.raises(ValueError, match=said):
        mauve(sets[1][:samples], sets[1][:references], judge, SETTINGS)


def test_lower_case_against_case_is_refused(judge, sets):
    with pytest.raises(ValueError, match="`samples` and `references` are written in different forms"):
        mauve([text.lower() for text in sets[1]], sets[1], judge, SETTINGS)


def test_bad_settings_and_features_are_named():
    with pytest.raises(ValueError, match="`seeds` is empty"):
        MauveSettings(seeds=())
    with pytest.raises(ValueError, match="`num_buckets` is 1"):
        MauveSettings(num_buckets=1)
    with pytest.raises(ValueError, match="12 samples and 11 references"):
        mauve_from_features(np.eye(12), np.eye(12)[:11])
