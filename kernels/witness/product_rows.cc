// SPDX-License-Identifier: Apache-2.0
#include "kernels/witness/product_rows.h"

#include <cstring>

namespace capstan::kernels {

int64_t BytesOf(NumberType type) { return type == NumberType::kFloat ? 4 : 2; }

void GetRows(const GemmProblem& p, std::vector<char>* rows) {
  const int64_t bytes = BytesOf(p.c.type), row = p.n * bytes;
  rows->resize(p.m * row);
  for (int64_t i = 0; i < p.m; ++i) {
    std::memcpy(rows->data() + i * row,
                static_cast<const char*>(p.c.data) + i * p.c.stride * bytes,
                row);
  }
}

std::vector<char> RowsOf(const GemmProblem& p) {
  std::vector<char> rows;
  GetRows(p, &rows);
  return rows;
}

void SetRows(const GemmProblem& p, const std::vector<char>& rows) {
  const int64_t bytes = BytesOf(p.c.type), row = p.n * bytes;
  for (int64_t i = 0; i < p.m; ++i) {
    std::memcpy(static_cast<char*>(p.c.data) + i * p.c.stride * bytes,
                rows.data() + i * row, row);
  }
}

int64_t FirstDifference(const GemmProblem& p, const std::vector<char>& rows) {
  const int64_t bytes = BytesOf(p.c.type), row = p.n * bytes;
  for (int64_t i = 0; i < p.m; ++i) {
    if (std::memcmp(static_cast<const char*>(p.c.data) + i * p.c.stride * bytes,
                    rows.data() + i * row, row) != 0) {
      return i;
    }
  }
  return -1;
}

}  // namespace capstan::kernels
