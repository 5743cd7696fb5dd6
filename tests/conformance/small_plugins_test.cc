// SPDX-License-Identifier: Apache-2.0
//
// Precisions, optimizers and dataset readers.
#include "tests/conformance/dataset_reader.h"
#include "tests/conformance/optimizer.h"
#include "tests/conformance/precision.h"

CAPSTAN_PRECISION_CONFORMANCE(Fp32, "plugins/precision/fp32/libcapstan_fp32.so",
                              "[plugin/capstan.fp32.Config] {}");
CAPSTAN_PRECISION_CONFORMANCE(Auto, "plugins/precision/auto/libcapstan_auto.so",
                              "[plugin/capstan.auto.Config] {}");
CAPSTAN_PRECISION_CONFORMANCE(Bf16, "plugins/precision/bf16/libcapstan_bf16.so",
                              "[plugin/capstan.bf16.Config] {}");
CAPSTAN_PRECISION_CONFORMANCE(Bf16Sums,
                              "plugins/precision/bf16/libcapstan_bf16.so",
                              "[plugin/capstan.bf16.Config] "
                              "{ reduce_dtype: BFLOAT16 }");
CAPSTAN_PRECISION_CONFORMANCE(Fp16, "plugins/precision/fp16/libcapstan_fp16.so",
                              "[plugin/capstan.fp16.Config] {}");
CAPSTAN_PRECISION_CONFORMANCE(Fp16Limits,
                              "plugins/precision/fp16/libcapstan_fp16.so",
                              "[plugin/capstan.fp16.Config] "
                              "{ initial_scale: 1024 min_scale: 0.25 "
                              "growth_interval: 3 }");
CAPSTAN_PRECISION_CONFORMANCE(Fp8, "plugins/precision/fp8/libcapstan_fp8.so",
                              "[plugin/capstan.fp8.Config] {}");

CAPSTAN_OPTIMIZER_CONFORMANCE(AdamW,
                              "plugins/optimizer/adamw/libcapstan_adamw.so",
                              "[plugin/capstan.adamw.Config] "
                              "{ learning_rate: 1e-2 }");
CAPSTAN_OPTIMIZER_CONFORMANCE(AdamWBf16,
                              "plugins/optimizer/adamw/libcapstan_adamw.so",
                              "[plugin/capstan.adamw.Config] "
                              "{ learning_rate: 1e-2 state: BFLOAT16 }");
CAPSTAN_OPTIMIZER_CONFORMANCE(AdamW8Bit,
                              "plugins/optimizer/adamw/libcapstan_adamw.so",
                              "[plugin/capstan.adamw.Config] "
                              "{ learning_rate: 1e-2 state: EIGHT_BIT }");
CAPSTAN_OPTIMIZER_CONFORMANCE(
    Adafactor, "plugins/optimizer/adafactor/libcapstan_adafactor.so",
    "[plugin/capstan.adafactor.Config] { learning_rate: 1e-2 }");
CAPSTAN_OPTIMIZER_CONFORMANCE(
    AdafactorRelative, "plugins/optimizer/adafactor/libcapstan_adafactor.so",
    "[plugin/capstan.adafactor.Config] { relative_step: true "
    "scale_parameter: true warmup_init: true beta1: 0.9 weight_decay: 0.1 }");
CAPSTAN_OPTIMIZER_CONFORMANCE(Muon, "plugins/optimizer/muon/libcapstan_muon.so",
                              "[plugin/capstan.muon.Config] "
                              "{ learning_rate: 2e-2 adamw { "
                              "learning_rate: 1e-3 } }");
CAPSTAN_OPTIMIZER_CONFORMANCE(
    NorMuon, "plugins/optimizer/muon/libcapstan_muon.so",
    "[plugin/capstan.muon.Config] { learning_rate: 1e-3 nesterov: false "
    "adjust_lr: MATCH_RMS_ADAMW polynomial: POLAR_EXPRESS normuon: true }");
CAPSTAN_OPTIMIZER_CONFORMANCE(Sgd, "plugins/optimizer/sgd/libcapstan_sgd.so",
                              "[plugin/capstan.sgd.Config] "
                              "{ learning_rate: 1e-2 }");
CAPSTAN_OPTIMIZER_CONFORMANCE(SgdNesterov,
                              "plugins/optimizer/sgd/libcapstan_sgd.so",
                              "[plugin/capstan.sgd.Config] "
                              "{ learning_rate: 1e-2 momentum: 0.9 "
                              "nesterov: true weight_decay: 0.1 }");
CAPSTAN_DATASET_READER_CONFORMANCE(Text, "datasets/text/libcapstan_text.so",
                                   "[plugin/capstan.text.Config] "
                                   "{ path: \"tests/testdata/corpus.txt\" "
                                   "sequence_length: 33 }");
CAPSTAN_DATASET_READER_CONFORMANCE(TextHeldBack,
                                   "datasets/text/libcapstan_text.so",
                                   "[plugin/capstan.text.Config] "
                                   "{ path: \"tests/testdata/corpus.txt\" "
                                   "sequence_length: 64 shuffle: true "
                                   "validation_fraction: 0.1 }");
