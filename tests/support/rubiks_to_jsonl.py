#!/usr/bin/env python3
"""Real RL groups (Rubik's cube, Llama-3 token ids) as trajectories, for `replayctl import`.

    rubiks_to_jsonl.py rubiks_groups.jsonl | replayctl import rubiks --create

Each line becomes a group. Of the source's masks, -100 (no loss) becomes 0 and a token id 1; scores become rewards. Whether a
rollout solved its cube the source does not say, so `correct` stays unknown. The chat messages go along as opaque bytes.
"""

import base64
import json
import sys

NO_LOSS = -100


def trajectories(group_index, row):
    """The trajectories of one line of the source, as dictionaries."""
    for index, (tokens, masks) in enumerate(zip(row["tokens"], row["masks"], strict=True)):
        loss_mask = [int(mask != NO_LOSS) for mask in masks]
        action = row["parsed_actions"][index]
        yield {
            "trajectory_id": f"rubiks-{group_index}-{index}",
            "group_id": f"rubiks-{group_index}",
            "group_size": len(row["tokens"]),
            "index_in_group": index,
            "token_ids": tokens,
            "prompt_length": loss_mask.index(1) if 1 in loss_mask else len(tokens),
            "loss_mask": loss_mask,
            "reward": row["scores"][index],
            "status": "failed_parse" if action is None else "completed",
            "source": "rubiks",
            "dataset_index": row["seed"],
            "tags": {} if action is None else {"action": action},
            "opaque_base64": base64.b64encode(json.dumps(row["messages"][index]).encode()).decode(),
        }


def convert(lines):
    for group_index, line in enumerate(lines):
        for trajectory in trajectories(group_index, json.loads(line)):
            yield json.dumps(trajectory, separators=(",", ":")) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("--"):
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as source:
        sys.stdout.writelines(convert(source))
