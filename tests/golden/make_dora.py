# SPDX-License-Identifier: Apache-2.0
"""Writes testdata/llama_dora: a DoRA adapter of PEFT (0.21.2) on the random
model of testdata/llama, trained a little so that each of its parts counts; its
logits, the losses of three more steps, and the weights of some modules after
merge_and_unload. Run it in an environment with transformers, peft and torch:
  python3 tests/golden/make_dora.py
"""

import json
import os

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

torch.set_num_threads(1)
TESTDATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "testdata")
OUTPUT = os.path.join(TESTDATA, "llama_dora")
RATE = 0.01

torch.manual_seed(5)
model = LlamaForCausalLM.from_pretrained(os.path.join(TESTDATA, "llama"),
                                         dtype=torch.float32)
model = get_peft_model(model, LoraConfig(
    r=4, lora_alpha=8, use_dora=True, task_type="CAUSAL_LM",
    target_modules=["q_proj", "k_proj", "o_proj", "up_proj", "down_proj"]))
tokens = load_file(os.path.join(TESTDATA, "llama_lora",
                                "golden.safetensors"))["input_ids"]


def steps(count):
    """Trains; returns the losses."""
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=RATE,
        weight_decay=0.0)
    losses = []
    for _ in range(count):
        loss = model(input_ids=tokens, labels=tokens).loss
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses


steps(4)
model.save_pretrained(OUTPUT)
os.remove(os.path.join(OUTPUT, "README.md"))
path = os.path.join(OUTPUT, "adapter_config.json")
with open(path) as file:
    config = json.load(file)
config["base_model_name_or_path"] = "llama"  # no path of this machine's
with open(path, "w") as file:
    json.dump(config, file, indent=2)
with torch.no_grad():
    logits = model(input_ids=tokens).logits
losses = steps(3)
base = get_peft_model(  # as it was saved
    LlamaForCausalLM.from_pretrained(os.path.join(TESTDATA, "llama"),
                                     dtype=torch.float32),
    LoraConfig.from_pretrained(OUTPUT))
base.load_adapter(OUTPUT, "default")
merged = base.merge_and_unload().state_dict()
names = [f"model.layers.0.{module}.weight" for module in
         ("self_attn.q_proj", "mlp.down_proj")]
save_file({"input_ids": tokens, "logits": logits.contiguous(),
           **{name: merged[name].contiguous() for name in names}},
          os.path.join(OUTPUT, "golden.safetensors"))
with open(os.path.join(OUTPUT, "golden.json"), "w") as file:
    json.dump({"adamw": {"lr": RATE, "weight_decay": 0.0, "losses": losses}},
              file, indent=1)
