// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/decoder/row_division.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "plugins/sdk/dataset.h"

namespace capstan::decoder {
namespace {

// x [B, T] with `more` columns of `value`.
at::Tensor WithColumns(const at::Tensor& x, int64_t more, int64_t value) {
  return at::cat({x, at::full({x.size(0), more}, value, x.options())}, 1);
}

// Each rank's part of a loss that all have whole, in backward.
class WholeSumsFunction : public torch::autograd::Function<WholeSumsFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx,
                            const at::Tensor& sums, const at::Tensor& whole,
                            double share) {
    ctx->saved_data["share"] = share;
    return whole;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx,
      const torch::autograd::variable_list& d) {
    return {d[0] * ctx->saved_data["share"].toDouble(), at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

int64_t OwnLength(int64_t length, int64_t ranks) {
  return ranks == 1 ? length : (length + 2 * ranks - 1) / (2 * ranks) * 2;
}

void PlanExchange(const kernels::AttentionShape& shape, int64_t rows,
                  int64_t ranks, c10::ScalarType dtype, bool gpu,
                  kernels::OperatorMemory* layer) {
  if (ranks == 1) return;
  const int64_t width = rows * shape.head_dim * kernels::ElementBytes(dtype);
  const int64_t q = width * shape.heads, kv = 2 * width * shape.kv_heads;
  if (DividesHeads(ranks, shape.heads, shape.kv_heads)) {
    // On CPUs q, k, v, the result and its sums are kept once more, and have
    // gradients once more.
    const int64_t sums = rows * shape.heads * kernels::kFloatBytes;
    layer->kept += gpu ? 0 : 2 * q + kv + sums;
    layer->forward += 2 * q;  // sent, and received
    layer->backward += 2 * q + (gpu ? 0 : 2 * q + kv);
    return;
  }
  // Of all ranks: as they come, in order, and half of them on the way there.
  // GPUs keep them, and a copy of those that packed rows see.
  const int64_t all = kv * ranks;
  layer->kept += gpu ? (shape.causal ? 1 : 2) * all : 0;
  layer->forward += kv + 2 * all + all / 2;
  // With the gradients, and these in the order of the ranks, in float32.
  const bool rounds = dtype != c10::ScalarType::Float;
  layer->backward += 3 * all + (rounds ? 2 * all : 0) + kv;
}

void RowDivision::Pad(bool by_place, TokenInput* input,
                      TokenTargets* targets) const {
  const int64_t batch = input->tokens.size(0), length = input->tokens.size(1);
  const int64_t count = chunk_count();
  const int64_t more = (count - length % count) % count;
  if (more == 0) return;
  input->tokens = WithColumns(input->tokens, more, 0);
  targets->tokens = WithColumns(targets->tokens, more, kIgnoredTarget);
  if (targets->weights.defined()) {
    targets->weights = WithColumns(targets->weights, more, 0);
  }
  if (input->positions.defined()) {
    input->positions = WithColumns(input->positions, more, 0);
  } else if (!by_place) {
    input->positions = WithColumns(
        at::arange(length, at::kLong).expand({batch, length}), more, 0);
  }
}

std::vector<kernels::RowChunk> RowDivision::ChunksOf(int64_t length) const {
  const int64_t of_chunk = length / chunk_count();
  std::vector<kernels::RowChunk> chunks = {{rank() * of_chunk, of_chunk}};
  if (!by_heads_) {
    chunks.push_back({(chunk_count() - 1 - rank()) * of_chunk, of_chunk});
  }
  return chunks;
}

void RowDivision::SetPass(int64_t batch, int64_t length) {
  batch_ = batch;
  chunks_ = ChunksOf(length);
}

at::Tensor RowDivision::PartOf(const at::Tensor& x) const {
  std::vector<at::Tensor> parts;
  for (const kernels::RowChunk& chunk : ChunksOf(x.size(1))) {
    parts.push_back(x.narrow(1, chunk.begin, chunk.length));
  }
  return at::cat(parts, 1);
}

at::Tensor RowDivision::WholeSums(const at::Tensor& sums) {
  const at::Tensor whole = sums.detach().clone();
  if (divides()) group_.AllReduce(whole)->Wait();
  return WholeSumsFunction::apply(sums, whole, divides() ? 1.0 : 1.0 / ranks());
}

at::Tensor RowDivision::WholeRows(const at::Tensor& x, int64_t length) {
  if (!divides()) return WholeSums(x);
  const int64_t padded = x.size(1) * ranks();
  const at::Tensor own =
      PartOf(at::arange(padded, at::kLong).unsqueeze(0)).view({-1});
  return WholeSums(at::zeros({x.size(0), padded}, x.options())
                       .index_copy(1, own.to(x.device()), x))
      .narrow(1, 0, length)
      .contiguous();
}

at::Tensor RowDivision::PlacesOf(const at::Tensor& places,
                                 int64_t length) const {
  at::Tensor own = at::full_like(places, -1);
  int64_t before = 0;
  for (const kernels::RowChunk& chunk : ChunksOf(length)) {
    const at::Tensor in = places - chunk.begin;
    own = at::where((in >= 0) & (in < chunk.length), in + before, own);
    before += chunk.length;
  }
  return own;
}

at::Tensor RowDivision::Unpadded(const at::Tensor& tokens,
                                 int64_t length) const {
  if (tokens.size(1) == length) return {};
  const at::Tensor there = at::arange(length, at::kLong) < tokens.size(1);
  return PartOf(there.unsqueeze(0).expand({tokens.size(0), length}))
      .reshape({-1})
      .to(at::kFloat);
}

kernels::RowPositions RowDivision::Positions(int64_t length) const {
  const std::vector<kernels::RowChunk> chunks = ChunksOf(length);
  const kernels::RowChunk& first = chunks.front();
  return {first.begin,
          by_heads_ ? 0 : chunks.back().begin - first.begin - first.length};
}

at::Tensor RowDivision::ToAttention(const at::Tensor& x) {
  const int64_t n = ranks(), width = x.size(1) / n;
  if (whole_rows_)
    return x.narrow(1, group_.rank() * width, width).contiguous();
  // [B, T / n, n, width] to [n, B, T / n, width]: a slice for each rank.
  const at::Tensor sent =
      x.view({batch_, -1, n, width}).permute({2, 0, 1, 3}).contiguous();
  const at::Tensor received = at::empty(sent.sizes(), sent.options());
  group_.AllToAll(received, sent)->Wait();
  return received.permute({1, 0, 2, 3}).reshape({-1, width});
}

at::Tensor RowDivision::FromAttention(const at::Tensor& x) {
  const int64_t n = ranks(), width = x.size(1);
  if (whole_rows_) {
    const at::Tensor all = at::empty({n, x.size(0), width}, x.options());
    group_.AllGather(all, x.contiguous())->Wait();
    return all.permute({1, 0, 2}).reshape({-1, n * width});
  }
  // [B, n, T / n, width] to [n, B, T / n, width], and what comes is by heads.
  const at::Tensor sent =
      x.view({batch_, n, -1, width}).permute({1, 0, 2, 3}).contiguous();
  const at::Tensor received = at::empty(sent.sizes(), sent.options());
  group_.AllToAll(received, sent)->Wait();
  return received.permute({1, 2, 0, 3}).reshape({-1, n * width});
}

// Rank r's rows are chunks r and 2n - 1 - r: as [B, 2, n, c, width], the second
// half in reverse, those of one place in n.
at::Tensor RowDivision::Gather(const at::Tensor& x) {
  const int64_t n = ranks(), width = x.size(1);
  const at::Tensor all = at::empty({n, x.size(0), width}, x.options());
  group_.AllGather(all, x.contiguous())->Wait();
  const at::Tensor halves = all.view({n, batch_, 2, -1, width});
  const at::Tensor whole =
      at::empty({batch_, 2 * n, halves.size(3), width}, x.options());
  whole.narrow(1, 0, n).copy_(halves.select(2, 0).transpose(0, 1));
  whole.narrow(1, n, n).copy_(halves.select(2, 1).flip(0).transpose(0, 1));
  return whole.view({-1, width});
}

at::Tensor RowDivision::SumOwn(const at::Tensor& dy) {
  const int64_t n = ranks(), width = dy.size(1);
  const at::Tensor chunks =
      dy.view({batch_, 2 * n, -1, width}).transpose(0, 1);  // [2n, B, c, width]
  const at::Tensor sent =
      at::stack({chunks.narrow(0, 0, n), chunks.narrow(0, n, n).flip(0)}, 2)
          .to(at::kFloat)
          .contiguous();
  const at::Tensor own = at::empty(sent.sizes().slice(1), sent.options());
  group_.ReduceScatter(own, sent)->Wait();
  return own.view({-1, width}).to(dy.scalar_type());
}

}  // namespace capstan::decoder
