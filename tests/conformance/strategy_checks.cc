// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/strategy_checks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace capstan {
namespace conformance {
namespace {

// Undefined ones are equal to each other.
bool Same(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.sizes() == b.sizes() && a.equal(b);
}

// Of the bits; whole numbers that a double holds.
double DigestOf(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().cpu().contiguous();
  const auto* bytes = static_cast<const uint8_t*>(flat.const_data_ptr());
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (size_t i = 0; i < flat.nbytes(); ++i) {
    hash = (hash ^ bytes[i]) * 0x100000001b3u;
  }
  return static_cast<double>(hash >> 12);
}

at::Tensor Copy(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.clone() : tensor;
}

std::vector<double> ToDoubles(const at::Tensor& tensor) {
  const at::Tensor flat =
      tensor.detach().to(at::kCPU, at::kDouble).contiguous();
  const double* data = flat.const_data_ptr<double>();
  return std::vector<double>(data, data + flat.numel());
}

// Problems of one shard.
class ShardChecker {
 public:
  ShardChecker(int number, const OptimizerShard& shard,
               const ToyTrainer& trainer)
      : number_(number),
        shard_(shard),
        precision_(trainer.run().precision),
        specs_(trainer.model().parameters()) {}

  std::vector<std::string> Check(bool gradients) {
    CheckTensor("master", shard_.master, precision_.master);
    CheckTensor("gradient", shard_.gradient, precision_.reduce);
    const bool narrow = precision_.compute != precision_.master;
    if (shard_.working.defined()) {
      CheckTensor("working", shard_.working, precision_.compute);
    } else if (narrow) {
      Add("there is no working copy, though the precision computes in another "
          "dtype than the masters'");
    }
    if (!problems_.empty()) return problems_;
    CheckRanges();
    if (!problems_.empty()) return problems_;
    const at::Tensor gaps = Gaps();
    CheckZero("master", shard_.master, gaps);
    if (gradients) CheckZero("gradient", shard_.gradient, gaps);
    if (shard_.working.defined() &&
        !shard_.working.equal(shard_.master.to(precision_.compute))) {
      Add("the working copy is not the master, rounded");
    }
    return problems_;
  }

 private:
  void Add(const std::string& text) {
    problems_.push_back(absl::StrCat("shard ", number_, ": ", text));
  }

  void CheckTensor(const char* what, const at::Tensor& tensor,
                   at::ScalarType dtype) {
    if (!tensor.defined()) return Add(absl::StrCat(what, " is undefined"));
    if (tensor.dim() != 1 || !tensor.is_contiguous()) {
      Add(absl::StrCat(what, " is not 1-D and contiguous"));
    }
    if (tensor.scalar_type() != dtype) {
      Add(absl::StrCat(what, " is ", c10::toString(tensor.scalar_type()),
                       ", not ", c10::toString(dtype)));
    }
    if (tensor.numel() != shard_.master.numel() ||
        tensor.device() != shard_.master.device()) {
      Add(absl::StrCat(what, " and master differ in length or device"));
    }
  }

  void CheckRanges() {
    int64_t at = 0;
    for (const ParameterRange& r : shard_.ranges) {
      const std::string where =
          absl::StrCat("the range of parameter ", r.parameter, " from ",
                       r.begin, ", ", r.length, " at ", r.offset, ", ");
      if (r.parameter < 0 || r.parameter >= static_cast<int>(specs_.size()) ||
          !specs_[r.parameter].trainable) {
        Add(absl::StrCat(where, "is of no trainable parameter"));
        continue;
      }
      if (r.begin < 0 || r.length <= 0 ||
          r.begin + r.length > specs_[r.parameter].numel()) {
        Add(absl::StrCat(where, "is not inside it"));
      }
      if (r.offset < at || r.offset + r.length > shard_.master.numel()) {
        Add(absl::StrCat(where, "overlaps the one before or leaves the shard"));
      }
      at = r.offset + r.length;
    }
  }

  // True where padding is.
  at::Tensor Gaps() const {
    at::Tensor gaps = at::ones({shard_.master.numel()}, at::kBool);
    for (const ParameterRange& r : shard_.ranges) {
      gaps.narrow(0, r.offset, r.length).zero_();
    }
    return gaps;
  }

  void CheckZero(const char* what, const at::Tensor& tensor,
                 const at::Tensor& gaps) {
    if (((tensor.cpu() != 0) & gaps).any().item<bool>()) {
      Add(absl::StrCat("the padding of ", what, " is not zero"));
    }
  }

