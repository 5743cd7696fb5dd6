"""The plugins that come with the trainer: a new one is added here."""

PLUGINS = [
    "//datasets/chat:libcapstan_chat.so",
    "//datasets/llada_windows:libcapstan_llada_windows.so",
    "//datasets/text:libcapstan_text.so",
    "//plugins/model/llada:libcapstan_llada.so",
    "//plugins/model/llada_scratch:libcapstan_llada_scratch.so",
    "//plugins/model/llama:libcapstan_llama.so",
    "//plugins/objective/causal_lm:libcapstan_causal_lm.so",
    "//plugins/objective/masked_diffusion:libcapstan_masked_diffusion.so",
    "//plugins/optimizer/adamw:libcapstan_adamw.so",
    "//plugins/optimizer/sgd:libcapstan_sgd.so",
    "//plugins/precision/bf16:libcapstan_bf16.so",
    "//plugins/precision/fp16:libcapstan_fp16.so",
    "//plugins/precision/fp32:libcapstan_fp32.so",
    "//strategies/ddp:libcapstan_ddp.so",
    "//strategies/fsdp:libcapstan_fsdp.so",
    "//strategies/single:libcapstan_single.so",
    "//strategies/zero2:libcapstan_zero2.so",
]
