// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_CONTEXT_ROW_DIVISION_H_
#define CAPSTAN_KERNELS_CONTEXT_ROW_DIVISION_H_

namespace capstan {

// Among how many ranks the run's model divides each row, 1 if it doesn't, for
// plans of memory, which come before there is a group (TokenModel::
// SetSequenceGroup). Set as SetRunDevice is; 1 by default. Thread-safe.
void SetRowDivision(int ranks);
int CurrentRowDivision();

}  // namespace capstan

#endif  // CAPSTAN_KERNELS_CONTEXT_ROW_DIVISION_H_
