#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What TRL's GRPOTrainer makes of given answers: testdata/grpo.

    python3 tests/golden/make_grpo.py

Writes losses.json, its losses and their gradients for numbers that only look
random, and steps.json, ten steps of testdata/llama in float32 on the CPU with
answers and rewards that are given. Needs trl 1.16.0, torch 2.11.0 and
transformers 5.23.0.
"""

import collections
import itertools
import json
import pathlib
import tempfile
import types

import torch
import trl.trainer.grpo_trainer as grpo_trainer
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (AutoModelForCausalLM, PreTrainedTokenizerFast,
                          TrainerCallback)
from trl import GRPOConfig, GRPOTrainer

HERE = pathlib.Path(__file__).resolve().parent / "testdata"
MODEL = HERE / "llama"
OUT = HERE / "grpo"
LOSSES = ["dapo", "grpo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo"]
ROWS, TOKENS = 6, 7
VOCAB, EOS = 512, 2
STEPS, PROMPTS_A_STEP, GENERATIONS, MAX_TOKENS = 10, 2, 4, 9


def short(x):
    """What float32 has, in few digits."""
    if isinstance(x, torch.Tensor):
        x = x.detach().tolist()
    if isinstance(x, list):
        return [short(y) for y in x]
    return float("%.9g" % x)


class Numbers:
    """The same on every machine."""

    def __init__(self, state):
        self.state = state

    def below(self, count):
        self.state = (1103515245 * self.state + 12345) % 2**31
        return (self.state >> 8) % count

    def tensor(self, shape, low, high):
        """Multiples of 1/64."""
        count = int((high - low) * 64)
        flat = [low + self.below(count) / 64
                for _ in range(torch.Size(shape).numel())]
        return torch.tensor(flat).view(shape)


def high_bound(loss, clip_high):
    """Of CISPO, TRL's is the bound itself."""
    return clip_high + 1 if loss == "cispo" else clip_high


def loss_inputs():
    numbers = Numbers(7)
    old = numbers.tensor((ROWS, TOKENS), -4, -0.5)
    inputs = {
        "old": old,
        "logps": old + numbers.tensor((ROWS, TOKENS), -0.75, 0.75),
        "reference": old + numbers.tensor((ROWS, TOKENS), -1, 1),
        "entropies": numbers.tensor((ROWS, TOKENS), 0, 4),
        "advantages": torch.tensor([1.5, -0.5, 0.0, -1.25, 0.75, 2.0]),
    }
    mask = torch.zeros(ROWS, TOKENS, dtype=torch.long)
    for row, length in enumerate([7, 5, 6, 7, 1, 0]):
        mask[row, :length] = 1
    mask[0, 2:4] = 0  # what a tool said
    return {**inputs, "mask": mask}


def loss_of(inputs, case):
    """GRPOTrainer._compute_loss, of which `self` is only its settings."""
    logps = inputs["logps"].clone().requires_grad_()
    metrics = {"train": collections.defaultdict(list)}
    here = types.SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (
            logps, inputs["entropies"], None),
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
        loss_type=case["loss"], beta=case["beta"],
        importance_sampling_level="sequence" if case["sequence"] else "token",
        epsilon_low=case["clip_low"],
        epsilon_high=high_bound(case["loss"], case["clip_high"]),
        args=types.SimpleNamespace(
            use_bias_correction_kl=case["unbiased_kl"],
            delta=case["clip_most"] or None, steps_per_generation=1,
            **{name: getattr(GRPOConfig, name) for name in (
                "sapo_temperature_neg", "sapo_temperature_pos", "vespo_k_pos",
                "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg")}),
        top_entropy_quantile=1.0, off_policy_mask_threshold=None,
        use_vllm=False, vllm_importance_sampling_correction=False,
        model=types.SimpleNamespace(training=True), aux_loss_enabled=False,
        current_gradient_accumulation_steps=1, max_completion_length=MAX_TOKENS,
        _entropy_bonus_enabled=False, _metrics=metrics,
        accelerator=types.SimpleNamespace(
            num_processes=1, gather=lambda x: x,
            reduce=lambda x, reduction: x))
    ids = torch.zeros(ROWS, TOKENS, dtype=torch.long)
    loss = GRPOTrainer._compute_loss(here, None, {
        "prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1],
        "completion_ids": ids, "completion_mask": inputs["mask"],
        "advantages": inputs["advantages"],
        "old_per_token_logps": inputs["old"],
        "ref_per_token_logps": inputs["reference"],
        "num_items_in_batch": inputs["mask"].sum()})
    loss.backward()
    wanted = ["kl", "entropy", "clip_ratio/low_mean", "clip_ratio/high_mean",
              "cispo_clip_ratio", "vespo/phi_seq_mean"]
    return {**case, "value": short(loss), "gradient": short(logps.grad),
            "metrics": {name: short(values[0])
                        for name, values in metrics["train"].items()
                        if name in wanted}}


