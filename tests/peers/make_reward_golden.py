#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What TRL's RewardTrainer and KTOTrainer make of fixed pairs.

    python3 tests/peers/make_reward_golden.py

Writes tests/golden/testdata/reward/golden.json: ten steps of each in float32
on the CPU, on the pairs and the base of make_dpo_golden.py; "score" is the head
with which the reward model begins. Needs trl 1.16.0, torch 2.15.0 and
transformers 5.24.0.
"""

import json
import tempfile

import torch
from datasets import Dataset
from make_dpo_golden import (MODEL, ROOT, SETTINGS, made_pairs, recorder, steps,
                             text, words)
from transformers import (AutoModelForCausalLM,
                          AutoModelForSequenceClassification)
from trl import KTOConfig, KTOTrainer, RewardConfig, RewardTrainer

OUT = ROOT / "tests/golden/testdata/reward"


def reward_model():
    """The base with a head of its own; pads are 0."""
    torch.manual_seed(3)
    model = AutoModelForSequenceClassification.from_pretrained(
        MODEL, num_labels=1, dtype=torch.float32)
    torch.nn.init.normal_(model.score.weight, std=0.1)
    model.config.pad_token_id = 0
    return model


def reward(pairs, **settings):
    with tempfile.TemporaryDirectory() as folder:
        trainer = recorder(RewardTrainer)(
            model=reward_model(), processing_class=words(),
            args=RewardConfig(output_dir=folder, **SETTINGS, **settings),
            train_dataset=Dataset.from_list(
                [{k: text(v) for k, v in pair.items()} for pair in pairs]))
        for pair, row in zip(pairs, trainer.train_dataset):
            assert row["chosen_ids"] == pair["prompt"] + pair["chosen"], row
        return steps(trainer, ["accuracy", "margin"])


def scores(pairs):
    """Of the chosen texts, before training."""
    model = reward_model().eval()
    with torch.no_grad():
        return [model(torch.tensor([pair["prompt"] + pair["chosen"]]))
                .logits.item() for pair in pairs]


def kto(pairs, **settings):
    rows = [{"prompt": text(pair["prompt"]),
             "completion": text(pair["chosen" if i % 3 else "rejected"]),
             "label": i % 3 != 0} for i, pair in enumerate(pairs)]
    with tempfile.TemporaryDirectory() as folder:
        trainer = recorder(KTOTrainer)(
            model=AutoModelForCausalLM.from_pretrained(
                MODEL, dtype=torch.float32),
            processing_class=words(),
            args=KTOConfig(output_dir=folder, precompute_ref_log_probs=True,
                           **SETTINGS, **settings),
            train_dataset=Dataset.from_list(rows))
        for pair, row in zip(pairs, trainer.train_dataset):
            assert row["prompt_ids"] == pair["prompt"], row
        return steps(trainer, ["kl", "rewards/chosen", "rewards/rejected",
                               "logps/chosen", "logps/rejected"])


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    pairs = list(made_pairs())
    golden = {
        "score": reward_model().score.weight[0].tolist(),
        "scores": scores(pairs),
        "reward": reward(pairs),
        "centred": reward(pairs, center_rewards_coefficient=0.1),
        "kto": kto(pairs, beta=0.2, undesirable_weight=1.5),
        "apo": kto(pairs, beta=0.2, loss_type="apo_zero_unpaired"),
    }
    (OUT / "golden.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
