# SPDX-License-Identifier: Apache-2.0
"""Writes testdata/new_tokens: adapters of PEFT (0.21.2) that were trained with
modules_to_save on small models whose vocabulary transformers (5.23.0) has made
larger, and what a tokenizer makes of a text after add_tokens. Run it in an
environment with transformers, peft and torch:
  python3 tests/golden/make_new_tokens.py
"""

import json
import os
import shutil
import tempfile

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

torch.set_num_threads(1)
TESTDATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "testdata")
OUTPUT = os.path.join(TESTDATA, "new_tokens")
ROWS, GROWN = 24, 26
TEXT = "<|im_start|>user\nOne <step> two<|im_end|>\n<step><step>three"


def adapter(tied):
    """Trains and saves one; returns its logits of `tokens`."""
    folder = os.path.join(OUTPUT, "tied" if tied else "untied")
    torch.manual_seed(7)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=ROWS, hidden_size=16, intermediate_size=24,
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        max_position_embeddings=64, initializer_range=0.3,
        tie_word_embeddings=tied))
    model.save_pretrained(os.path.join(folder, "base"))
    model.resize_token_embeddings(GROWN)
    model = get_peft_model(model, LoraConfig(
        r=2, lora_alpha=4, target_modules=["q_proj", "down_proj"],
        modules_to_save=["embed_tokens"] if tied else ["embed_tokens", "lm_head"],
        ensure_weight_tying=tied))
    tokens = torch.tensor([[GROWN - 1, 3, 1, 4, GROWN - 2, 5, 9, 2, GROWN - 1]])
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=0.02)
    for _ in range(5):
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    model.save_pretrained(os.path.join(folder, "adapter"))
    os.remove(os.path.join(folder, "adapter", "README.md"))
    with torch.no_grad():
        logits = model(input_ids=tokens).logits
    return tokens[0].tolist(), [[round(x, 6) for x in row]
                                for row in logits[0].tolist()]


def tokenizer():
    """What a tokenizer without ChatML makes of TEXT."""
    made = PreTrainedTokenizerFast.from_pretrained(
        os.path.join(TESTDATA, "tokenizer_gemma"))
    rows = len(made)
    made.add_tokens(["<|im_start|>", "<|im_end|>"], special_tokens=True)
    made.add_tokens(["<step>"])
    with tempfile.TemporaryDirectory() as folder:
        made.save_pretrained(folder)
        made = PreTrainedTokenizerFast.from_pretrained(folder)
    ids = made.encode(TEXT, add_special_tokens=False)
    return {"rows": rows, "text": TEXT, "ids": ids,
            "without_special": made.decode(ids, skip_special_tokens=True)}


def main():
    shutil.rmtree(OUTPUT, ignore_errors=True)
    golden = {"tokenizer": tokenizer()}
    for tied in (False, True):
        tokens, logits = adapter(tied)
        golden["tied" if tied else "untied"] = {"tokens": tokens,
                                                "logits": logits}
    with open(os.path.join(OUTPUT, "golden.json"), "w") as f:
        json.dump(golden, f)
        f.write("\n")


main()
