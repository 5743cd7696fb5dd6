// SPDX-License-Identifier: Apache-2.0
#include "tests/witness/flips.h"

#include <ATen/ops/equal.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/random.h"
#include "base/status.h"
#include "cluster/comm/create.h"
#include "cluster/comm/phase_group.h"
#include "kernels/context/witness.h"
#include "kernels/gemm/gemm.h"
#include "kernels/witness/product_checker.h"
#include "testing/faults/core_own.h"
#include "trainer/optimizer/optimizer_state.h"
#include "trainer/session/evaluate.h"

namespace capstan {
namespace {

using kernels::GemmProblem;

// A flip that isn't told changes a sum by at most so many of its bounds: one,
// and as much as the sum's own rounding may be, against it.
constexpr double kMostBounds = 2.0;

struct State {
  FlipOptions options;
  int rank = 0;
  std::ofstream log;
  std::set<int64_t> steps_before;  // that had their flip
  int64_t step = 1;                // that is under way
  // Of this step, and of a whole one before.
  int64_t products = 0, products_before = 0;
  int64_t kept = 0, kept_before = 0;
  int64_t reduced = 0;
  bool done = false;  // this step's flip
  bool evaluated = false;
  // A bucket, what it is without the flip, and the sum of all ranks' squares.
  at::Tensor bucket, clean, squares;

  bool on() const {
    return options.first_step > 0 && step >= options.first_step &&
           step <= options.last_step && !done &&
           steps_before.count(step) == 0 &&
           (options.period == 1 ||
            step % options.period ==
                (planned().kind == FlipKind::kWeights ? 1 : 0));
  }
  PlannedFlip planned() const { return FlipOf(options, step); }
  bool Mine(FlipKind kind) const {
    return on() && planned().kind == kind && planned().rank == rank;
  }
  void Log(const char* outcome, int bit, double detail = 0.0) {
    LogOf(planned(), outcome, bit, detail);
  }
  void LogOf(const PlannedFlip& flip, const char* outcome, int bit,
             double detail = 0.0) {
    log << step << " " << rank << " " << kFlipNames[static_cast<int>(flip.kind)]
        << " " << bit << " " << outcome << " " << detail << std::endl;
  }
  void NextStep() {
    ++step;
    // Once the flips have begun, a step may be done twice.
    const bool before = step <= options.first_step;
    if (before) products_before = products;
    if (before) kept_before = kept;
    products = kept = 0;
    reduced = 0;
    done = false;
    bucket = clean = squares = at::Tensor();
  }
};

State& state() {
  static State* const state = new State;
  return *state;
}

void FlipBit(void* memory, int64_t bit) {
  static_cast<uint8_t*>(memory)[bit / 8] ^= 1 << bit % 8;
}

// Flips a bit of a tensor; returns which of its number's.
int FlipIn(const at::Tensor& t, const PlannedFlip& flip) {
  const auto bits = static_cast<int64_t>(8 * t.element_size());
  const int64_t element = flip.where % t.numel();
  const int64_t bit = flip.bit % bits;
  FlipBit(t.mutable_data_ptr(), element * bits + bit);
  return static_cast<int>(bit);
}

class FlippingProducts final : public ProductWitness {
 public:
  explicit FlippingProducts(ProductWitness* checker)
      : checker_(*dynamic_cast<kernels::ProductChecker*>(checker)) {}

  void Compute(const GemmProblem& p,
               const std::function<void()>& compute) override {
    State& s = state();
    const int64_t number = s.products++;
    if (!s.Mine(FlipKind::kProduct) || s.products_before == 0 ||
        number != s.planned().where % s.products_before) {
      return checker_.Compute(p, compute);
    }
    s.done = true;
    const PlannedFlip flip = s.planned();
    const int64_t bytes = p.c.type == kernels::NumberType::kFloat ? 4 : 2;
    const int64_t row = flip.bit / 64 % p.m, column = flip.where % p.n;
    const int bit = static_cast<int>(flip.bit % (8 * bytes));
    char* const element =
        static_cast<char*>(p.c.data) + (row * p.c.stride + column) * bytes;
    const auto before = checker_.counts().failures;
    bool flipped = false;
    std::vector<char> clean;
    const std::vector<char> added_to = RowsOf(p, bytes);
    checker_.Compute(p, [&] {
      compute();
      if (std::exchange(flipped, true)) return;
      clean = RowsOf(p, bytes);
      FlipBit(element, bit);
    });
    const bool reported = checker_.counts().failures > before;
    const bool same = RowsOf(p, bytes) == clean;
    if (reported) {
      // What was added to something is mended with the whole step.
      s.Log(same || p.beta != 0.0f ? "memory" : "missed", bit);
    } else {
      const double detail = ChangeInBounds(p, row, column, clean, added_to);
      std::memcpy(element, clean.data() + (row * p.n + column) * bytes, bytes);
      s.Log(detail <= kMostBounds ? "below" : "missed", bit, detail);
    }
  }

