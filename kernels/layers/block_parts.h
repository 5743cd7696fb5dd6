// SPDX-License-Identifier: Apache-2.0
//
// The nodes that compose a transformer block, each with its own backward, and
// what they allocate on the CPU.
#ifndef CAPSTAN_KERNELS_LAYERS_BLOCK_PARTS_H_
#define CAPSTAN_KERNELS_LAYERS_BLOCK_PARTS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/attention/exchanged.h"
#include "kernels/attention/layer_cache.h"
#include "kernels/context/gradient_sink.h"
#include "kernels/layers/linear.h"
#include "kernels/layers/stored_linear.h"
#include "kernels/layers/weight.h"
#include "kernels/memory.h"

namespace capstan::kernels {

// The matrices of a block, in the order of TransformerBlockOptions::parameters.
enum BlockMatrix {
  kQueryMatrix,
  kKeyMatrix,
  kValueMatrix,
  kOutputMatrix,
  kGateMatrix,
  kUpMatrix,
  kDownMatrix,
  kBlockMatrices
};

// Of what a block's queries and keys are normalised, if at all.
enum class QueryKeyNorm { kNone, kHead, kRow };

// The properties of a transformer block that determine its memory.
struct TransformerBlockShape {
  int64_t rows = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;
  AttentionShape attention;
  c10::ScalarType dtype = c10::ScalarType::Float;
  // Whether rows pack several documents, which ATen computes one by one.
  bool packed = false;
  // Whether the block's own weights have gradients.
  bool trained = true;
  // Norms before attention and MLP; after them; of queries and keys.
  bool input_norms = true;
  bool post_norms = false;
  QueryKeyNorm query_key_norm = QueryKeyNorm::kNone;
  bool mlp = true;   // else only attention
  bool gpu = false;  // on a GPU
  std::array<AdapterShape, kBlockMatrices> adapters;
  bool fp8 = false;  // whether products are in 8 bits

  // Bytes of [rows, width] for widths hidden, intermediate, all query heads and
  // all key heads; and of one float32 per row.
  int64_t x() const { return Rows(hidden); }
  int64_t inner() const { return Rows(intermediate); }
  int64_t q() const { return Rows(query_width()); }
  int64_t kv() const { return Rows(key_width()); }
  int64_t rstd() const { return rows * kFloatBytes; }
  // Of the norms of queries and keys.
  int64_t query_key_rstd() const {
    const int64_t heads = attention.heads + attention.kv_heads;
    return query_key_norm == QueryKeyNorm::kNone
               ? 0
               : rstd() * (query_key_norm == QueryKeyNorm::kHead ? heads : 2);
  }
  // The gradient of a norm's weight.
  int64_t norm_gradient() const {
    return trained ? hidden * ElementBytes(dtype) : 0;
  }
  int64_t query_width() const { return attention.heads * attention.head_dim; }
  int64_t key_width() const { return attention.kv_heads * attention.head_dim; }
  LinearMemory Linear(BlockMatrix matrix) const;

