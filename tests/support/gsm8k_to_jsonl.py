#!/usr/bin/env python3
"""GSM8K model solutions as trajectories, for `replayctl import`.

    gsm8k_to_jsonl.py gsm8k_model_solutions.jsonl | replayctl import gsm8k --create

Each question becomes a group of 4, one rollout from each of the four models, which stand for policy versions 1-4. A token is a
byte of the UTF-8 text, the question followed by the solution; the loss mask is 1 on the solution; reward 1 if it is correct.
"""

import json
import sys

MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")  # policy versions 1, 2, 3, 4


def trajectories(question_index, row):
    """The four trajectories of one line of the source, as dictionaries."""
    prompt = list(row["question"].encode())
    for index, model in enumerate(MODELS):
        solution = list(row[model]["solution"].encode())
        length = len(prompt) + len(solution)
        is_correct = row[model]["is_correct"]
        yield {
            "trajectory_id": f"gsm8k-{question_index}-{model}",
            "group_id": f"gsm8k-{question_index}",
            "group_size": len(MODELS),
            "index_in_group": index,
            "token_ids": prompt + solution,
            "prompt_length": len(prompt),
            "segments": [[0, len(prompt), "user", False]] + ([[len(prompt), length, "assistant", True]] if solution else []),
            "loss_mask": [0] * len(prompt) + [1] * len(solution),
            "version_segments": [[len(prompt), length, index + 1]] if solution else [],
            "reward": 1.0 if is_correct else 0.0,
            "correct": "yes" if is_correct else "no",
            "status": "completed",
            "source": "gsm8k",
            "dataset_index": question_index,
            "tags": {"model": model},
        }


def convert(lines):
    for question_index, line in enumerate(lines):
        for trajectory in trajectories(question_index, json.loads(line)):
            yield json.dumps(trajectory, separators=(",", ":")) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("--"):
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as source:
        sys.stdout.writelines(convert(source))