 private:
  static std::vector<char> RowsOf(const GemmProblem& p, int64_t bytes) {
    std::vector<char> rows;
    for (int64_t i = 0; i < p.m; ++i) {
      const char* const row =
          static_cast<const char*>(p.c.data) + i * p.c.stride * bytes;
      rows.insert(rows.end(), row, row + p.n * bytes);
    }
    return rows;
  }
  static double NumberAt(const void* from, kernels::NumberType type,
                         int64_t i) {
    if (type == kernels::NumberType::kFloat) {
      return static_cast<const float*>(from)[i];
    }
    const uint16_t bits = static_cast<const uint16_t*>(from)[i];
    if (type == kernels::NumberType::kFp16) {
      return c10::Half(bits, c10::Half::from_bits());
    }
    return c10::BFloat16(bits, c10::BFloat16::from_bits());
  }
  static double NormOfRow(const std::vector<char>& rows,
                          kernels::NumberType type, int64_t row, int64_t n) {
    double squares = 0.0;
    for (int64_t j = row * n; j < (row + 1) * n; ++j) {
      const double x = NumberAt(rows.data(), type, j);
      squares += x * x;
    }
    return std::sqrt(squares);
  }
  // How far the number is off, as a part of what docs/witness.md says that may
  // be without being told: made here by other code than the checker's.
  static double ChangeInBounds(const GemmProblem& p, int64_t row,
                               int64_t column, const std::vector<char>& clean,
                               const std::vector<char>& added_to) {
    const double u = 0x1p-24;
    const double own = p.c.type == kernels::NumberType::kFloat  ? u
                       : p.c.type == kernels::NumberType::kBf16 ? 0x1p-8
                                                                : 0x1p-11;
    const int64_t rows = p.b_transposed ? p.n : p.k;
    const int64_t columns = p.b_transposed ? p.k : p.n;
    std::vector<float> read(p.source.read == nullptr ? 0 : rows * columns);
    if (!read.empty()) {
      p.source.read(p.source.what, 0, rows, 0, columns, read.data());
    }
    double of_a = 0.0, of_b = 0.0;
    for (int64_t k = 0; k < p.k; ++k) {
      const int64_t at =
          p.a_transposed ? k * p.a.stride + row : row * p.a.stride + k;
      of_a += std::pow(NumberAt(p.a.data, p.a.type, at), 2);
    }
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        const double x = read.empty()
                             ? NumberAt(p.b.data, p.b.type, i * p.b.stride + j)
                             : read[i * columns + j];
        of_b += x * x;
      }
    }
    const double of_c = NormOfRow(clean, p.c.type, row, p.n);
    const double before =
        std::abs(p.beta) * NormOfRow(added_to, p.c.type, row, p.n);
    double bound = u * std::abs(p.alpha) * std::sqrt(of_a * of_b) +
                   (own + u * std::sqrt(std::min<double>(p.k, 512.0))) * of_c;
    if (p.beta != 0.0f) {
      // What JudgeSum lets pass: the rounding of one addition.
      bound = std::max(bound + u * before, (own + u * std::sqrt(p.n / 16.0)) *
                                               (2.0 * of_c + 2.0 * before));
    }
    // Where a row's squares underflow.
    bound += 1e-24;
    const int64_t at = row * p.n + column;
    const double was = NumberAt(clean.data(), p.c.type, at);
    const double is = NumberAt(p.c.data, p.c.type, row * p.c.stride + column);
    const double change = std::abs(is - was) / (6.0 * bound);
    return std::isfinite(was) && !std::isfinite(change) ? HUGE_VAL : change;
  }

  kernels::ProductChecker& checker_;
};

class FlippingKept final : public KeptWitness {
 public:
  explicit FlippingKept(KeptWitness* witness) : witness_(*witness) {}
  void Take(const void* memory, int64_t bytes) override {
    witness_.Take(memory, bytes);
    State& s = state();
    const int64_t number = s.kept++;
    if (!s.Mine(FlipKind::kKept) || s.kept_before == 0 ||
        number != s.planned().where % s.kept_before) {
      return;
    }
    s.done = true;
    const PlannedFlip flip = s.planned();
    FlipBit(const_cast<void*>(memory),
            (int64_t{flip.where} * 32 + flip.bit % 32) % (8 * (bytes / 4 * 4)));
    s.Log("memory", static_cast<int>(flip.bit % 32));
  }
  void Check(void* memory, int64_t bytes) override {
    witness_.Check(memory, bytes);
  }
  void Drop(const void* memory) override { witness_.Drop(memory); }

 private:
  KeptWitness& witness_;
};

