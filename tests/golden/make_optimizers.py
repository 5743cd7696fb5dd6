# SPDX-License-Identifier: Apache-2.0
"""Writes testdata/optimizers: what other implementations make of an optimizer.

Adafactor by transformers (5.23.0), AdamW with 8-bit state by a few lines of
PyTorch that follow bitsandbytes' published formulas, with its own dynamic maps
and block-wise rounding where it is installed (0.50.2, on the CPU, where its
optimizers don't run). Run it in an environment with both:
  python3 tests/golden/make_optimizers.py
"""

import json
import os

import torch
from safetensors.torch import save_file
from transformers.optimization import Adafactor

torch.set_num_threads(1)
STEPS = 4
BLOCK = 256
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "testdata",
                      "optimizers")


def normal(seed, shape, stddev):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * stddev


def adafactor_cases():
    return {
        "plain": dict(lr=1e-2, relative_step=False, scale_parameter=False),
        "scaled": dict(lr=1e-2, relative_step=False, scale_parameter=True,
                       weight_decay=0.1, clip_threshold=0.5),
        "relative": dict(lr=None, relative_step=True, scale_parameter=True,
                         warmup_init=True, beta1=0.9),
        "default": dict(lr=None),
    }


def adafactor(tensors):
    shapes = {"matrix": (24, 40), "vector": (50,), "stack": (3, 8, 12)}
    for name, shape in shapes.items():
        tensors["adafactor." + name] = normal(1, shape, 0.3)
        for step in range(1, STEPS + 1):
            tensors[f"adafactor.{name}.grad{step}"] = normal(10 * step, shape,
                                                             2.0 / step)
    for case, options in adafactor_cases().items():
        parameters = {name: tensors["adafactor." + name].clone().requires_grad_()
                      for name in shapes}
        optimizer = Adafactor(list(parameters.values()), **options)
        for step in range(1, STEPS + 1):
            for name, p in parameters.items():
                p.grad = tensors[f"adafactor.{name}.grad{step}"].clone()
            optimizer.step()
            for name, p in parameters.items():
                tensors[f"adafactor.{name}.{case}{step}"] = p.detach().clone()


def dynamic_map(signed):
    """bitsandbytes.functional.create_dynamic_map(signed, 7, 8)."""
    values = [0.0, 1.0]
    for decade in range(7):
        count = (1 if signed else 2) << decade
        edges = torch.linspace(0.1, 1, count + 1, dtype=torch.float32)
        for mean in ((edges[:-1] + edges[1:]) / 2 * 10.0 ** (decade - 6)).tolist():
            values += [mean, -mean] if signed else [mean]
    return torch.tensor(sorted(values))


def quantize(x, code, signed):
    padded = torch.nn.functional.pad(x, (0, -x.numel() % BLOCK)).view(-1, BLOCK)
    absmax = padded.abs().amax(1, keepdim=True)
    scaled = padded / absmax.clamp_min(1e-36)
    middles = (code[:-1].double() + code[1:].double()) / 2
    codes = torch.bucketize(scaled.double(), middles, right=True)
    if not signed:  # never to 0, which bitsandbytes' update may divide by
        codes = torch.where(padded > 0, codes.clamp_min(1), codes)
    return codes.flatten()[: x.numel()].to(torch.uint8), absmax.flatten()


def check_with_bitsandbytes(maps):
    try:
        import bitsandbytes.functional as bnb
    except ImportError:
        return "not installed"
    shares = []
    for signed, code in maps.items():
        theirs = bnb.create_dynamic_map(signed)
        assert torch.allclose(code, theirs, rtol=1e-6, atol=0), signed
        x = normal(99, (40 * BLOCK,), 1.0)
        if not signed:
            x = x.square()
        codes, absmax = quantize(x, code, signed)
        packed, state = bnb.quantize_blockwise(x, code=theirs, blocksize=BLOCK)
        assert torch.equal(absmax, state.absmax)
        apart = (codes.int() - packed.flatten().int()).abs()
        # Its search on the CPU misses the nearest code of a few small values.
        ours = (code[codes.int()] - x / absmax.repeat_interleave(BLOCK)).abs()
        its = (code[packed.flatten().int()] -
               x / absmax.repeat_interleave(BLOCK)).abs()
        assert ((ours <= its + 1e-7) | (code[codes.int()] == code[1])).all()
        shares.append((apart > 0).float().mean().item())
        assert shares[-1] < 5e-2, shares
    return ("equal maps and scales; other codes for %.2f %% (signed) and "
            "%.2f %%" % (100 * shares[0], 100 * shares[1]))


def adamw_8bit(tensors, facts):
    """Dettmers et al. 2022, in torch.optim.AdamW's order of operations."""
    maps = {True: dynamic_map(True), False: dynamic_map(False)}
    facts["bitsandbytes"] = check_with_bitsandbytes(maps)
    lr, beta1, beta2, eps, decay = 1e-2, 0.9, 0.999, 1e-8, 0.1
    facts["adamw_8bit"] = dict(learning_rate=lr, beta1=beta1, beta2=beta2,
                               epsilon=eps, weight_decay=decay)
    shape = (45, 101)  # 4545: the last of 18 blocks is short
    p = normal(2, shape, 0.3).flatten()
    tensors["adamw_8bit.matrix"] = p.view(shape).clone()
    m_codes, m_max = torch.zeros(p.numel(), dtype=torch.uint8), torch.zeros(18)
    v_codes, v_max = m_codes.clone(), m_max.clone()

    def read(code, codes, absmax):
        return code[codes.int()] * absmax.repeat_interleave(BLOCK)[: p.numel()]

    for step in range(1, STEPS + 1):
        g = normal(20 * step, shape, 1.0).flatten()
        tensors[f"adamw_8bit.matrix.grad{step}"] = g.view(shape).clone()
        m = read(maps[True], m_codes, m_max) * beta1 + (1 - beta1) * g
        v = read(maps[False], v_codes, v_max) * beta2 + (1 - beta2) * g * g
        p = p * (1 - lr * decay)
        p = p - lr / (1 - beta1**step) * m / (
            v.sqrt() / (1 - beta2**step) ** 0.5 + eps)
        m_codes, m_max = quantize(m, maps[True], True)
        v_codes, v_max = quantize(v, maps[False], False)
        tensors[f"adamw_8bit.matrix.step{step}"] = p.view(shape).clone()
    tensors["adamw_8bit.exp_avg_8bit"] = m_codes
    tensors["adamw_8bit.exp_avg_absmax"] = m_max
    tensors["adamw_8bit.exp_avg_sq_8bit"] = v_codes
    tensors["adamw_8bit.exp_avg_sq_absmax"] = v_max
    tensors["adamw_8bit.signed_map"] = maps[True]
    tensors["adamw_8bit.unsigned_map"] = maps[False]


def main():
    tensors, facts = {}, {"steps": STEPS}
    adafactor(tensors)
    adamw_8bit(tensors, facts)
    os.makedirs(FOLDER, exist_ok=True)
    save_file({k: v.contiguous() for k, v in tensors.items()},
              os.path.join(FOLDER, "golden.safetensors"))
    with open(os.path.join(FOLDER, "golden.json"), "w") as file:
        json.dump(facts, file, indent=1)
        file.write("\n")
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
