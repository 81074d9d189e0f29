"""What a run starts from."""

import torch

from diffusers_text_nfdm.time_samplers import SMALLEST_TERM
from diffusers_text_nfdm.training.preparation import TrainingData, build_model
from runs import arguments


def test_copies_are_found_whatever_follows_the_end(data):
    texts = TrainingData(arguments(data, None))
    ids = texts.train[:2]["input_ids"]
    end = int((ids[0] == texts.tokenizer.eos_token_id).nonzero()[0])
    littered, altered = ids[0].clone(), ids[1].clone()
    littered[end + 1 :] = 5
    altered[1] = texts.tokenizer.unk_token_id
    assert texts.count_copies(torch.stack([ids[0], littered, altered])) == 2


def test_the_bias_starts_at_the_log_frequencies_of_the_training_texts(data):
    settings = arguments(data, None, model_config={"prediction_type": "categorical"})
    texts = TrainingData(settings)
    model = build_model(settings, texts)
    counts = torch.bincount(texts.train[:]["input_ids"].flatten(), minlength=len(texts.tokenizer)) + 1
    assert torch.allclose(model.token_bias, torch.log(counts / counts.sum()))


def test_embeddings_start_from_cooccurrences_only_if_asked_for(data):
    texts = TrainingData(arguments(data, None))
    torch.manual_seed(0)
    plain = build_model(arguments(data, None), texts)
    torch.manual_seed(0)
    informed = build_model(arguments(data, None, cooccurrence_embeddings=True), texts)
    assert not torch.equal(plain.embeddings.weight, informed.embeddings.weight)
    lengths = informed.embeddings.weight.norm(dim=-1)
    assert torch.allclose(lengths, torch.full_like(lengths, plain.config.embedding_dim**0.5), rtol=1e-5)


def test_times_of_a_categorical_model_start_where_its_bound_is(data):
    settings = arguments(data, None, model_config={"prediction_type": "categorical", "volatility": "markovian"})
    texts = TrainingData(settings)
    model = build_model(settings, texts)
    t = (torch.arange(10) + 0.5) / 10
    terms = [model(texts.train[:64]["input_ids"].long(), t=t[k].expand(64)).diffusion.mean() for k in range(10)]
    # Seen at a few texts only, but over several orders of magnitude. What few of them have is not measured there.
    expected = torch.log(torch.stack(terms).detach() / model.config.max_length + SMALLEST_TERM)
    seen = torch.stack([model.time_sampler.log_terms.detach(), expected]).clamp_min(-2)
    assert seen[1].max() - seen[1].min() > 3
    assert torch.corrcoef(seen)[0, 1] > 0.95
    paper = build_model(arguments(data, None), texts)
    assert not paper.time_sampler.log_terms.any()