class FlippingWork final : public Work {
 public:
  FlippingWork(std::unique_ptr<Work> work, std::function<void()> after)
      : work_(std::move(work)), after_(std::move(after)) {}
  void Wait() override {
    work_->Wait();
    if (after_) std::exchange(after_, nullptr)();
  }

 private:
  const std::unique_ptr<Work> work_;
  std::function<void()> after_;
};

class FlippingGroup final : public ProcessGroup, public GroupAround {
 public:
  explicit FlippingGroup(std::unique_ptr<ProcessGroup> group)
      : group_(std::move(group)) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  at::Device device() const override { return group_->device(); }
  std::string backend() const override { return group_->backend(); }
  std::unique_ptr<Work> AllReduce(const at::Tensor& tensor) override {
    State& s = state();
    const FlipKind kind = s.planned().kind;
    const bool bucket = tensor.dim() == 1 && tensor.numel() > 4096;
    if (!bucket || !s.on() ||
        (kind != FlipKind::kSent && kind != FlipKind::kReceived) ||
        s.options.gathers || s.reduced++ != 0) {
      return group_->AllReduce(tensor);
    }
    s.done = true;
    s.bucket = tensor;
    s.clean = tensor.clone();
    s.squares = tensor.to(at::kDouble).square();
    group_->AllReduce(s.clean)->Wait();
    group_->AllReduce(s.squares)->Wait();
    const PlannedFlip flip = s.planned();
    if (flip.rank != rank()) return group_->AllReduce(tensor);
    if (kind == FlipKind::kSent) {
      FlipIn(tensor, flip);
      return group_->AllReduce(tensor);
    }
    return std::make_unique<FlippingWork>(
        group_->AllReduce(tensor), [tensor, flip] { FlipIn(tensor, flip); });
  }
  std::unique_ptr<Work> ReduceScatter(const at::Tensor& output,
                                      const at::Tensor& input) override {
    State& s = state();
    const PlannedFlip flip = s.planned();
    if (s.options.gathers || input.numel() <= 4096 || s.reduced++ != 0 ||
        (!s.Mine(FlipKind::kSent) && !s.Mine(FlipKind::kReceived))) {
      return group_->ReduceScatter(output, input);
    }
    s.done = true;
    if (flip.kind == FlipKind::kSent) {
      const at::Tensor wrong = input.clone();
      s.LogOf(flip, "mended", FlipIn(wrong, flip));
      return std::make_unique<FlippingWork>(
          group_->ReduceScatter(output, wrong), [wrong] {});
    }
    return std::make_unique<FlippingWork>(
        group_->ReduceScatter(output, input), [output, flip] {
          state().LogOf(flip, "mended", FlipIn(output, flip));
        });
  }
  std::unique_ptr<Work> AllGather(const at::Tensor& output,
                                  const at::Tensor& input) override {
    State& s = state();
    if (!s.options.gathers || !s.Mine(FlipKind::kReceived) ||
        output.numel() <= 1024) {
      return group_->AllGather(output, input);
    }
    s.done = true;
    const PlannedFlip flip = s.planned();
    return std::make_unique<FlippingWork>(
        group_->AllGather(output, input), [this, output, flip] {
          // In another rank's part, since one's own may be its weights.
          const int64_t part = output.numel() / size();
          const at::Tensor next =
              output.view({-1}).narrow(0, (rank() + 1) % size() * part, part);
          const int bit = FlipIn(next, flip);
          state().LogOf(flip, "memory", bit);
        });
  }
  std::unique_ptr<Work> Broadcast(const at::Tensor& tensor, int root) override {
    return group_->Broadcast(tensor, root);
  }
  std::unique_ptr<Work> AllToAll(const at::Tensor& output,
                                 const at::Tensor& input) override {
    return group_->AllToAll(output, input);
  }
  std::unique_ptr<Work> SendRecv(const at::Tensor& output, int from,
                                 const at::Tensor& input, int to) override {
    return group_->SendRecv(output, from, input, to);
  }
  void AllReduceHost(absl::Span<double> values) override {
    group_->AllReduceHost(values);
  }
  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color) override {
    return group_->Split(color);
  }
  CommunicationStats stats() const override { return group_->stats(); }
  ProcessGroup& inner() override { return *group_; }

 private:
  const std::unique_ptr<ProcessGroup> group_;
};

// How far the bucket is off in its worst chunk, as a part of the bound that
// docs/witness.md has for sums over ranks.
double ChangeOfBucket(const State& s) {
  const double u = s.clean.scalar_type() == at::kFloat ? 0x1p-24 : 0x1p-8;
  const at::Tensor change =
      (s.bucket.to(at::kDouble) - s.clean.to(at::kDouble)).abs();
  double most = 0.0;
  for (int64_t i = 0; i < change.numel(); i += 1024) {
    const int64_t count = std::min<int64_t>(1024, change.numel() - i);
    const auto squares = s.squares.narrow(0, i, count).sum().item<double>();
    const double bound =
        6.0 * (u + 0x1p-23) * std::sqrt(s.options.ranks * squares) + 1e-24;
    const auto of = change.narrow(0, i, count).sum().item<double>();
    most = std::max(most, std::isfinite(of) ? of / bound : HUGE_VAL);
  }
  return most;
}

