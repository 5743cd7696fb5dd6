# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the code that a LLaDA folder brings along: the model as its
config.json describes it, in plain PyTorch, to be compared with ours."""

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from .configuration_llada import LLaDAConfig


class Norm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return self.weight * x * torch.rsqrt(
            x.square().mean(-1, keepdim=True) + self.eps)


def rotate(x, theta):
    """x: [batch, heads, length, size]"""
    length, size = x.shape[-2:]
    powers = torch.arange(0, size, 2, dtype=torch.float64) / size
    angles = torch.arange(length, dtype=torch.float64)[:, None] / theta**powers
    angles = torch.cat([angles, angles], -1)
    left, right = x.chunk(2, -1)
    turned = torch.cat([-right, left], -1)
    return x * angles.cos().to(x) + turned * angles.sin().to(x)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        size = c.d_model // c.n_heads
        self.heads, self.theta = c.n_heads, c.rope_theta
        self.attn_norm = Norm(c.d_model, c.rms_norm_eps)
        self.q_proj = nn.Linear(c.d_model, c.n_heads * size, bias=False)
        self.k_proj = nn.Linear(c.d_model, c.n_kv_heads * size, bias=False)
        self.v_proj = nn.Linear(c.d_model, c.n_kv_heads * size, bias=False)
        self.attn_out = nn.Linear(c.n_heads * size, c.d_model, bias=False)
        self.ff_norm = Norm(c.d_model, c.rms_norm_eps)
        self.ff_proj = nn.Linear(c.d_model, c.mlp_hidden_size, bias=False)
        self.up_proj = nn.Linear(c.d_model, c.mlp_hidden_size, bias=False)
        self.ff_out = nn.Linear(c.mlp_hidden_size, c.d_model, bias=False)

    def attention(self, x):
        batch, length, _ = x.shape
        q, k, v = (projection(x).view(batch, length, -1,
                                      x.shape[-1] // self.heads).transpose(1, 2)
                   for projection in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, self.theta), rotate(k, self.theta)
        shared = self.heads // k.shape[1]
        k, v = (t.repeat_interleave(shared, 1) for t in (k, v))
        y = functional.scaled_dot_product_attention(q, k, v)
        return self.attn_out(y.transpose(1, 2).reshape(batch, length, -1))

    def forward(self, x):
        x = x + self.attention(self.attn_norm(x))
        y = self.ff_norm(x)
        return x + self.ff_out(functional.silu(self.ff_proj(y)) *
                               self.up_proj(y))


class LLaDAModelLM(PreTrainedModel):
    config_class = LLaDAConfig

    def __init__(self, config):
        super().__init__(config)
        c = config
        self.model = nn.Module()
        self.model.transformer = nn.ModuleDict({
            "wte": nn.Embedding(c.embedding_size, c.d_model),
            "blocks": nn.ModuleList(Block(c) for _ in range(c.n_layers)),
            "ln_f": Norm(c.d_model, c.rms_norm_eps),
            "ff_out": nn.Linear(c.d_model, c.embedding_size, bias=False),
        })
        self.post_init()

    def get_input_embeddings(self):
        return self.model.transformer["wte"]

    def forward(self, input_ids, **_):
        parts = self.model.transformer
        x = parts["wte"](input_ids)
        for block in parts["blocks"]:
            x = block(x)
        return CausalLMOutput(logits=parts["ff_out"](parts["ln_f"](x)))
