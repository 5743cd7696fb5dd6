# SPDX-License-Identifier: Apache-2.0
"""Writes testdata/generation/cases.json: what transformers (5.23.0) writes with
the settings of a generation_config.json, on testdata/llama in float32. Run it
in an environment with transformers and torch:
  python3 tests/golden/make_generation.py
"""

import json
import os

import torch
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)
TESTDATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "testdata")
PROMPT = 8


def main():
    folder = os.path.join(TESTDATA, "llama")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with open(os.path.join(folder, "golden.json")) as f:
        greedy = json.load(f)["greedy"]
    prompt = torch.tensor([greedy[:PROMPT]])
    cases = []

    def add(**settings):
        settings["do_sample"] = False
        made = model.generate(prompt, attention_mask=torch.ones_like(prompt),
                              pad_token_id=0, return_dict_in_generate=True,
                              output_scores=True, **settings)
        settings.setdefault("eos_token_id", 2)
        scores = getattr(made, "sequences_scores", None)
        cases.append({
            "settings": settings,
            "texts": made.sequences.tolist(),
            "scores": [] if scores is None else
                      [round(score, 5) for score in scores.tolist()],
        })
        return cases[-1]["texts"]

    add(max_new_tokens=16, repetition_penalty=1.3)
    add(max_new_tokens=16, no_repeat_ngram_size=2)
    add(max_new_tokens=16, suppress_tokens=greedy[PROMPT:PROMPT + 4],
        begin_suppress_tokens=[5])
    beams = add(max_new_tokens=12, num_beams=4, num_return_sequences=4)
    add(max_new_tokens=12, num_beams=3, num_return_sequences=3,
        length_penalty=0.0, repetition_penalty=1.2, no_repeat_ngram_size=2)
    # Tokens that are likely to come.
    ends = [beams[0][PROMPT + 4], beams[1][PROMPT + 6]]
    for early_stopping in (False, True, "never"):
        add(max_new_tokens=12, num_beams=4, num_return_sequences=4,
            length_penalty=1.5, early_stopping=early_stopping, eos_token_id=ends)
    add(max_new_tokens=12, num_beams=2, num_return_sequences=2,
        min_new_tokens=6, eos_token_id=ends)

    os.makedirs(os.path.join(TESTDATA, "generation"), exist_ok=True)
    with open(os.path.join(TESTDATA, "generation", "cases.json"), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
