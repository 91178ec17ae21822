#!/usr/bin/env python3
"""Makes tests/golden/losses.json: what PyTorch's Python computes for the losses of trainer/loss.h and the steps of
trainer/optimizer.h, written down from their papers, in double precision.

    python3 -m venv venv
    venv/bin/pip install torch==2.11.0          (as make_model_goldens.py says, --no-deps will do)
    venv/bin/python tests/golden/make_loss_goldens.py

The same version and seed give the same file. A log-probability that was not stored is null.
"""

import json
import pathlib

import torch

TORCH, SEED = "2.11.0", 20240608
ROWS, TOKENS = 5, 7
LENGTHS = (7, 4, 1, 6, 3)  # trained tokens of each row; they begin at its second position where there is room


def inputs():
    f64 = dict(dtype=torch.float64)
    mask = torch.zeros(ROWS, TOKENS, **f64)
    for row, length in enumerate(LENGTHS):
        begin = 1 if length < TOKENS else 0
        mask[row, begin:begin + length] = 1
    logprobs = -3 * torch.rand(ROWS, TOKENS, **f64)
    behaviour = logprobs + 0.4 * torch.randn(ROWS, TOKENS, **f64)
    return dict(
        mask=mask,
        logprobs=logprobs,
        behaviour_logprobs=behaviour.where(mask > 0, torch.nan),
        reference_logprobs=logprobs + 0.5 * torch.randn(ROWS, TOKENS, **f64),
        advantage=torch.randn(ROWS, 1, **f64) + 0.1 * torch.randn(ROWS, TOKENS, **f64),
        reward=torch.rand(ROWS, **f64),
        group_mean=torch.rand(ROWS, **f64),
    )


def objective(kind, x, options):
    """Of each token, to be maximised."""
    rho = torch.exp(x["logprobs"] - x["behaviour_logprobs"])
    if kind == "grpo":
        clipped = torch.clip(rho, 1 - options["clip_low"], 1 + options["clip_high"])
        gain = torch.minimum(rho * x["advantage"], clipped * x["advantage"])
    elif kind == "asymre":
        gain = (x["reward"] - (x["group_mean"] + options["baseline_shift"]))[:, None] * x["logprobs"]
    elif kind == "reinforce":
        gain = rho.detach().clip(max=options["largest_weight"]) * x["advantage"] * x["logprobs"]
    else:
        gain = x["logprobs"]
    if options["kl_weight"] > 0:
        inverse = torch.exp(x["reference_logprobs"]) / torch.exp(x["logprobs"])
        gain = gain - options["kl_weight"] * (inverse - 1 - torch.log(inverse))
    return gain


def loss_case(kind, averaging, x, **changed):
    options = dict(clip_low=0.2, clip_high=0.2, kl_weight=0.0, baseline_shift=-0.1, largest_weight=2.0) | changed
    x = x | dict(logprobs=x["logprobs"].clone().requires_grad_())
    gain = objective(kind, x, options)
    rows = [gain[row][x["mask"][row] > 0] for row in range(ROWS)]  # only what is trained on
    loss = -(torch.cat(rows).mean() if averaging == "token" else torch.stack([row.mean() for row in rows]).mean())
    loss.backward()
    return dict(kind=kind, averaging=averaging, options=options, value=loss.item(),
                gradient=x["logprobs"].grad.where(x["mask"] > 0, 0).tolist())


def adamw():
    options = dict(learning_rate=0.02, warmup_steps=5, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1,
                   max_gradient_norm=1.5)
    parameters = [torch.randn(3, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64)]
    begin = [parameter.flatten().tolist() for parameter in parameters]
    for parameter in parameters:
        parameter.requires_grad_()
    optimizer = torch.optim.AdamW(parameters, lr=options["learning_rate"], betas=(options["beta1"], options["beta2"]),
                                  eps=options["epsilon"], weight_decay=options["weight_decay"])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / options["warmup_steps"]))
    steps = []
    for step in range(20):
        for parameter in parameters:
            # The norms grow from well below the bound to well above it.
            parameter.grad = torch.randn(parameter.shape, dtype=torch.float64) * (step + 1) / 10
        gradients = [parameter.grad.flatten().tolist() for parameter in parameters]
        norm = torch.nn.utils.clip_grad_norm_(parameters, options["max_gradient_norm"])
        optimizer.step()
        schedule.step()
        steps.append(dict(gradients=gradients, norm=norm.item(),
                          parameters=[parameter.detach().flatten().tolist() for parameter in parameters]))
    return dict(options=options, shapes=[list(parameter.shape) for parameter in parameters], begin=begin, steps=steps)


def main():
    if torch.__version__.split("+")[0] != TORCH:
        raise SystemExit(f"torch is {torch.__version__}: the goldens are of {TORCH}")
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    x = inputs()
    cases = []
    for averaging in ("token", "sequence"):
        cases += [loss_case(kind, averaging, x) for kind in ("grpo", "asymre", "reinforce", "supervised")]
        cases.append(loss_case("grpo", averaging, x, clip_low=0.1, clip_high=0.5, kl_weight=0.3))
        cases.append(loss_case("asymre", averaging, x, kl_weight=0.3))
        cases.append(loss_case("reinforce", averaging, x, largest_weight=1.1, kl_weight=0.3))
    golden = dict(torch=TORCH, seed=SEED, input={name: tensor.tolist() for name, tensor in x.items()}, cases=cases,
                  adamw=adamw())
    # JSON has no NaN.
    text = json.dumps(golden).replace("NaN", "null")
    path = pathlib.Path(__file__).resolve().parent / "losses.json"
    path.write_text(text + "\n")
    print(path, len(text), "bytes")


if __name__ == "__main__":
    main()
