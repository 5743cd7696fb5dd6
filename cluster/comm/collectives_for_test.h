// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_COLLECTIVES_FOR_TEST_H_
#define CAPSTAN_CLUSTER_COMM_COLLECTIVES_FOR_TEST_H_

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plugins/sdk/process_group.h"

// Checks of a process group's collectives, shared by the CPU and GPU tests.
namespace capstan {

inline void Require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error("failed: " + what);
}

inline void RequireEqual(const at::Tensor& got, const at::Tensor& want,
                         const std::string& what) {
  Require(got.cpu().equal(want.cpu()), what);
}

// 0, 1, .. 7, 0, 1, .. [size] plus `offset`: sums over up to 16 ranks are exact
// in every dtype.
inline at::Tensor Ramp(int64_t size, double offset, at::ScalarType dtype,
                       at::Device device) {
  return at::arange(size, at::TensorOptions().dtype(at::kDouble))
      .remainder(8)
      .add(offset)
      .to(device, dtype);
}

// Called by every rank; throws on failure.
inline void CheckCollectives(ProcessGroup* group, at::ScalarType dtype,
                             int64_t size) {
  const int n = group->size();
  const int rank = group->rank();
  const at::Device device = group->device();
  const auto ramp = [&](int64_t length, double offset) {
    return Ramp(length, offset, dtype, device);
  };
  const std::string name = absl::StrCat(at::toString(dtype), " [", size, "] ");

  const at::Tensor sum = ramp(size, rank);
  group->AllReduce(sum)->Wait();
  at::Tensor want =
      Ramp(size, 0, at::kDouble, at::kCPU).mul(n).add(n * (n - 1) / 2);
  RequireEqual(sum, want.to(dtype), name + "all-reduce");

  const at::Tensor input = ramp(size * n, rank);
  const at::Tensor slice = ramp(size, 0);
  group->ReduceScatter(slice, input)->Wait();
  want = Ramp(size * n, 0, at::kDouble, at::kCPU).mul(n).add(n * (n - 1) / 2);
  want = want.slice(0, rank * size, (rank + 1) * size);
  RequireEqual(slice, want.to(dtype), name + "reduce-scatter");

  const at::Tensor gathered = ramp(size * n, -1);
  group->AllGather(gathered, ramp(size, 10 * rank))->Wait();
  std::vector<at::Tensor> parts;
  for (int i = 0; i < n; ++i) parts.push_back(ramp(size, 10 * i));
  RequireEqual(gathered, at::cat(parts), name + "all-gather");

  // In place: the input is this rank's slice of the output, and vice versa.
  const at::Tensor whole = ramp(size * n, -1);
  const at::Tensor own = whole.narrow(0, rank * size, size);
  own.copy_(ramp(size, 10 * rank));
  group->AllGather(whole, own)->Wait();
  RequireEqual(whole, at::cat(parts), name + "all-gather in place");
  whole.copy_(input);
  group->ReduceScatter(own, whole)->Wait();
  RequireEqual(own, want.to(dtype), name + "reduce-scatter in place");

  const at::Tensor told = ramp(size, rank);
  group->Broadcast(told, n - 1)->Wait();
  RequireEqual(told, ramp(size, n - 1), name + "broadcast");

  // Slice r of rank q holds 10 q + r.
  parts.clear();
  std::vector<at::Tensor> mine;
  const auto constant = [&](int value) {
    return at::full({size}, value, told.options());
  };
  for (int i = 0; i < n; ++i) {
    mine.push_back(constant(10 * rank + i));
    parts.push_back(constant(10 * i + rank));
  }
  const at::Tensor exchanged = ramp(size * n, -1);
  group->AllToAll(exchanged, at::cat(mine))->Wait();
  RequireEqual(exchanged, at::cat(parts), name + "all-to-all");

  // To the next rank, in a ring and in a row.
  const at::Tensor received = constant(-1);
  group->SendRecv(received, (rank + n - 1) % n, constant(rank), (rank + 1) % n)
      ->Wait();
  RequireEqual(received, constant((rank + n - 1) % n), name + "ring");
  group
      ->SendRecv(received, rank - 1, constant(3 + rank),
                 rank + 1 < n ? rank + 1 : -1)
      ->Wait();
  RequireEqual(received, constant(rank == 0 ? n - 1 : 2 + rank), name + "row");
}

// Several concurrent all-reduces, waited for in another order.
inline void CheckOverlap(ProcessGroup* group) {
  std::vector<at::Tensor> tensors;
  std::vector<std::unique_ptr<Work>> works;
  for (int i = 0; i < 8; ++i) {
    tensors.push_back(at::full(
        {100000}, i + group->rank(),
        at::TensorOptions().dtype(at::kFloat).device(group->device())));
    works.push_back(group->AllReduce(tensors.back()));
  }
  const int n = group->size();
  for (int i = 7; i >= 0; --i) {
    works[i]->Wait();
    const at::Tensor want =
        at::full({100000}, i * n + n * (n - 1) / 2, at::kFloat);
    RequireEqual(tensors[i], want, absl::StrCat("all-reduce ", i, " of 8"));
  }
}

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_COLLECTIVES_FOR_TEST_H_
