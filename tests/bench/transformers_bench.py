"""What training_bench measures, by transformers and PyTorch eager: the same weights, batch, lengths, threads and precision.

  transformers_bench.py MODEL_FOLDER generate|train SECONDS THREADS ROWS PROMPT ANSWER       one line of JSON
"""

import json
import sys
import time

import torch
import transformers


def main():
    folder, verb, seconds, threads, rows, prompt, answer = sys.argv[1], sys.argv[2], float(sys.argv[3]), *map(int, sys.argv[4:])
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    vocab = model.config.vocab_size
    if verb == "generate":
        model.eval()
        ids = torch.randint(0, vocab, (rows, prompt))
        options = dict(attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, top_p=1.0, temperature=1.0, min_new_tokens=answer,
                       max_new_tokens=answer, pad_token_id=0, eos_token_id=None, use_cache=True)

        def round_of_work():
            with torch.no_grad():
                model.generate(ids, **options)
            return rows * answer
    else:
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, betas=(0.9, 0.95), weight_decay=0.0)
        ids = torch.randint(0, vocab, (rows, prompt + answer))
        behaviour = torch.full((rows, answer), -3.0)
        advantage = torch.tensor([1.0 if row % 2 == 0 else -1.0 for row in range(rows)])[:, None]

        def round_of_work():
            # The answers' logits only, as trainers ask for them.
            logits = model(ids[:, :-1], logits_to_keep=answer, use_cache=False).logits
            logprobs = torch.log_softmax(logits, -1).gather(-1, ids[:, prompt:, None]).squeeze(-1)
            ratio = (logprobs - behaviour).exp()
            loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return rows * (prompt + answer)

    round_of_work()
    tokens, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        tokens += round_of_work()
    print(json.dumps({"tokens_per_second": tokens / (time.perf_counter() - began)}))


if __name__ == "__main__":
    main()