def losses():
    inputs = loss_inputs()
    cases = []
    for loss, sequence, (beta, unbiased), (low, high, most) in itertools.product(
            LOSSES, [False, True], [(0.0, True), (0.04, True), (0.04, False)],
            [(0.2, 0.2, 0.0), (0.1, 0.28, 0.0), (0.2, 0.28, 1.5)]):
        if loss in ("sapo", "vespo") and (low, most) != (0.2, 0.0):
            continue  # they clip nothing
        if loss == "cispo" and most:
            continue
        cases.append(loss_of(inputs, dict(
            loss=loss, sequence=sequence, beta=beta, unbiased_kl=unbiased,
            clip_low=low, clip_high=high, clip_most=most)))
    inputs = {name: x.tolist() for name, x in inputs.items()}
    return {"max_new_tokens": MAX_TOKENS, "inputs": inputs, "cases": cases}


def words():
    """A tokenizer whose token i is the word ti."""
    tokenizer = Tokenizer(models.WordLevel(
        {word(i): i for i in range(VOCAB)}, unk_token=word(0)))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer,
                                   eos_token=word(EOS), pad_token=word(0))


def word(i):
    return {0: "<pad>", EOS: "<eos>"}.get(i, "t%d" % i)


def made_prompts():
    """Prompts with their answers and rewards. Some answers are truncated, one
    has no reward, and the third prompt's are all worth the same."""
    numbers = Numbers(12345)

    def ids(count):
        return [3 + numbers.below(VOCAB - 3) for _ in range(count)]

    prompts = []
    for i in range(STEPS * PROMPTS_A_STEP):
        answers = []
        for j in range(GENERATIONS):
            length = 3 + numbers.below(MAX_TOKENS - 3)
            truncated = (i + j) % 5 == 0
            answers.append({
                "ids": ids(MAX_TOKENS) if truncated else ids(length) + [EOS],
                "reward": numbers.below(9) / 8})
        prompts.append({"prompt": ids(2 + i % 5), "answers": answers})
    for answer in prompts[2]["answers"]:
        answer["reward"] = 1.0
    prompts[5]["answers"][1]["reward"] = None
    return prompts


def projection(p):
    """A parameter, or its gradient, as one number."""
    flat = p.detach().double().flatten()
    places = torch.arange(flat.numel(), dtype=torch.double)
    return torch.dot(flat, torch.sin(1.0 + places)).item()


class Watch(TrainerCallback):
    """Keeps of each step the gradients' norm, and each parameter's."""

    def __init__(self):
        self.norms, self.gradients = [], []

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        gradients = [p.grad for p in model.parameters()]
        squares = [g.double().square().sum() for g in gradients]
        self.norms.append(torch.stack(squares).sum().sqrt().item())
        self.gradients.append([short(projection(g)) for g in gradients])


class Recorder(GRPOTrainer):
    """Keeps what each step's loss is of, and the loss."""

    def __init__(self, *args, **kwargs):
        self.losses, self.rollouts = [], []
        super().__init__(*args, **kwargs)

    def _generate_and_score_completions(self, inputs):
        made = super()._generate_and_score_completions(inputs)
        self.rollouts.append(made)
        return made

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        self.losses.append(loss.item())
        return loss


def valid(rows, mask):
    """Rows without what isn't in the mask."""
    if rows is None:
        return None
    return [short(row[kept.bool()]) for row, kept in zip(rows, mask)]