 private:
  // Of the adapters that a matrix's is joined with (JoinedAdapters); 0: none.
  int64_t JoinedRank(BlockMatrix matrix) const;
  int64_t Rows(int64_t width) const {
    return rows * width * ElementBytes(dtype);
  }
};

// Rotary position embedding (Su et al., "RoFormer", 2021) in Llama's layout:
// channels i and i + head_dim / 2 are rotated by position * theta^(-2i /
// head_dim).

// Cosines and sines of positions [0, positions) for channels that rotate by
// given angles a position: [positions, 2 * inverse_frequencies.size()] float32
// on CPU, a row's first half cosines, its second half sines; times `factor`
// (the attention factor of "YaRN", Peng et al., 2023, section 3.4; else 1).
at::Tensor RopeTable(int64_t positions,
                     c10::ArrayRef<double> inverse_frequencies,
                     double factor = 1.0);

// Rotates the first table.size(1) channels of each head of x [rows, heads *
// head_dim] in place, without autograd. Row r is at the position of table row r
// % table.size(0): narrow the table to the positions of one sequence. Backward
// is the inverse rotation. An undefined table rotates nothing. Rows are dense,
// but may be apart.
enum class RopeDirection { kForward, kBackward };
void ApplyRope(const at::Tensor& table, RopeDirection direction,
               int64_t head_dim, at::Tensor& x);
// The same into y, which is another matrix.
void ApplyRopeInto(const at::Tensor& table, RopeDirection direction,
                   int64_t head_dim, const at::Tensor& x, at::Tensor& y);

// On GPUs q, k and v may be columns of one matrix, so that their rows are
// apart.
struct QueryKeyValue {
  at::Tensor q;  // [rows, heads * head_dim]
  at::Tensor k;  // [rows, kv_heads * head_dim]
  at::Tensor v;  // [rows, kv_heads * head_dim]
  // x, for what is added to it: its gradient then comes to the node of q, k and
  // v, which adds it in its last step.
  at::Tensor x;
};

struct AttentionWeights {
  at::Tensor norm;  // [hidden]; undefined: none before attention
  // [heads * head_dim, hidden] and twice [kv_heads * head_dim, hidden]. Or k
  // and v undefined, and in q all three, one below the other.
  Weight q, k, v;
  std::array<Adapter, 3> adapters = {};  // of q, k, v
  // [rows of the matrix]; undefined: none. Of all three in q_bias, if in q.
  at::Tensor q_bias = {}, k_bias = {}, v_bias = {};
  // Norms of queries and keys before rope: [head_dim], of each head; or
  // [heads * head_dim] and [kv_heads * head_dim], of the whole row; undefined:
  // none.
  at::Tensor q_norm = {}, k_norm = {};
};

struct GatedMlpWeights {
  at::Tensor norm;  // [hidden]; undefined: none before the MLP
  // [intermediate, hidden] each. Or up undefined, and in gate both, one below
  // the other.
  Weight gate, up;
  Weight down;                           // [hidden, intermediate]
  std::array<Adapter, 3> adapters = {};  // of gate, up, down
  // [rows of the matrix]; undefined: none. Of both in gate_bias, if in gate.
  at::Tensor gate_bias = {}, up_bias = {}, down_bias = {};
  // [hidden]: of the result, before it is added to x; undefined: none.
  at::Tensor post_norm = {};
};

struct TransformerBlockWeights {
  AttentionWeights attention;
  Weight output;  // [hidden, heads * head_dim]
  // gate, up and down undefined: the block ends after attention (experts
  // follow).
  GatedMlpWeights mlp;
  Adapter output_adapter = {};
  at::Tensor output_bias = {};  // [hidden]; undefined: none
  // [hidden]: of attention's output, before it is added to x; undefined: none.
  at::Tensor attention_post_norm = {};
};

// The activation of a gated MLP's gate: silu(x) = x * sigmoid(x), or GELU's
// approximation by tanh (Hendrycks & Gimpel, "Gaussian Error Linear Units",
// 2016, section 2).
enum class Activation { kSilu, kGeluTanh };

// A transformer block's inputs besides x and weights.
struct TransformerBlockOptions {
  AttentionShape shape;
  double eps = 0.0;       // of all norms
  at::Tensor rope_table;  // see ApplyRope; undefined: no rope
  // The documents in each row; rope_table then has each token's own position.
  Packing packing;
  SharedMasks masks;  // of the pass; null: the layer's own
  // If attention has other rows than x (exchanged.h).
  std::shared_ptr<AttentionExchange> exchange;
  // The keys and values of the positions before x, which is then [batch * T,
  // hidden] and has its own appended; rope_table has its positions' rows, or
  // one row per row of x. Null: x is whole sequences. Without gradients.
  LayerCache* cache = nullptr;
  at::Tensor first;  // see CachedAttention; only with a cache
  // Receives the gradients of the matrices, on GPUs of all parameters; null:
  // new tensors. Outlives the graph.
  GradientSink* sink = nullptr;
  // The sink's indices of q, k, v, output, gate, up, down; those of matrices
  // that are undefined aren't read.
  std::array<int, 7> parameters = {};
  // On GPUs also of their biases, and of norms; -1: the sink has none.
  std::array<int, 7> bias_parameters = {-1, -1, -1, -1, -1, -1, -1};
  struct NormParameters {
    int input = -1, query = -1, key = -1, attention_post = -1, mlp = -1,
        mlp_post = -1;
  } norm_parameters;
  // Norms multiply by 1 + weight, in float32, and round once (Gemma); else see
  // rms_norm.h.
  bool norm_plus_one = false;
  Activation activation = Activation::kSilu;
};

// The inputs of a block's attention: n = RmsNorm(x), q = rope(n Wq^T), k =
// rope(n Wk^T), v = n Wv^T, plus biases and adapters, with norms of q and k
// before rope if there are any; with gradients to x, the weights and the
// adapters. x: [rows, hidden]. Keeps x for backward, but not n.
QueryKeyValue AttentionInput(const at::Tensor& x,
                             const AttentionWeights& weights,
                             const TransformerBlockOptions& options);

// A block's linear layers, for all that computes one: the matrices as they are
// stored, and each layer as one of them or some of its rows.
struct BlockLinears {
  BlockLinears() = default;
  // All of a block; without gate, up and down if it ends after attention.
  BlockLinears(const TransformerBlockWeights& weights,
               const TransformerBlockOptions& options);
  // Those of a node: q, k and v; the output; gate, up and down.
  void AddAttention(const AttentionWeights& weights,
                    const TransformerBlockOptions& options);
  void AddOutput(const TransformerBlockWeights& weights,
                 const TransformerBlockOptions& options);
  void AddMlp(const GatedMlpWeights& weights,
              const TransformerBlockOptions& options);

