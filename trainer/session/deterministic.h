// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_DETERMINISTIC_H_
#define CAPSTAN_TRAINER_SESSION_DETERMINISTIC_H_

namespace capstan {

// For train.deterministic: has this process's operators give the same bits in
// each run on the same machine, on CPUs whatever the number of threads, or
// throw c10::Error where LibTorch knows none that would. Before the process's
// first use of a GPU, and of MKL. With it NCCL does without sums in the switch
// (LibTorch sees to that).
void ComputeDeterministically();

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_DETERMINISTIC_H_