def steps(prompts, **settings):
    table = {tuple(p["prompt"]): p["answers"] for p in prompts}
    given = {tuple(a["ids"]): a["reward"] for p in prompts for a in p["answers"]}

    def rollout(texts, trainer):
        made = {"prompt_ids": [], "completion_ids": [], "logprobs": None}
        for i, text in enumerate(texts):
            ids = tuple(int(t[1:]) for t in text.split())
            made["prompt_ids"].append(list(ids))
            made["completion_ids"].append(table[ids][i % GENERATIONS]["ids"])
        return made

    def reward(completion_ids, **_):
        return [given[tuple(ids)] for ids in completion_ids]

    torch.manual_seed(7)
    rows = PROMPTS_A_STEP * GENERATIONS
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(output_dir=folder, **{**dict(
            per_device_train_batch_size=rows, num_generations=GENERATIONS,
            max_completion_length=MAX_TOKENS, max_steps=STEPS,
            num_iterations=2, learning_rate=2e-4, lr_scheduler_type="constant",
            warmup_steps=0, weight_decay=0.0, max_grad_norm=0.0,
            shuffle_dataset=False, bf16=False, use_cpu=True,
            gradient_checkpointing=False, logging_steps=1, report_to=[],
            save_strategy="no", disable_tqdm=True), **settings})
        watch = Watch()
        trainer = Recorder(
            model=AutoModelForCausalLM.from_pretrained(
                MODEL, dtype=torch.float32),
            args=config, processing_class=words(), reward_funcs=reward,
            rollout_func=rollout, callbacks=[watch],
            train_dataset=Dataset.from_list(
                [{"prompt": " ".join(word(t) for t in p["prompt"])}
                 for p in prompts]))
        trainer.train()
    assert len(trainer.losses) == len(watch.norms) == STEPS
    rollouts = []
    for i, made in enumerate(trainer.rollouts):
        answers = [a for p in prompts[PROMPTS_A_STEP * i:][:PROMPTS_A_STEP]
                   for a in p["answers"]]
        mask = [len(a["ids"]) for a in answers]
        for row, answer in zip(made["completion_ids"], answers):
            assert row[:len(answer["ids"])].tolist() == answer["ids"]
        kept = torch.arange(made["completion_ids"].size(1)) < torch.tensor(
            mask).unsqueeze(1)
        rollouts.append({
            "advantages": short(made["advantages"]),
            "tokens": made["completion_mask"].sum(1).tolist(),
            "old_logps": valid(made.get("old_per_token_logps"), kept),
            "reference": valid(made.get("ref_per_token_logps"), kept)})
    logs = [log for log in trainer.state.log_history if "entropy" in log]
    names = [name for name in ("kl", "entropy", "clip_ratio/low_mean",
                               "clip_ratio/high_mean", "cispo_clip_ratio",
                               "vespo/phi_seq_mean") if name in logs[0]]
    return {
        "settings": settings, "losses": short(trainer.losses),
        "gradient_norms": short(watch.norms), "gradients": watch.gradients,
        "rollouts": rollouts,
        "metrics": {name: [short(log[name]) for log in logs] for name in names},
        "parameters": [short(projection(p))
                       for p in trainer.model.parameters()]}


def runs(prompts):
    """Each loss, and what else changes it."""
    for loss in LOSSES:
        settings = dict(loss_type=loss)
        if loss == "cispo":
            settings["epsilon_high"] = high_bound(loss, 0.2)
        if loss == "luspo":
            settings["importance_sampling_level"] = "sequence"
        if loss == "dr_grpo":
            settings["scale_rewards"] = "none"
        yield loss, steps(prompts, **settings)
    yield "gspo", steps(prompts, loss_type="grpo", epsilon=0.1,
                        importance_sampling_level="sequence")
    yield "kl", steps(prompts, loss_type="grpo", beta=0.04, delta=1.5,
                      epsilon_high=0.28)
    yield "plain_kl", steps(prompts, loss_type="dapo", beta=0.04,
                            use_bias_correction_kl=False)
    yield "once", steps(prompts, loss_type="dapo", num_iterations=1,
                        temperature=0.7, scale_rewards="batch",
                        mask_truncated_completions=True)


def main():
    torch.set_num_threads(1)
    # Rows stay in the order of the answers.
    grpo_trainer.shuffle_sequence_dict = lambda batch: batch
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "losses.json").write_text(json.dumps(losses()) + "\n")
    prompts = made_prompts()
    model = AutoModelForCausalLM.from_pretrained(MODEL)
    golden = {"max_new_tokens": MAX_TOKENS, "num_generations": GENERATIONS,
              "parameters": [name for name, _ in model.named_parameters()],
              "prompts": prompts, "runs": dict(runs(prompts))}
    (OUT / "steps.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