  const LinearPart& operator[](BlockMatrix matrix) const {
    return parts[matrix];
  }

  std::vector<StoredLinear> stored;
  std::array<LinearPart, kBlockMatrices> parts;

 private:
  void Add(BlockMatrix matrix, const Weight& weight, const at::Tensor& bias,
           const Adapter& adapter, const TransformerBlockOptions& options);
  // Makes `matrix` rows [begin, begin + rows) of what was added last.
  void Split(BlockMatrix matrix, int64_t begin, int64_t rows);
};

// Adds to `ledger` what AttentionInput leaves: q, k, v and what it keeps
// besides x.
void PlanAttentionInput(const TransformerBlockShape& s, MemoryLedger* ledger);
// Continues from there, given the gradients of q, k and v.
void PlanAttentionInputBackward(const TransformerBlockShape& s,
                                MemoryLedger* ledger);

// x + post_norm(mixed Woutput^T + bias + adapter), with gradients to all.
// mixed: [rows, heads * head_dim].
at::Tensor AttentionOutput(const at::Tensor& mixed, const at::Tensor& x,
                           const TransformerBlockWeights& weights,
                           const TransformerBlockOptions& options);

// The same without x and post_norm, which AttentionOutput adds.
at::Tensor AttentionBranch(const at::Tensor& mixed,
                           const TransformerBlockWeights& weights,
                           const TransformerBlockOptions& options);

// Adds to `ledger` what AttentionOutput leaves: its output.
void PlanAttentionOutput(const TransformerBlockShape& s, MemoryLedger* ledger);
// Continues from there, given the output's gradient, which is also the
// residual's: leaves that of x.
void PlanAttentionOutputBackward(const TransformerBlockShape& s,
                                 MemoryLedger* ledger);

// act(gate) * up, the activation of a gated MLP (Shazeer, "GLU Variants Improve
// Transformer", 2020), without autograd. All tensors are of one shape and
// dtype, and contiguous, or columns of one matrix.
at::Tensor Gated(Activation activation, const at::Tensor& gate,
                 const at::Tensor& up);

struct GatedGradients {
  at::Tensor gate;
  at::Tensor up;
  at::Tensor activation;  // act(gate) * up, which backward needs too
};
// Consumes `d_activation`, whose memory a result may reuse. into_gate, into_up:
// where to write the first two (columns of one matrix); undefined: new tensors.
GatedGradients GatedBackward(Activation activation, const at::Tensor& gate,
                             const at::Tensor& up, at::Tensor d_activation,
                             const at::Tensor& into_gate = {},
                             const at::Tensor& into_up = {});

// x + post_norm((act(n Wgate^T) * (n Wup^T)) Wdown^T) with n = RmsNorm(x), plus
// biases and adapters, for x [rows, hidden], with gradients to x, the weights
// and the adapters. Keeps x and, unless RecomputesMlp(), the two projections
// for backward, which recomputes the rest. With a `branch` [rows, hidden], x +
// branch takes the place of x; there is a norm then.
at::Tensor GatedMlp(const at::Tensor& x, const GatedMlpWeights& weights,
                    const TransformerBlockOptions& options,
                    const at::Tensor& branch = {});

// Adds to `ledger` what GatedMlp leaves: its output and what it keeps besides
// x.
void PlanGatedMlp(const TransformerBlockShape& s, MemoryLedger* ledger);
// Continues from there, with the output's gradient in place of the output:
// leaves x and its gradient.
void PlanGatedMlpBackward(const TransformerBlockShape& s, MemoryLedger* ledger);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_BLOCK_PARTS_H_
