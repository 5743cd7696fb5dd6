#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What TRL makes of fixed pairs: tests/golden/testdata/dpo.

    python3 tests/peers/make_dpo_golden.py

Writes golden.json and an adapter: ten steps of TRL's DPOTrainer on
tests/golden/testdata/llama in float32 on the CPU (all weights, with reference
log-probabilities computed before; a LoRA adapter, switched off for the
reference), the formulas of its ORPOTrainer and CPOTrainer on some numbers, and
the tokens of rows of each form under the samples' tokenizer. Needs trl 1.16.0,
torch 2.11.0, transformers 5.23.0 and peft 0.21.2.
"""

import json
import pathlib
import tempfile
import types

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import SequentialSampler
from transformers import (AutoModelForCausalLM, AutoTokenizer,
                          PreTrainedTokenizerFast)
from trl import DPOConfig, DPOTrainer
from trl.experimental.cpo import CPOTrainer
from trl.experimental.orpo import ORPOTrainer

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/golden/testdata/llama"
OUT = ROOT / "tests/golden/testdata/dpo"
VOCAB, EOS = 512, 2
STEPS, PAIRS_A_STEP = 10, 2
METRICS = ["rewards/chosen", "rewards/rejected", "rewards/accuracies",
           "rewards/margins", "logps/chosen", "logps/rejected"]
SETTINGS = dict(
    per_device_train_batch_size=PAIRS_A_STEP, max_steps=STEPS,
    lr_scheduler_type="constant", warmup_steps=0, weight_decay=0.0,
    max_grad_norm=0.0, learning_rate=1e-3, bf16=False, use_cpu=True,
    gradient_checkpointing=False, logging_steps=1, report_to=[],
    save_strategy="no", disable_tqdm=True)
# Of each form that TRL knows.
USER = {"role": "user", "content": "Who lives behind the mill?"}
GOOD = {"role": "assistant", "content": "The miller does."}
BAD = {"role": "assistant", "content": "No idea, sorry"}
ROWS = [
    {"prompt": "The miller lives", "chosen": " behind the mill.",
     "rejected": " at the inn"},
    {"chosen": "Count: 1, 2, 3", "rejected": "Count: 1, 2, 4"},
    {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
    {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
    {"prompt": [{"role": "system", "content": "Be short."}, USER],
     "chosen": [GOOD], "rejected": [BAD]},
]


def words():
    """A tokenizer whose token i is the word ti."""
    tokenizer = Tokenizer(models.WordLevel(
        {word(i): i for i in range(VOCAB)}, unk_token=word(0)))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer,
                                   eos_token=word(EOS), pad_token=word(0))


def word(i):
    # Special ones are found within words.
    return {0: "<pad>", EOS: "<eos>"}.get(i, "t%d" % i)


def made_pairs():
    """Prompt, chosen and rejected ids; completions end with eos."""
    state = 12345

    def ids(count):
        nonlocal state
        made = []
        for _ in range(count):
            state = (1103515245 * state + 12345) % 2**31
            made.append(3 + (state >> 8) % (VOCAB - 3))
        return made

    for i in range(STEPS * PAIRS_A_STEP):
        yield {"prompt": ids(2 + i % 5), "chosen": ids(3 + i * 7 % 6) + [EOS],
               "rejected": ids(2 + i * 5 % 7) + [EOS]}


def text(ids):
    # A space in front, as a completion continues its prompt.
    return "".join(" " + word(i) for i in ids)


def recorder(trainer):
    """A trainer that takes rows in their order and keeps each loss."""
    class Recorder(trainer):
        def __init__(self, *args, **kwargs):
            self.losses = []
            super().__init__(*args, **kwargs)

        def _get_train_sampler(self, dataset=None):
            return SequentialSampler(dataset or self.train_dataset)

        def compute_loss(self, *args, **kwargs):
            loss = super().compute_loss(*args, **kwargs)
            self.losses.append(loss.item())
            return loss

    return Recorder


def steps(trainer, names):
    """Trains, and returns what the trainer has told of each step."""
    trainer.train()
    logs = [log for log in trainer.state.log_history if "loss" in log]
    assert len(logs) == len(trainer.losses) == STEPS
    return {"losses": trainer.losses,
            "metrics": {name: [log.get(name) for log in logs]
                        for name in names}}


def save_adapter(model):
    folder = OUT / "adapter"
    model.save_pretrained(folder)
    (folder / "README.md").unlink()
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    config["base_model_name_or_path"] = None
    path.write_text(json.dumps(config, indent=2) + "\n")
    (folder / "adapter_model.safetensors").chmod(0o644)


def train(pairs, adapter=None, **settings):
    torch.manual_seed(7)
    with tempfile.TemporaryDirectory() as folder:
        config = DPOConfig(output_dir=folder, **{**SETTINGS, **settings})
        trainer = recorder(DPOTrainer)(
            model=AutoModelForCausalLM.from_pretrained(
                MODEL, dtype=torch.float32),
            args=config, processing_class=words(),
            train_dataset=Dataset.from_list(
                [{k: text(v) for k, v in pair.items()} for pair in pairs]),
            peft_config=adapter)
        if adapter is not None:
            save_adapter(trainer.model)
        data = trainer.train_dataset
        for pair, row in zip(pairs, data):
            assert row["prompt_ids"] == pair["prompt"], (row, pair)
            assert row["chosen_ids"] == pair["chosen"], (row, pair)
        result = {}
        if "ref_chosen_logps" in data.column_names:
            result["reference"] = [data["ref_chosen_logps"][:],
                                   data["ref_rejected_logps"][:]]
        return {**result, **steps(trainer, METRICS)}


def formulas():
    """TRL's functions of mean log-probabilities; `self` is only its settings."""
    chosen = torch.tensor([-0.3, -1.7, -0.05, -2.5])
    rejected = torch.tensor([-1.1, -0.4, -0.9, -2.6])
    here = types.SimpleNamespace(
        beta=0.3, alpha=0.0, label_smoothing=0.1, loss_type="simpo",
        simpo_gamma=0.7, accelerator=types.SimpleNamespace(device="cpu"))
    orpo = ORPOTrainer.odds_ratio_loss(here, chosen, rejected)
    simpo = CPOTrainer.cpo_loss(here, chosen, rejected)
    here.loss_type = "sigmoid"
    smooth = CPOTrainer.cpo_loss(here, chosen, rejected)
    return {"chosen": chosen.tolist(), "rejected": rejected.tolist(),
            "beta": 0.3, "gamma": 0.7, "label_smoothing": 0.1,
            "orpo": (-orpo[0]).tolist(), "orpo_log_odds": orpo[4].item(),
            "orpo_ratio": orpo[3].item(), "simpo": simpo[0].tolist(),
            "sigmoid_smoothed": smooth[0].tolist()}


