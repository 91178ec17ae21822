#!/usr/bin/env python3
"""Makes the golden models of tests/trainer/model: tiny, random, and what transformers computes with them.

    tests/golden/<name>/config.json, model.safetensors    as save_pretrained writes them, f32
    tests/golden/<name>/golden.safetensors                input_ids int64 [2, 28], logits f32 [2, 28, vocab]

No weight is left at a value that hides it: norms are not 1, biases not 0. Run it again only to add a model; the same
versions and seed give the same weights, and logits that differ by rounding between processors.

A Python 3.11 that can import both, on a machine with the libraries of CUDA 13, cuDNN and NCCL (no GPU is used):

    python3 -m venv venv
    venv/bin/pip install --no-deps torch==2.11.0
    venv/bin/pip install --no-deps nvidia-cufile==1.20.0.107 nvidia-cusparselt-cu13==0.8.0 nvidia-nvshmem-cu13==3.4.5
    venv/bin/pip install transformers==4.57.6 numpy==2.4.6 jinja2==3.1.6 networkx==3.6.1 sympy==1.14.0
    venv/bin/python tests/golden/make_model_goldens.py

Elsewhere `pip install torch==2.11.0 transformers==4.57.6 numpy` does, at several gigabytes.
"""

import os
import pathlib

import torch
import transformers
from safetensors.torch import save_file

TORCH, TRANSFORMERS, SEED = "2.11.0", "4.57.6", 20240607
FOLDER = pathlib.Path(__file__).resolve().parent
SIZES = dict(vocab_size=48, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128, bos_token_id=1, eos_token_id=2)

# With 32 original positions and theta 100 the four frequencies make 5.1, 1.6, 0.5 and 0.2 turns: one above the band of 1 to 4,
# one in it, two below.
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
MODELS = {
    "llama": transformers.LlamaConfig(rope_theta=100.0, rope_scaling=LLAMA3, rms_norm_eps=1e-5, **SIZES),
    "qwen2": transformers.Qwen2Config(rope_theta=10000.0, tie_word_embeddings=True, **SIZES),
    "qwen3": transformers.Qwen3Config(rope_theta=1000000.0, tie_word_embeddings=False, head_dim=12, **SIZES),
}


def randomize(model):
    for name, weight in model.named_parameters():
        if name.endswith("norm.weight"):
            torch.nn.init.normal_(weight, 1.0, 0.3)
        elif name.endswith("bias"):
            torch.nn.init.normal_(weight, 0.0, 0.5)
        else:
            torch.nn.init.normal_(weight, 0.0, 0.2)


@torch.no_grad()
def make(name, config):
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.float32).eval()
    randomize(model)
    folder = FOLDER / name
    model.save_pretrained(folder)
    os.remove(folder / "generation_config.json")
    golden = {"input_ids": torch.randint(0, config.vocab_size, (2, 28))}
    golden["logits"] = model(golden["input_ids"]).logits
    if name == "llama":  # The same weights under linear scaling, so that it needs no model of its own.
        linear = transformers.LlamaConfig(rope_theta=100.0, rope_scaling=dict(rope_type="linear", factor=4.0),
                                          rms_norm_eps=1e-5, **SIZES)
        linear._attn_implementation = "eager"
        other = transformers.AutoModelForCausalLM.from_config(linear).eval()
        other.load_state_dict(model.state_dict())
        golden["logits_with_linear_rope_of_factor_4"] = other(golden["input_ids"]).logits
    save_file({key: value.contiguous() for key, value in golden.items()}, folder / "golden.safetensors",
              metadata=dict(torch=TORCH, transformers=TRANSFORMERS, seed=str(SEED)))
    print(name, model.num_parameters(), "parameters, largest logit", float(golden["logits"].abs().max()))


def main():
    for module, version in ((torch, TORCH), (transformers, TRANSFORMERS)):
        if module.__version__.split("+")[0] != version:
            raise SystemExit(f"{module.__name__} is {module.__version__}: the goldens are of {version}")
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    for name, config in MODELS.items():
        make(name, config)


if __name__ == "__main__":
    main()
