# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the code that a LLaDA folder brings along."""

from transformers import PretrainedConfig


class LLaDAConfig(PretrainedConfig):
    model_type = "llada"