def tokens():
    """As DPOTrainer prepares them."""
    tokenizer = AutoTokenizer.from_pretrained(
        ROOT / "datasets/samples/tokenizer")
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    model.resize_token_embeddings(len(tokenizer))
    result = []
    for row in ROWS:
        with tempfile.TemporaryDirectory() as folder:
            trainer = DPOTrainer(
                model=model, processing_class=tokenizer,
                args=DPOConfig(output_dir=folder, bf16=False, use_cpu=True,
                               report_to=[]),
                train_dataset=Dataset.from_list([row]))
        made = trainer.train_dataset[0]
        result.append({"row": row, **{
            key: made[key + "_ids"] for key in ("prompt", "chosen", "rejected")}})
    return result


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    pairs = list(made_pairs())
    lora = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, task_type="CAUSAL_LM",
                      target_modules=["q_proj", "v_proj", "down_proj"])
    golden = {
        "pairs": pairs,
        "formulas": formulas(),
        "sigmoid": train(pairs, beta=0.2, loss_type=["sigmoid"],
                         precompute_ref_log_probs=True),
        "ipo": train(pairs, beta=0.2, loss_type=["ipo"],
                     precompute_ref_log_probs=True),
        "lora": train(pairs, adapter=lora, learning_rate=2e-2, beta=0.2,
                      loss_type=["sigmoid"]),
        "tokens": tokens(),
    }
    (OUT / "golden.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