// Where a flip of a message has come through, it is put right.
void JudgeMessage() {
  State& s = state();
  if (!s.bucket.defined()) return;
  const at::Tensor is = s.bucket.view(at::kByte);
  const bool same = at::equal(is, s.clean.view(at::kByte));
  const double detail = same ? 0.0 : ChangeOfBucket(s);
  if (!same) s.bucket.copy_(s.clean);
  if (s.planned().rank == s.rank) {
    s.Log(same                    ? "mended"
          : detail <= kMostBounds ? "below"
                                  : "missed",
          static_cast<int>(s.planned().bit % (8 * s.clean.element_size())),
          detail);
  }
}

}  // namespace

PlannedFlip FlipOf(const FlipOptions& options, int64_t step) {
  const auto bits =
      RandomBits(options.seed, static_cast<uint64_t>(step), 0x1f11b);
  PlannedFlip flip;
  const uint32_t tenth = bits[0] % 10;
  flip.kind = tenth < 5    ? FlipKind::kProduct
              : tenth == 5 ? FlipKind::kWeights
              : tenth == 6 ? FlipKind::kState
              : tenth == 7 ? FlipKind::kKept
              : tenth == 8 ? FlipKind::kSent
                           : FlipKind::kReceived;
  if (options.two_words) flip.kind = FlipKind::kWeights;
  if (options.gathers && flip.kind == FlipKind::kSent) {
    flip.kind = FlipKind::kReceived;
  }
  flip.rank = static_cast<int>(bits[1] % options.ranks);
  flip.where = bits[2];
  flip.bit = bits[3];
  return flip;
}

void BeginFlips(const FlipOptions& options, int rank) {
  State& s = state();
  s.options = options;
  s.rank = rank;
  if (options.first_step == 0) return;
  const std::string path = options.log + "." + std::to_string(rank);
  // Of this rank before it was started again.
  std::ifstream before(path);
  for (std::string line; std::getline(before, line);) {
    s.steps_before.insert(std::stoll(line));
  }
  s.log.open(path, std::ios::app);
}

// ---- In the place of the core's.

void SetProductWitness(ProductWitness* witness) {
  static const auto core = CoreOwn(&SetProductWitness);
  core(witness == nullptr ? nullptr : new FlippingProducts(witness));
}

void SetKeptWitness(KeptWitness* witness) {
  static const auto core = CoreOwn(&SetKeptWitness);
  core(witness == nullptr ? nullptr : new FlippingKept(witness));
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> CreateProcessGroup(
    const RankInfo& info, int gpus) {
  static const auto core = CoreOwn(&CreateProcessGroup);
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> group,
                           core(info, gpus));
  return std::unique_ptr<ProcessGroup>(new FlippingGroup(std::move(group)));
}

absl::StatusOr<EvaluationResult> Evaluate(const EvaluationRequest& request) {
  static const auto core = CoreOwn(&Evaluate);
  auto result = core(request);
  State& s = state();
  if (s.options.in_evaluation && s.rank == 1 && !s.evaluated) {
    s.evaluated = true;
    // Of the lowest bit, which no check of replicas by their loss would see.
    FlipBit(request.strategy->OptimizerShards()[0].master.mutable_data_ptr(),
            0);
  }
  return result;
}

absl::Status UpdateShard(absl::string_view plugin, int64_t run_step,
                         Optimizer& optimizer, const OptimizerStep& step,
                         const Model& model, OptimizerShard& shard,
                         absl::Span<at::Tensor> optimizer_state) {
  static const auto core = CoreOwn(&UpdateShard);
  State& s = state();
  s.step = run_step;
  JudgeMessage();
  if (s.Mine(FlipKind::kState)) {
    s.done = true;
    const PlannedFlip flip = s.planned();
    s.Log(
        "memory",
        FlipIn(optimizer_state[flip.bit / 64 % optimizer_state.size()], flip));
  }
  CAPSTAN_RETURN_IF_ERROR(
      core(plugin, run_step, optimizer, step, model, shard, optimizer_state));
  s.NextStep();
  if (s.Mine(FlipKind::kWeights)) {
    s.done = true;
    PlannedFlip flip = s.planned();
    s.Log("memory", FlipIn(shard.master, flip));
    flip.where += 16;
    ++flip.bit;  // the same would leave the parity as it was
    if (s.options.two_words) FlipIn(shard.master, flip);
  }
  return absl::OkStatus();
}

}  // namespace capstan
