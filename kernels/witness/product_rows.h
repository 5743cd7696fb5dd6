// SPDX-License-Identifier: Apache-2.0
//
// Copies of what a product's c is, to set it back and to compare bits.
#ifndef CAPSTAN_KERNELS_WITNESS_PRODUCT_ROWS_H_
#define CAPSTAN_KERNELS_WITNESS_PRODUCT_ROWS_H_

#include <cstdint>
#include <vector>

#include "kernels/gemm/gemm.h"

namespace capstan::kernels {

int64_t BytesOf(NumberType type);

// The rows of the problem's c, dense; what lies between them isn't touched.
void GetRows(const GemmProblem& p, std::vector<char>* rows);
std::vector<char> RowsOf(const GemmProblem& p);
void SetRows(const GemmProblem& p, const std::vector<char>& rows);
// The first row of c whose bits aren't those of `rows`, or -1.
int64_t FirstDifference(const GemmProblem& p, const std::vector<char>& rows);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_WITNESS_PRODUCT_ROWS_H_
