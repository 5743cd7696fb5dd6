// SPDX-License-Identifier: Apache-2.0
#include "testing/standin/operators/cost.h"

#include <ATen/Context.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "testing/standin/operators/operands.h"

namespace capstan::standin {
namespace {

// The left and right factor of a product: indices of arguments; -1: none.
int FactorOf(const std::string& name) {
  static const std::map<std::string, int>* const kFirst =
      new std::map<std::string, int>{
          {"aten::mm", 0},      {"aten::bmm", 0},      {"aten::mv", 0},
          {"aten::dot", 0},     {"aten::addmm", 1},    {"aten::addmm_", 1},
          {"aten::baddbmm", 1}, {"aten::baddbmm_", 1}, {"aten::addmv", 1},
          {"aten::addmv_", 1}};
  const auto at = kFirst->find(name);
  return at == kFirst->end() ? -1 : at->second;
}

// What writes all of its argument without reading it.
bool Overwrites(const std::string& name) {
  static const std::set<std::string>* const kNames = new std::set<std::string>{
      "aten::zero_",    "aten::fill_",   "aten::copy_",     "aten::normal_",
      "aten::uniform_", "aten::random_", "aten::bernoulli_"};
  return kNames->count(name) > 0;
}

// What reads of its first argument only what it returns.
bool Gathers(const std::string& name) {
  static const std::set<std::string>* const kNames = new std::set<std::string>{
      "aten::index", "aten::index_select", "aten::gather", "aten::embedding"};
  return kNames->count(name) > 0;
}

// What writes into its first argument only as much as its last tensor has.
bool Scatters(const std::string& name) {
  static const std::set<std::string>* const kNames = new std::set<std::string>{
      "aten::_index_put_impl_", "aten::index_add_", "aten::scatter_",
      "aten::scatter_add_", "aten::index_copy_"};
  return kNames->count(name) > 0;
}

// Rows of up to 4096 are sorted by one kernel after the indices are made and,
// by the copy engine, the keys copied (Sort.cu, sortKeyValueInplace); longer
// ones by CUB's radix sort, of 8 bits a pass after a histogram and its sum
// (agent_radix_sort_onesweep).
int SortLaunches(const at::Tensor& t) {
  const int64_t row = t.dim() == 0 ? 1 : t.size(-1);
  return row <= 4096 ? 2 : 3 + static_cast<int>(t.element_size());
}

// Integers of another dtype are cast before they are summed; 16-bit numbers
// are, as they are read, if the sum is float32 (ReduceOps.cpp).
int SumLaunches(const at::Tensor& t, const std::vector<c10::IValue>& results) {
  if (results.empty() || !results[0].isTensor()) return 1;
  const c10::ScalarType to = results[0].toTensor().scalar_type();
  const bool as_read = to == at::kFloat && t.element_size() == 2;
  return t.scalar_type() == to || as_read ? 1 : 2;
}

// multi_tensor_apply: up to 110, 64, 48, 36 or 30 tensors of each of 1 to 5
// lists a launch, and up to 320 chunks of 65536 elements
// (MultiTensorApply.cuh).
int ForeachLaunches(const std::vector<c10::IValue>& arguments) {
  static constexpr int64_t kTensors[] = {110, 64, 48, 36, 30};
  int lists = 0;
  int64_t tensors = 0, chunks = 0;
  for (const c10::IValue& value : arguments) {
    if (!value.isTensorList()) continue;
    ++lists;
    if (lists > 1) continue;
    for (const at::Tensor& t : value.toTensorVector()) {
      ++tensors;
      chunks += (t.numel() + 65535) / 65536;
    }
  }
  const int64_t each = kTensors[std::clamp(lists, 1, 5) - 1];
  return static_cast<int>(std::max<int64_t>(
      {1, (tensors + each - 1) / each, (chunks + 319) / 320}));
}

// Kernels of one call. Reductions, softmax, elementwise operators and cuBLAS's
// products are one.
int LaunchesOf(const c10::FunctionSchema& schema,
               const std::vector<c10::IValue>& arguments,
               const std::vector<c10::IValue>& results) {
  const std::string& name = schema.name();
  if (name == "aten::sum") {
    return SumLaunches(arguments[0].toTensor(), results);
  }
  // A product before it (SoftMax.cu); the input's gradient and the weights'
  // (layer_norm_kernel.cu); zeros before the gradients of the rows' targets
  // (Loss.cu).
  if (name == "aten::_softmax_backward_data" ||
      name == "aten::native_layer_norm_backward" ||
      name == "aten::nll_loss_backward") {
    return 2;
  }
  if (name == "aten::sort" || name == "aten::argsort") {
    return SortLaunches(arguments[0].toTensor());
  }
  // A scan of one row is CUB's, which also prepares its tiles (ScanUtils.cuh).
  if (name == "aten::cumsum") return arguments[0].toTensor().dim() == 1 ? 2 : 1;
  // Count and select (Nonzero.cu).
  if (name == "aten::nonzero" || name == "aten::masked_select") return 3;
  // The largest of each row, and sorting them (TensorTopK.cu).
  if (name == "aten::topk") return 2;
  // Sorted indices, then segments (EmbeddingBackwardKernel.cu).
  if (name == "aten::embedding_dense_backward") {
    return SortLaunches(arguments[1].toTensor().reshape({-1})) + 5;
  }
  if (name == "aten::cat") {  // 128 tensors a launch (Shape.cu)
    const int64_t tensors = arguments[0].toListRef().size();
    return static_cast<int>(std::max<int64_t>(1, (tensors + 127) / 128));
  }
  if (name == "aten::copy_") {  // cudaMemcpyAsync, if nothing changes (Copy.cu)
    const at::Tensor &to = arguments[0].toTensor(),
                     &from = arguments[1].toTensor();
    return to.scalar_type() == from.scalar_type() && to.is_contiguous() &&
                   from.is_contiguous()
               ? 0
               : 1;
  }
  if (name == "aten::addmm" || name == "aten::baddbmm") {
    // A matrix that isn't the result is copied into it first (Blas.cpp); a
    // vector is added by the product's epilogue.
    const at::Tensor& self = arguments[0].toTensor();
    const c10::IValue& last = arguments.back();
    const bool same = last.isTensor() && last.toTensor().is_same(self);
    return same || self.dim() == 1 ? 1 : 2;
  }
  if (name.rfind("aten::_foreach", 0) == 0 ||
      name.rfind("aten::_fused_adam", 0) == 0) {
    return ForeachLaunches(arguments);
  }
  return 1;
}

int64_t BytesIn(const c10::IValue& value) {
  int64_t bytes = 0;
  ForEachTensor(value, [&](const at::Tensor& t) { bytes += BytesOf(t); });
  return bytes;
}

double NumbersIn(const c10::IValue& value) {
  double numbers = 0;
  ForEachTensor(value, [&](const at::Tensor& t) {
    numbers += static_cast<double>(BytesOf(t)) / t.element_size();
  });
  return numbers;
}

}  // namespace

Unit UnitOfProducts(c10::ScalarType dtype) {
  if (dtype == at::kBFloat16 || dtype == at::kHalf) return Unit::kHalf;
  if (dtype == at::kFloat8_e4m3fn || dtype == at::kFloat8_e5m2) {
    return Unit::kFp8;
  }
  return dtype == at::kFloat && at::globalContext().allowTF32CuBLAS()
             ? Unit::kTf32
             : Unit::kVector;
}

void SetProduct(const at::Tensor& a, const at::Tensor& b, Cost* cost) {
  cost->k = a.size(-1);
  cost->n = b.dim() < 2 ? 1 : b.size(-1);
  cost->m = a.dim() < 2 ? 1 : a.size(-2);
  cost->products = a.dim() < 3 ? 1 : a.size(0);
  cost->flops =
      2.0 * static_cast<double>(a.numel()) * static_cast<double>(cost->n);
  cost->unit = UnitOfProducts(a.scalar_type());
}

int64_t BytesOf(const at::Tensor& t) {
  if (!t.defined()) return 0;
  int64_t elements = 1;
  for (int64_t d = 0; d < t.dim(); ++d) {
    if (t.stride(d) != 0 || t.size(d) == 0) elements *= t.size(d);
  }
  return elements * static_cast<int64_t>(t.element_size());
}

Cost CostOf(const c10::FunctionSchema& schema,
            const std::vector<c10::IValue>& arguments,
            const std::vector<c10::IValue>& results) {
  const std::string& name = schema.name();
  Cost cost;
  double read = 0, written = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const bool write = Written(argument);
    if (write) {
      cost.bytes_written += BytesIn(arguments[i]);
      written += NumbersIn(arguments[i]);
    }
    if (!write || !(argument.is_out() || Overwrites(name))) {
      cost.bytes_read += BytesIn(arguments[i]);
      read += NumbersIn(arguments[i]);
    }
  }
  for (const c10::IValue& result : results) {
    cost.bytes_written += BytesIn(result);
    written += NumbersIn(result);
  }
  if (Gathers(name)) {
    cost.bytes_read += cost.bytes_written - BytesIn(arguments[0]);
  }
  if (Scatters(name)) {
    const int64_t rest = cost.bytes_read - BytesIn(arguments[0]);
    cost.bytes_read = cost.bytes_written = rest;
    read = written = rest / 4.0;
  }
  const int factor = FactorOf(name);
  if (factor >= 0) {
    SetProduct(arguments[factor].toTensor(), arguments[factor + 1].toTensor(),
               &cost);
  } else {
    cost.flops = std::max(read, written);
  }
  cost.launches = LaunchesOf(schema, arguments, results);
  return cost;
}

double AttentionFlops(const AttentionSizes& s) {
  const int64_t keys = s.window > 0 ? std::min(s.window, s.keys) : s.keys;
  const bool half = s.causal && keys == s.keys;
  return 4.0 * s.batch * s.heads * static_cast<double>(s.queries) * keys *
         s.head_dim * (half ? 0.5 : 1.0);
}

double AttentionBackwardFlops(const AttentionSizes& s) {
  return 2.5 * AttentionFlops(s);
}

}  // namespace capstan::standin
