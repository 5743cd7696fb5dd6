// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_ATTENTION_PACKED_ROWS_H_
#define CAPSTAN_KERNELS_ATTENTION_PACKED_ROWS_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <vector>

namespace capstan {
namespace kernels {

// Rows of a batch that hold several documents, one behind the other, none of
// which sees another's tokens.
class PackedRows : public torch::CustomClassHolder {
 public:
  // Tokens [begin, begin + length) of a row.
  struct Document {
    int64_t begin = 0;
    int64_t length = 0;
  };
  // The documents of one row.
  struct Row {
    const Document* first;
    const Document* last;  // behind them
    const Document* begin() const { return first; }
    const Document* end() const { return last; }
  };

  // positions: [rows, T] int64, of each token in its document. On the CPU they
  // are checked: c10::Error names the place unless a row begins with 0, and
  // each of the others is 0 or one more than that before it. On other devices
  // nothing waits for them, and documents() isn't there.
  explicit PackedRows(const at::Tensor& positions);

  bool on_cpu() const { return !row_ends_.empty(); }
  // In order; lengths are 1 or more.
  Row row(int64_t row) const {
    const Document* const all = documents_.data();
    return {all + (row == 0 ? 0 : row_ends_[row - 1]), all + row_ends_[row]};
  }
  const std::vector<Document>& documents() const { return documents_; }
  int64_t longest() const { return longest_; }

  // [rows, 1, T, T] bool on the positions' device: whether query t (dimension
  // 2) sees key s: those of its document, if causal up to itself. Made at the
  // first call, by one thread at a time.
  const at::Tensor& mask(bool causal = true) const;

 private:
  const at::Tensor positions_;
  std::vector<Document> documents_;  // of all rows
  std::vector<int64_t> row_ends_;    // behind the last document of each
  int64_t longest_ = 0;
  mutable at::Tensor masks_[2];  // by causal
};

// Null: each row is one document.
using Packing = c10::intrusive_ptr<PackedRows>;

}  // namespace kernels
}  // namespace capstan

#endif  // CAPSTAN_KERNELS_ATTENTION_PACKED_ROWS_H_
