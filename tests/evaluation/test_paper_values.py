"""The paper's numbers."""

import hashlib
import importlib
import json
import sys
from pathlib import Path

import pytest
import yaml

from diffusers_text_nfdm.metrics.scoring import METRICS


EVALUATION = Path(__file__).parents[2] / "evaluation"
# A script took every cell of the `tabular`s out of the paper's LaTeX source, without a look at `paper_values.yaml`, as
# (label of the table, row in lower case with its setting, column, value, error), "-" where there is none, and this is
# the SHA-256 of their sorted list as JSON.
SECOND_READING = "ff0b874a724c1b33659d87eaed9dae38fd7a56f132e2147d9bbf09a13bcfb515"


@pytest.fixture(scope="module")
def paper_values():
    sys.path.insert(0, str(EVALUATION))
    yield importlib.import_module("paper_values")
    sys.path.remove(str(EVALUATION))


def test_the_numbers_are_those_of_a_second_reading(paper_values):
    cells = []
    for table in paper_values.PUBLISHED.values():
        for row in table.rows:
            name = row.row.lower() + (f"/{row.setting}" if row.setting else "")
            for column, value in row.values.items():
                column = "ppl" if column == "mean_text_perplexity" else column
                number, error, *_ = (*value.printed.rstrip(")").split(" ("), "-")
                cells.append((table.label, name, column, number, error))
    assert len(cells) == len(set(cells)) == 158
    assert hashlib.sha256(json.dumps(sorted(cells)).encode()).hexdigest() == SECOND_READING


def test_every_row_was_sampled_as_its_caption_and_the_text_say(paper_values):
    def samplings(label):
        rows = paper_values.PUBLISHED[label].rows
        return {(row.sampling and row.sampling.name, row.setting) for row in rows if row.row != "Dataset"}

    fractions = ("1.0", "0.8", "0.5", "snr")
    assert samplings("likelihoodtable") == {(None, None)}
    for label in ("discrete sampling", "nfdm vs nfdm-AdaLN"):
        assert samplings(label) == {("chain:2000:noise_fraction=0.8", None)}
    assert samplings("big sigmast table") == {(f"chain:2000:noise_fraction={one}", one) for one in fractions}
    assert samplings("SDE ODE table") == {("sde:2000", "sde"), ("ode:2000", "ode")}
    assert samplings("SDE 64") == {("star:64", "64"), ("star:32", "32")}
    assert samplings("sigmast 64") == {("sde:64", "64"), ("sde:32", "32")}
    renamed = {row.row: row.model for table in paper_values.PUBLISHED.values() for row in table.rows}
    assert {name: model for name, model in renamed.items() if name != model} == {
        "GPT-J": "Autoregressive", "Timestep Embeddings": "NFDM-Additive", "Adaptive LayerNorm": "NFDM",
    }  # fmt: skip


def test_every_table_says_what_may_be_compared_with_it(paper_values):
    tables = paper_values.PUBLISHED.values()
    assert [table.number for table in tables] == [1, 2, 3, 4, 5, 6, 7]
    for table in tables:
        assert table.compare and "\n" not in table.compare
        assert set(table.columns) <= {*METRICS, "elbo"}
    protocol = yaml.safe_load(paper_values.FILE.read_text(encoding="utf-8"))["protocol"]
    assert protocol["judge"] == "gpt2-large" and protocol["samples"] is None, "the text does not say how many"


def test_a_value_has_a_number_and_an_error(paper_values):
    values = [paper_values.PublishedValue(printed) for printed in ("26.44 (0.22)", "3.05 (-)", "0.200", "-")]
    assert [(one.value, one.error) for one in values] == [(26.44, 0.22), (3.05, None), (0.2, None), (None, None)]
    with pytest.raises(ValueError, match="A published value is '26,44'"):
        paper_values.PublishedValue("26,44")


def test_the_main_table_has_the_rows_of_the_table_of_fractions(paper_values):
    # The caption says star sampling, which is the fraction 1.
    main, fractions = (paper_values.PUBLISHED[label].rows for label in ("discrete sampling", "big sigmast table"))
    values = {(row.row, row.setting): row.values for row in fractions}
    shared = [row for row in main if (row.row, "0.8") in values]
    assert [row.row for row in shared] == ["Diffusion-LM", "MuLAN-Rescaled", "NFDM"]
    assert all(row.values == values[row.row, "0.8"] != values[row.row, "1.0"] for row in shared)


def test_claims_of_the_text_that_its_tables_contradict(paper_values):
    def column(label, name):
        return {(row.row, row.setting): row.values[name].value for row in paper_values.PUBLISHED[label].rows}

    perplexity, memorization = (column("big sigmast table", name) for name in ("mean_text_perplexity", "memorization"))
    for model in ("MuLAN-Rescaled", "NFDM"):
        assert perplexity[model, "0.5"] > perplexity[model, "0.8"] > perplexity[model, "1.0"]
        assert memorization[model, "0.5"] < memorization[model, "1.0"]
    # Diffusion-LM's SDE is thirty times worse than its chain; so the captions of the tables of few steps are right.
    sde, few = column("SDE ODE table", "mean_text_perplexity"), column("sigmast 64", "mean_text_perplexity")
    assert few["Diffusion-LM", "64"] > sde["Diffusion-LM", "sde"] > 30 * perplexity["Diffusion-LM", "1.0"]
    chain = column("SDE 64", "mean_text_perplexity")
    assert few["NFDM", "64"] > chain["NFDM", "64"] and few["NFDM", "32"] < chain["NFDM", "32"]
    (nfdm,) = (row.values["elbo"] for row in paper_values.PUBLISHED["likelihoodtable"].rows if row.row == "NFDM")
    assert nfdm.value - column("likelihoodtable", "elbo")["GPT-J", None] > nfdm.error
    diversity = column("discrete sampling", "diversity")
    assert diversity["NFDM", None] < 0.6 * diversity["Dataset", None]
