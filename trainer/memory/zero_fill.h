// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_MEMORY_ZERO_FILL_H_
#define CAPSTAN_TRAINER_MEMORY_ZERO_FILL_H_

#include <cstddef>

namespace capstan {

// Makes `bytes` bytes at `data` zero, as memset would, but leaves it to the
// kernel where it can: whole huge pages in it are given back, and come back
// cleared when they are first touched. So a buffer of the model's size that has
// just been allocated costs nothing here, and is written once where memset
// would be the second time, after the kernel's own.
//
// `data` is a process's own memory: of a heap, of an anonymous private mapping,
// or of a tensor on the CPU that is neither pinned nor shared.
void ZeroFill(void* data, size_t bytes);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_MEMORY_ZERO_FILL_H_
