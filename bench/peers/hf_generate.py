# SPDX-License-Identifier: Apache-2.0
"""transformers' generate, to time against: bench/generate.py calls this.

Continues a prompt greedily, the same in each row; prints one JSON line: seconds
of each of three calls (few new tokens, more, a long prompt and few), the tokens
of both prompts, and the first row's text.
"""

import argparse
import json
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def parse():
    parser = argparse.ArgumentParser()
    for name in ("model", "dtype", "prompt", "long_prompt"):
        parser.add_argument("--" + name, required=True)
    for name in ("threads", "batch", "short", "long"):
        parser.add_argument("--" + name, type=int, required=True)
    return parser.parse_args()


def main():
    args = parse()
    torch.set_num_threads(args.threads)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=getattr(torch, args.dtype)).eval()

    def generate(prompt, tokens):
        ids = torch.tensor([tokenizer(prompt)["input_ids"]] * args.batch)
        begin = time.perf_counter()
        out = model.generate(ids, attention_mask=torch.ones_like(ids),
                             do_sample=False, max_new_tokens=tokens,
                             min_new_tokens=tokens, pad_token_id=0)
        return time.perf_counter() - begin, ids.shape[1], out[0, ids.shape[1]:]

    with torch.inference_mode():
        generate(args.prompt, 2)  # whatever is made once
        short, short_tokens, text = generate(args.prompt, args.short)
        long, _, _ = generate(args.prompt, args.long)
        prompt, long_tokens, _ = generate(args.long_prompt, args.short)
    print(json.dumps({
        "seconds": {"short": short, "long": long, "prompt": prompt},
        "prompt_tokens": {"short": short_tokens, "long": long_tokens},
        "text": tokenizer.decode(text)}))


main()
