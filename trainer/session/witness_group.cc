// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/witness_group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/collective_label.h"
#include "base/status.h"
#include "cluster/comm/phase_group.h"
#include "kernels/witness/chunk_sums.h"
#include "kernels/witness/memory_sums.h"

namespace capstan {
namespace {

// Of a checksum of moved bytes, in int64: the parity.
constexpr int64_t kParity = 8;

bool IsSummed(const at::Tensor& t) {
  return at::isFloatingType(t.scalar_type());
}

// What is summed and compared: of float64, which deterministic runs send, its
// value in float32, which is what they take of the result.
at::Tensor Narrowed(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? t.to(at::kFloat) : t;
}

bool SameBits(const at::Tensor& a, const at::Tensor& b) {
  return std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

// Of `slices` equal parts of `whole`, one behind another: [slices, 2, chunks].
at::Tensor SumsOf(const at::Tensor& whole, int64_t slices) {
  const at::Tensor t = Narrowed(whole);
  const int64_t numel = t.numel() / slices, chunks = kernels::ChunksOf(numel);
  at::Tensor sums = at::zeros({slices, 2, chunks}, at::kDouble);
  double* const out = sums.mutable_data_ptr<double>();
  for (int64_t s = 0; s < slices; ++s) {
    double* const mine = out + 2 * s * chunks;
    kernels::SumChunks(t, s * numel, (s + 1) * numel, mine, mine + chunks);
  }
  return sums;
}

// [slices, kParity] int64.
at::Tensor ParityOf(const at::Tensor& t, int64_t slices) {
  at::Tensor parity = at::zeros({slices, kParity}, at::kLong);
  const auto bytes = static_cast<int64_t>(t.nbytes()) / slices;
  const auto* const from = static_cast<const char*>(t.const_data_ptr());
  for (int64_t s = 0; s < slices; ++s) {
    kernels::ParityOfBytes(from + s * bytes, bytes,
                           parity.mutable_data_ptr<int64_t>() + s * kParity);
  }
  return parity;
}

class WitnessedWork final : public Work {
 public:
  WitnessedWork(std::unique_ptr<Work> work, std::unique_ptr<Work> beside,
                std::function<void()> check)
      : work_(std::move(work)),
        beside_(std::move(beside)),
        check_(std::move(check)) {}
  void Wait() override {
    work_->Wait();
    if (beside_ == nullptr) return;
    beside_->Wait();
    beside_ = nullptr;
    check_();
  }

 private:
  const std::unique_ptr<Work> work_;
  std::unique_ptr<Work> beside_;
  const std::function<void()> check_;
};

class WitnessGroup final : public ProcessGroup, public GroupAround {
 public:
  // `ranks` may be empty if they are those of the run.
  WitnessGroup(std::unique_ptr<ProcessGroup> group, MessageChecks checks,
               std::vector<int> ranks)
      : group_(std::move(group)),
        checks_(std::move(checks)),
        ranks_(std::move(ranks)) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  at::Device device() const override { return group_->device(); }
  std::string backend() const override { return group_->backend(); }

  std::unique_ptr<Work> AllReduce(const at::Tensor& tensor) override {
    if (!IsSummed(tensor) || !checks_.due()) return group_->AllReduce(tensor);
    const at::Tensor sums = SumsOf(tensor, 1);
    const at::Tensor copy = checks_.twice ? tensor.clone() : at::Tensor();
    std::unique_ptr<Work> work = group_->AllReduce(tensor);
    work = Witnessed(std::move(work), group_->AllReduce(sums), "all-reduce",
                     [this, tensor, sums](const std::string& what) {
                       CompareSums(tensor, sums, what);
                     });
    if (!checks_.twice) return work;
    return Twice(std::move(work), group_->AllReduce(copy), "all-reduce", tensor,
                 copy);
  }
  std::unique_ptr<Work> ReduceScatter(const at::Tensor& output,
                                      const at::Tensor& input) override {
    if (!IsSummed(input) || !checks_.due()) {
      return group_->ReduceScatter(output, input);
    }
    const at::Tensor copy = checks_.twice ? input.clone() : at::Tensor();
    const at::Tensor sums = SumsOf(input, size());
    at::Tensor mine = at::empty({1, 2, sums.size(2)}, at::kDouble);
    std::unique_ptr<Work> work = group_->ReduceScatter(output, input);
    work = Witnessed(std::move(work), group_->ReduceScatter(mine, sums),
                     "reduce-scatter",
                     [this, output, sums, mine](const std::string& what) {
                       CompareSums(output, mine, what);
                     });
    if (!checks_.twice) return work;
    const at::Tensor again = at::empty_like(output);
    return Twice(std::move(work), group_->ReduceScatter(again, copy),
                 "reduce-scatter", output, again, copy);
  }
  std::unique_ptr<Work> AllGather(const at::Tensor& output,
                                  const at::Tensor& input) override {
    if (!checks_.due()) return group_->AllGather(output, input);
    const at::Tensor mine = ParityOf(input, 1);
    at::Tensor all = at::empty({size(), kParity}, at::kLong);
    std::unique_ptr<Work> work = group_->AllGather(output, input);
    return Witnessed(std::move(work), group_->AllGather(all, mine),
                     "all-gather",
                     [this, output, mine, all](const std::string& what) {
                       CompareParity(output, all, -1, what);
                     });
  }
  std::unique_ptr<Work> Broadcast(const at::Tensor& tensor, int root) override {
    if (!checks_.due()) return group_->Broadcast(tensor, root);
    const at::Tensor parity = ParityOf(tensor, 1);
    std::unique_ptr<Work> work = group_->Broadcast(tensor, root);
    return Witnessed(std::move(work), group_->Broadcast(parity, root),
                     "broadcast",
                     [this, tensor, parity, root](const std::string& what) {
                       CompareParity(tensor, parity, root, what);
                     });
  }
  std::unique_ptr<Work> AllToAll(const at::Tensor& output,
                                 const at::Tensor& input) override {
    if (!checks_.due()) return group_->AllToAll(output, input);
    const at::Tensor mine = ParityOf(input, size());
    at::Tensor theirs = at::empty({size(), kParity}, at::kLong);
    std::unique_ptr<Work> work = group_->AllToAll(output, input);
    return Witnessed(std::move(work), group_->AllToAll(theirs, mine),
                     "all-to-all",
                     [this, output, mine, theirs](const std::string& what) {
                       CompareParity(output, theirs, -1, what);
                     });
  }
  std::unique_ptr<Work> SendRecv(const at::Tensor& output, int from,
                                 const at::Tensor& input, int to) override {
    if (!checks_.due()) return group_->SendRecv(output, from, input, to);
    const at::Tensor mine = ParityOf(input, 1);
    at::Tensor theirs = at::empty({1, kParity}, at::kLong);
    std::unique_ptr<Work> work = group_->SendRecv(output, from, input, to);
    return Witnessed(
        std::move(work), group_->SendRecv(theirs, from, mine, to), "send",
        [this, output, mine, theirs, from](const std::string& what) {
          if (from < 0) return;
          CompareParity(output, theirs, from, what);
        });
  }

  void AllReduceHost(absl::Span<double> values) override {
    group_->AllReduceHost(values);
  }

  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color) override {
    CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> part,
                             group_->Split(color));
    std::vector<double> ranks(part->size());
    ranks[part->rank()] = ranks_.empty() ? rank() : ranks_[rank()];
    CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
      part->AllReduceHost(absl::MakeSpan(ranks));
      return absl::OkStatus();
    }));
    return std::unique_ptr<ProcessGroup>(
        new WitnessGroup(std::move(part), checks_,
                         std::vector<int>(ranks.begin(), ranks.end())));
  }

  CommunicationStats stats() const override { return group_->stats(); }

  ProcessGroup& inner() override { return *group_; }

 private:
  std::unique_ptr<Work> Witnessed(
      std::unique_ptr<Work> work, std::unique_ptr<Work> beside,
      const char* kind, std::function<void(const std::string&)> check) {
    const std::string what =
        CollectiveLabel::Current().empty()
            ? absl::StrCat("the ", kind)
            : absl::StrCat("the ", kind, " of ", CollectiveLabel::Current());
    return std::make_unique<WitnessedWork>(
        std::move(work), std::move(beside),
        [what, check = std::move(check)] { check(what); });
  }

  // `sent` is kept until the second sum has been waited for.
  std::unique_ptr<Work> Twice(std::unique_ptr<Work> work,
                              std::unique_ptr<Work> beside, const char* kind,
                              const at::Tensor& result, const at::Tensor& again,
                              const at::Tensor& sent = {}) {
    return Witnessed(std::move(work), std::move(beside), kind,
                     [this, result, again, sent](const std::string& what) {
                       if (!SameBits(result, again)) Tell(what, -1);
                     });
  }

  // result: a sum over the ranks; sums: [1, 2, chunks], likewise.
  void CompareSums(const at::Tensor& result, const at::Tensor& sums,
                   const std::string& what) const {
    const at::Tensor found = SumsOf(result, 1);
    const int64_t chunks = sums.size(2);
    const double* const wanted = sums.const_data_ptr<double>();
    const double* const is = found.const_data_ptr<double>();
    const kernels::NumberType type =
        kernels::NumberTypeOf(Narrowed(result.narrow(0, 0, 0)).scalar_type());
    // Of the result, and of the sums of float32 that are compared.
    const double unit = kernels::UnitRoundoff(type) + 2.0 * 0x1p-24;
    // A partial sum's square is at most that of its terms times their number.
    const double ranks = size();
    // What underflows: in the squares, and in the sums' numbers.
    const double lost = ranks * kernels::kSumChunk * kernels::kUnderflow;
    const double smallest = ranks *
                            std::sqrt(static_cast<double>(kernels::kSumChunk)) *
                            kernels::SmallestRounding(type);
    for (int64_t i = 0; i < chunks; ++i) {
      const double bound =
          kernels::kDeviations *
          (unit * std::sqrt(ranks * (wanted[chunks + i] + lost)) + smallest);
      const double error = std::abs(wanted[i] - is[i]);
      // Gradients may overflow.
      if (error <= bound || !std::isfinite(wanted[i])) continue;
      Tell(what, -1);
      return;
    }
  }

  // Slice s of `output` has row s of `parity`; it comes from rank s, or `from`.
  void CompareParity(const at::Tensor& output, const at::Tensor& parity,
                     int from, const std::string& what) const {
    const int64_t slices = parity.size(0);
    const at::Tensor is = ParityOf(output, slices);
    for (int64_t s = 0; s < slices; ++s) {
      if (std::memcmp(is.const_data_ptr<int64_t>() + s * kParity,
                      parity.const_data_ptr<int64_t>() + s * kParity,
                      kParity * sizeof(int64_t)) != 0) {
        Tell(what, from >= 0 ? from : static_cast<int>(s));
      }
    }
  }

  // `from`: a rank of this group.
  void Tell(const std::string& what, int from) const {
    if (checks_.phases != nullptr && checks_.phases->PhaseFailed()) return;
    checks_.on_wrong(
        {what, from >= 0 && !ranks_.empty() ? ranks_[from] : from});
  }

  const std::unique_ptr<ProcessGroup> group_;
  const MessageChecks checks_;
  const std::vector<int> ranks_;  // of the run, by rank of this group
};

}  // namespace

std::unique_ptr<ProcessGroup> WitnessMessages(
    std::unique_ptr<ProcessGroup> group, MessageChecks checks) {
  return std::make_unique<WitnessGroup>(std::move(group), std::move(checks),
                                        std::vector<int>());
}

}  // namespace capstan
