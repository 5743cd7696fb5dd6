// SPDX-License-Identifier: Apache-2.0
//
// Attention with grouped queries, causal or bidirectional: softmax(q k^T *
// scale) v, where query head h reads key-value head h / (heads / kv_heads).
// Scores may be capped and keys limited to a window.
#ifndef CAPSTAN_KERNELS_ATTENTION_ATTENTION_H_
#define CAPSTAN_KERNELS_ATTENTION_ATTENTION_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <map>
#include <vector>

#include "kernels/memory.h"

namespace capstan::kernels {

// Positions [begin, begin + length) of a sequence.
struct RowChunk {
  int64_t begin = 0;
  int64_t length = 0;
};

// Of documents whose queries, and keys, lie one behind another: where each
// begins, and their number, [documents + 1] int32, and the longest.
struct DocumentOffsets {
  at::Tensor queries, keys;
  int64_t most_queries = 0, most_keys = 0;
};

// What one chunk of each row's queries sees, on the packing's device: the rows
// `keys` (int64) of the keys of all rows, [batch * length, ..].
struct ChunkParts {
  at::Tensor keys;
  DocumentOffsets offsets;
};

// Rows of a batch that each pack several documents; tokens see only their own
// document.
class PackedRows : public torch::CustomClassHolder {
 public:
  // Tokens [begin, begin + length) of a row.
  struct Document {
    int64_t begin = 0;
    int64_t length = 0;
  };

  // positions: [rows, T] int64, each token's position in its document. On the
  // CPU they are validated: throws c10::Error with the location unless each row
  // begins with 0 and each later position is 0 or one more than the previous
  // one. On other devices it doesn't block, and documents() isn't available.
  explicit PackedRows(const at::Tensor& positions);
  // For tokens on a GPU, with `host` the same positions on the CPU, so that
  // documents() is available without waiting for the device.
  PackedRows(const at::Tensor& host, const at::Tensor& positions);

  // Whether documents() is available.
  bool knows_documents() const { return !row_ends_.empty(); }
  // In order; lengths are 1 or more.
  c10::ArrayRef<Document> row(int64_t row) const {
    const Document* const all = documents_.data();
    return {all + (row == 0 ? 0 : row_ends_[row - 1]), all + row_ends_[row]};
  }
  const std::vector<Document>& documents() const { return documents_; }
  int64_t longest() const { return longest_; }

  // [rows, 1, T, T] bool on the positions' device: whether query t (dimension
  // 2) sees key s, i.e. those of its document, up to itself if causal. Made at
  // the first call, by one thread at a time.
  const at::Tensor& mask(bool causal = true) const;

  // [documents() + 1] int32 on the positions' device: the first token of each
  // document of all rows, counted through the rows, and the number of tokens.
  // As mask(). Requires knows_documents().
  //
  // For work that is recorded (kernels/context/work_recorder.h) empty documents
  // follow, to the next power of two, and longest() is T: the work is then
  // right for other rows, too.
  const at::Tensor& offsets() const;
  // Of the documents in `chunk` of each row, whose keys are cut to `length`
  // positions: the chunk's last, if attention is causal. As offsets(), for one
  // length.
  const ChunkParts& parts(const RowChunk& chunk, int64_t length) const;

 private:
  void FindDocuments(const at::Tensor& positions);
  void FitOthers();
  // Of `count` documents, the last of them empty.
  at::Tensor MakeOffsets(int64_t count) const;

  const at::Tensor positions_;
  std::vector<Document> documents_;  // of all rows
  std::vector<int64_t> row_ends_;    // end of each row's documents
  int64_t longest_ = 0;
  mutable at::Tensor masks_[2];  // by causal
  mutable at::Tensor offsets_;
  mutable std::map<int64_t, ChunkParts> parts_;  // by where a chunk begins
};

// Null: each row is one document.
using Packing = c10::intrusive_ptr<PackedRows>;

struct AttentionShape {
  int64_t batch = 1;
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t head_dim = 1;
  // Whether a query sees only the keys up to its own position, or all.
  bool causal = true;
  double scale = 0.0;    // of scores; 0: 1 / sqrt(head_dim)
  double softcap = 0.0;  // scores become cap * tanh(score / cap); 0: none
  // A query at position t sees only keys after t - window; 0: all. For causal
  // attention.
  int64_t window = 0;
};

// The masks that the layers of one pass, with one packing or none, share: of
// windows, and of capped scores. Used by one thread at a time.
class AttentionMasks : public torch::CustomClassHolder {
 public:
  // [1, 1, length, length] of the options' dtype and device, or [rows, 1, ..]
  // with a packing: 0 where a query sees a key, else -infinity, to be added to
  // scores. Made at the first call for a window, and for a greater length.
  // shape.causal is set, or there is a packing.
  at::Tensor Get(const AttentionShape& shape, int64_t length,
                 const at::TensorOptions& options,
                 const PackedRows* packing = nullptr);

