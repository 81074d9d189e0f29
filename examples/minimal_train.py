"""A whole training loop in forty lines: stories, a tokenizer, a small NFDM, a checkpoint, samples.

python examples/minimal_train.py runs/minimal 300      # folder to save to, optimizer steps
"""

import sys

import torch

from diffusers_text_nfdm import DraftVerifyScheduler, NFDMConfig, NFDMModel, NFDMTextPipeline, WordTokenizer
from diffusers_text_nfdm.stories import load_stories


folder = sys.argv[1] if len(sys.argv) > 1 else "runs/minimal"
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 300
torch.manual_seed(0)
torch.set_flush_denormal(True)

texts = load_stories(num_train=2_000, num_validation=0, num_test=0)["train"]["text"]
tokenizer = WordTokenizer.from_texts(texts, min_count=0, max_length=64)
input_ids = tokenizer(list(texts), padding="max_length", return_tensors="pt").input_ids

config = NFDMConfig(
    vocab_size=len(tokenizer), max_length=64, pad_token_id=tokenizer.pad_token_id,
    bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    predictor="two_stream", prediction_type="categorical", decoder="gaussian", clock="ramp:8", embedding_dim=32,
    hidden_size=96, num_hidden_layers=2, num_attention_heads=4, intermediate_size=384, hidden_dropout_prob=0.0,
    delta=0.1, volatility="markovian", forward_hidden_size=32, forward_num_layers=1, forward_num_heads=2,
    forward_intermediate_size=64, forward_time_dim=32,
)  # fmt: skip
model = NFDMModel(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps + 1)

for step in range(1, steps + 1):
    batch = input_ids[torch.randint(len(input_ids), (16,))]
    output = model(batch, next_token_weight=1.0)  # the bound, and the next-token loss of the clean stream
    output.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
    if step % 50 == 0 or step == steps:
        bound, next_token = output.bound.mean().item(), output.next_token.mean().item()
        print(f"step {step}: bound {bound:.1f} nats per text, next-token loss {next_token:.1f}", flush=True)

pipe = NFDMTextPipeline(model, tokenizer, DraftVerifyScheduler(min_p=0.02))
pipe.save_pretrained(folder)
pipe = NFDMTextPipeline.from_pretrained(folder)
print(*pipe(num_samples=4, generator=torch.Generator().manual_seed(0)).texts, sep="\n")
