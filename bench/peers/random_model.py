# SPDX-License-Identifier: Apache-2.0
"""Writes a small model of random weights as transformers saves it.

    random_model.py --family qwen3 --vocab_size 4096 --output FOLDER

qwen3 and gemma3: about 10 M parameters with 4096 tokens, in the family's
proportions: heads wider than hidden_size / heads, and for Gemma 3 windows that
rows of 512 tokens exceed. smollm2-135m and -1.7b: Llamas of those models'
shapes, whose greedy texts have tokens below 4096 alone, those of the sample
tokenizer.
"""

import argparse

import torch
from transformers import (AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig,
                          Qwen3Config)

SAMPLE_TOKENS = 4096

FAMILIES = {
    "qwen3": lambda vocab_size: Qwen3Config(
        vocab_size=vocab_size, hidden_size=320, intermediate_size=960,
        num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=4,
        head_dim=64, max_position_embeddings=8192, tie_word_embeddings=True),
    "gemma3": lambda vocab_size: Gemma3TextConfig(
        vocab_size=vocab_size, hidden_size=320, intermediate_size=1024,
        num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=1,
        head_dim=128, query_pre_attn_scalar=128, sliding_window=128,
        max_position_embeddings=8192),
    "smollm2-135m": lambda vocab_size: LlamaConfig(
        vocab_size=vocab_size, hidden_size=576, intermediate_size=1536,
        num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
        max_position_embeddings=8192, rope_theta=100000.0, rms_norm_eps=1e-5,
        tie_word_embeddings=True),
    "smollm2-1.7b": lambda vocab_size: LlamaConfig(
        vocab_size=vocab_size, hidden_size=2048, intermediate_size=8192,
        num_hidden_layers=24, num_attention_heads=32, num_key_value_heads=32,
        max_position_embeddings=8192, rope_theta=130000.0, rms_norm_eps=1e-5,
        tie_word_embeddings=True),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--family", choices=FAMILIES, required=True)
    parser.add_argument("--vocab_size", type=int, required=True)
    parser.add_argument("--dtype", default="float32",
                        choices=("float32", "bfloat16"))
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        FAMILIES[args.family](args.vocab_size))
    if args.family.startswith("smollm2"):
        # Their logits are 0, and the greatest of the others is above.
        with torch.no_grad():
            model.get_input_embeddings().weight[SAMPLE_TOKENS:] = 0.0
    model.to(getattr(torch, args.dtype)).save_pretrained(args.output)


main()