 private:
  struct Made {
    int64_t window = 0;
    bool causal = true;
    at::Tensor mask;
  };
  std::vector<Made> made_;
};

// Null: a layer makes its own.
using SharedMasks = c10::intrusive_ptr<AttentionMasks>;

// Attention within each sequence, or each document of a packed one, with
// gradients. q: [batch * T, heads * head_dim]; k, v: [batch * T, kv_heads *
// head_dim]. Returns a tensor of q's shape. CPUs need no masks.
at::Tensor Attention(const at::Tensor& q, const at::Tensor& k,
                     const at::Tensor& v, const AttentionShape& shape,
                     const Packing& packing = nullptr,
                     const SharedMasks& masks = nullptr);

// Attention without gradients for T queries, the last of L positions. k, v:
// [batch, L, kv_heads * head_dim], with any strides in the first two
// dimensions. first: [batch] int64 on the CPU, the first key of each sequence
// that exists, as after padding on the left; undefined: 0. The rows of queries
// before it hold any finite numbers. Only for causal attention.
at::Tensor CachedAttention(const at::Tensor& q, const at::Tensor& k,
                           const at::Tensor& v, const AttentionShape& shape,
                           const at::Tensor& first = {});

// Adds to `ledger` what Attention leaves for q [rows, ..]: its output and what
// it keeps, which includes k and v or copies of them, but not what
// AttentionMaskBytes counts. Capped scores, which are [batch, heads, T, T] but
// in float32, are counted as if each row were one document. `gpu`: by the flash
// kernels; for float32 with keys in groups, which no fused kernel of ATen's
// computes there, by its composed operators.
void PlanAttention(const AttentionShape& shape, int64_t rows,
                   c10::ScalarType dtype, bool packed, MemoryLedger* ledger,
                   bool gpu = false);
// Of the mask in AttentionMasks that the layers of this window share, for rows
// of `length` tokens.
int64_t AttentionMaskBytes(const AttentionShape& shape, int64_t length,
                           c10::ScalarType dtype, bool gpu = false);
// Continues from PlanAttention: what it keeps, including q, k and v, and the
// output's gradient become the gradients of q, k and v.
void PlanAttentionBackward(const AttentionShape& shape, int64_t rows,
                           c10::ScalarType dtype, bool packed,
                           MemoryLedger* ledger, bool gpu = false);

// On memory of T on the CPU (float, Bf16 or Fp16), without autograd. Scores,
// the softmax and sums are float32; each result is rounded once. Of bfloat16,
// probabilities and the gradients of scores are rounded before they are
// multiplied, as GPUs' flash kernels do. The layout of a problem:
struct AttentionLayout {
  AttentionLayout() = default;
  // Of matrices q, k and v of `rows` rows each.
  AttentionLayout(const AttentionShape& shape, int64_t rows,
                  const PackedRows* packing)
      : shape(shape),
        queries(rows / shape.batch),
        keys(queries),
        kv_batch_stride(keys * shape.kv_heads * shape.head_dim),
        kv_stride(shape.kv_heads * shape.head_dim),
        packing(packing) {}

  AttentionShape shape;
  int64_t queries = 0;  // T
  int64_t keys = 0;     // L; if causal, query t sees those up to L - T + t
  int64_t kv_batch_stride = 0;  // numbers
  int64_t kv_stride = 0;
  // The documents of each sequence; null: one each. Requires T = L or chunks.
  const PackedRows* packing = nullptr;
  // If not empty, a sequence's queries are these chunks of its L positions, one
  // after another; a packing is that of all L. Outlives the layout.
  c10::ArrayRef<RowChunk> chunks;
  // For forward alone, see CachedAttention: [batch], or null.
  const int64_t* first_keys = nullptr;

  int64_t group() const { return shape.heads / shape.kv_heads; }
  int64_t q_stride() const { return shape.heads * shape.head_dim; }
  float scale() const;
  // Of query head h of sequence b, and of the kv head that it reads.
  int64_t q_offset(int64_t b, int64_t h) const {
    return b * queries * q_stride() + h * shape.head_dim;
  }
  int64_t kv_offset(int64_t b, int64_t h) const {
    return b * kv_batch_stride + h / group() * shape.head_dim;
  }
};

// T queries, the last of L positions if causal. log_sum_exp: [batch, heads, T],
// for backward.
template <typename T>
void AttentionForward(const AttentionLayout& layout, const T* q, const T* k,
                      const T* v, T* out, float* log_sum_exp);

template <typename T>
struct AttentionBackwardBuffers {
  const T *q, *k, *v, *out, *d_out;
  const float* log_sum_exp;
  T *dq, *dk, *dv;  // overwritten; laid out as q, k, v
};
template <typename T>
void AttentionBackward(const AttentionLayout& layout,
                       const AttentionBackwardBuffers<T>& buffers);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_ATTENTION_ATTENTION_H_