  const int number_;
  const OptimizerShard& shard_;
  const PrecisionPolicy precision_;
  const std::vector<ParameterSpec>& specs_;
  std::vector<std::string> problems_;
};

}  // namespace

ShardSnapshot::ShardSnapshot(ToyTrainer& trainer) {
  const std::vector<at::Tensor> momenta = trainer.momenta();
  for (const OptimizerShard& shard : trainer.strategy().OptimizerShards()) {
    Shard copy;
    copy.tensors = shard;
    copy.master = Copy(shard.master);
    copy.working = Copy(shard.working);
    copy.momentum = Copy(momenta[shards_.size()]);
    shards_.push_back(std::move(copy));
  }
}

std::string ShardSnapshot::Difference(ToyTrainer& trainer) const {
  const absl::Span<OptimizerShard> now = trainer.strategy().OptimizerShards();
  const std::vector<at::Tensor> momenta = trainer.momenta();
  if (now.size() != shards_.size()) return "the number of shards";
  for (size_t i = 0; i < now.size(); ++i) {
    if (!Same(now[i].master, shards_[i].master)) return "masters";
    if (!Same(now[i].working, shards_[i].working)) return "working copies";
    if (!Same(momenta[i], shards_[i].momentum)) return "optimizer state";
  }
  return "";
}

std::string ShardSnapshot::Moved(ToyTrainer& trainer) const {
  const absl::Span<OptimizerShard> now = trainer.strategy().OptimizerShards();
  if (now.size() != shards_.size()) return "the number of shards";
  for (size_t i = 0; i < now.size(); ++i) {
    const OptimizerShard& before = shards_[i].tensors;
    if (now[i].master.data_ptr() != before.master.data_ptr()) return "master";
    if (now[i].gradient.data_ptr() != before.gradient.data_ptr()) {
      return "gradient";
    }
  }
  return "";
}

bool ShardSnapshot::finite() const {
  return std::all_of(shards_.begin(), shards_.end(), [](const Shard& shard) {
    return at::isfinite(shard.master).all().item<bool>() &&
           at::isfinite(shard.momentum).all().item<bool>();
  });
}

void CheckBinding(ToyTrainer& trainer, RankReport* report) {
  const std::vector<ParameterSpec>& specs = trainer.model().parameters();
  const std::vector<at::Tensor>& bound = trainer.model().bound();
  if (bound.size() != specs.size()) {
    report->Problem(kBindingTopic,
                    absl::StrCat("Bind got ", bound.size(), " tensors"));
    return;
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto problem = [&](const std::string& text) {
      report->Problem(kBindingTopic, absl::StrCat(specs[i].name, text));
    };
    const int64_t bytes = trainer.model().PackedBytes(static_cast<int>(i));
    if (bytes > 0) {
      if (bound[i].scalar_type() != at::kByte ||
          bound[i].sizes() != at::IntArrayRef({bytes}) ||
          !bound[i].is_contiguous() || bound[i].requires_grad()) {
        problem(absl::StrCat(" is packed, and came as ", bound[i].toString(),
                             " [", absl::StrJoin(bound[i].sizes(), ", "),
                             "] rather than as ", bytes, " bytes"));
      }
      continue;
    }
    if (bound[i].sizes() != at::IntArrayRef(specs[i].shape)) {
      problem(absl::StrCat(" has shape [",
                           absl::StrJoin(bound[i].sizes(), ", "), "]"));
    }
    if (bound[i].scalar_type() != trainer.run().precision.compute) {
      problem(absl::StrCat(" is ", c10::toString(bound[i].scalar_type())));
    }
    if (bound[i].requires_grad() != specs[i].trainable) {
      problem(bound[i].requires_grad() ? " is frozen, but requires a gradient"
                                       : " is trainable, but requires none");
    }
  }
}

void CheckShards(ToyTrainer& trainer, bool gradients, RankReport* report) {
  int number = 0;
  for (const OptimizerShard& shard : trainer.strategy().OptimizerShards()) {
    for (const std::string& problem :
         ShardChecker(number, shard, trainer).Check(gradients)) {
      report->Problem(kShardsTopic, problem);
    }
    ++number;
  }
}

void ReportOwned(const std::string& name, ToyTrainer& trainer,
                 RankReport* report) {
  const absl::Span<OptimizerShard> shards =
      trainer.strategy().OptimizerShards();
  const std::vector<at::Tensor> momenta = trainer.momenta();
  for (const OwnedSlice& slice : trainer.strategy().OwnedSlices()) {
    if (slice.shard < 0 || slice.shard >= static_cast<int>(shards.size()) ||
        slice.begin < 0 || slice.begin > slice.end ||
        slice.end > shards[slice.shard].master.numel()) {
      report->Problem(kShardsTopic, "an owned slice is outside its shard");
      continue;
    }
    for (const ParameterRange& r : shards[slice.shard].ranges) {
      const int64_t begin = std::max(r.offset, slice.begin);
      const int64_t end = std::min(r.offset + r.length, slice.end);
      if (begin >= end) continue;
      const auto add = [&](const char* what, const at::Tensor& flat) {
        std::vector<double> record =
            ToDoubles(flat.narrow(0, begin, end - begin));
        record.insert(record.begin(),
                      static_cast<double>(r.begin + begin - r.offset));
        report->Add(absl::StrCat(name, "/", what, "/", r.parameter), record);
      };
      add("value", trainer.strategy().SharedMaster(slice.shard));
      add("momentum", momenta[slice.shard]);
    }
  }
}

absl::Status ReportFull(const std::string& name, ToyTrainer& trainer, int rank,
                        RankReport* report) {
  int next = 0;
  const auto& specs = trainer.model().parameters();
  const absl::Status status = trainer.strategy().ForEachFullParameter(
      [&](int index, const at::Tensor& value) {
        if (rank != 0) {
          report->Problem(kFullParametersTopic,
                          "called on another rank than 0");
        }
        if (index != next++) {
          report->Problem(
              kFullParametersTopic,
              absl::StrCat("parameter ", index, " came as number ", next - 1));
        }
        if (value.sizes() != at::IntArrayRef(specs[index].shape) ||
            !value.is_cpu() ||
            value.scalar_type() != trainer.run().precision.master) {
          report->Problem(
              kFullParametersTopic,
              absl::StrCat(specs[index].name, " came as ", value.toString(),
                           " [", absl::StrJoin(value.sizes(), ", "), "]"));
        }
        report->Add(absl::StrCat(name, "/full/", index), ToDoubles(value));
        return absl::OkStatus();
      });
  if (rank == 0 && next != static_cast<int>(specs.size())) {
    report->Problem(kFullParametersTopic,
                    absl::StrCat(next, " of ", specs.size(), " came"));
  }
  return status;
}

bool SameOnAllRanks(double number, ProcessGroup* group, int period) {
  std::vector<double> all(group->size(), 0.0);
  all[group->rank()] = number;
  group->AllReduceHost(absl::MakeSpan(all));
  for (size_t rank = period; rank < all.size(); ++rank) {
    if (all[rank] != all[rank - period]) return false;
  }
  return true;
}

std::vector<at::Tensor> SharedMasters(ToyTrainer& trainer) {
  std::vector<at::Tensor> shared;
  const size_t count = trainer.strategy().OptimizerShards().size();
  for (size_t i = 0; i < count; ++i) {
    shared.push_back(
        Copy(trainer.strategy().SharedMaster(static_cast<int>(i))));
  }
  return shared;
}

bool AllSame(const std::vector<at::Tensor>& a,
             const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& left, const at::Tensor& right) {
                      return Same(left, right);
                    });
}

