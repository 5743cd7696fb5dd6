// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_DETERMINISTIC_H_
#define CAPSTAN_TRAINER_SESSION_DETERMINISTIC_H_

namespace capstan {

// For train.deterministic: makes this process's operators compute the same bits
// in each run on the same machine, on CPUs with any number of threads, or throw
// c10::Error where LibTorch has no deterministic operator. Called before the
// process's first use of a GPU and of MKL. LibTorch then also turns off NCCL's
// sums in the switch.
void ComputeDeterministically();

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_DETERMINISTIC_H_