void CheckShared(ToyTrainer& trainer, ProcessGroup* group, RankReport* report) {
  Strategy& strategy = trainer.strategy();
  if (!strategy.local_steps()) return;
  ProcessGroup* const replica = strategy.replica_group();
  const int ranks = replica == nullptr ? 1 : replica->size();
  for (const at::Tensor& shared : SharedMasters(trainer)) {
    // Each rank of a replica has its part.
    if (!SameOnAllRanks(DigestOf(shared), group, ranks)) {
      report->Problem(kSharedTopic,
                      "SharedMaster is not the same bits on all ranks");
    }
  }
}

void CheckOwnGradients(ToyTrainer& trainer, ProcessGroup* group,
                       RankReport* report) {
  if (!trainer.strategy().local_steps() || group->size() == 1) return;
  for (const OptimizerShard& shard : trainer.strategy().OptimizerShards()) {
    if (SameOnAllRanks(DigestOf(shard.gradient), group)) {
      report->Problem(kSharedTopic,
                      "the ranks have the same gradients of different batches: "
                      "with local_steps() they are not to be summed");
    }
  }
}

bool FullParametersAreShared(ToyTrainer& trainer) {
  const std::vector<at::Tensor> shared = SharedMasters(trainer);
  const absl::Span<OptimizerShard> shards =
      trainer.strategy().OptimizerShards();
  bool all = true;
  const auto compare = [&](int index, const at::Tensor& value) {
    for (size_t i = 0; i < shards.size(); ++i) {
      for (const ParameterRange& r : shards[i].ranges) {
        if (r.parameter != index) continue;
        all = all && value.reshape({-1})
                         .narrow(0, r.begin, r.length)
                         .equal(shared[i].narrow(0, r.offset, r.length).cpu());
      }
    }
    return absl::OkStatus();
  };
  trainer.strategy().ForEachFullParameter(compare).IgnoreError();
  return all;
}

}  // namespace conformance
}  // namespace capstan
