// SPDX-License-Identifier: Apache-2.0
#include "trainer/compare/comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace capstan {
namespace {

double Distance(double value, double reference) {
  const bool finite = std::isfinite(value);
  if (finite != std::isfinite(reference)) {
    return std::numeric_limits<double>::infinity();
  }
  if (!finite || value == reference) return 0.0;
  // Relative to 0 there is no scale.
  if (reference == 0.0) return std::numeric_limits<double>::infinity();
  return std::abs(value - reference) / std::abs(reference);
}

// The reference of `precision`, or null.
const ComparedRun* ChooseReference(const Comparison& comparison,
                                   const std::string& precision) {
  const ComparedRun* reference = nullptr;
  for (const ComparedRun& run : comparison.runs) {
    if (run.precision != precision ||
        run.status == ComparedRun::Status::kSkipped) {
      continue;
    }
    if (reference == nullptr || (run.strategy == reference->strategy &&
                                 run.processes < reference->processes)) {
      reference = &run;
    }
  }
  return reference;
}

void CheckBound(const char* what, const CurveDelta& delta, double bound,
                const ComparedRun& run, const ComparedRun& reference,
                Comparison* comparison) {
  if (delta.max <= bound) return;
  comparison->problems.push_back(
      std::isfinite(delta.max)
          ? absl::StrFormat(
                "%s: %s differs from that of %s by %.2e at step %d; the bound "
                "is %.2g (relative)",
                run.Label(), what, reference.Label(), delta.max, delta.max_step,
                bound)
          : absl::StrFormat(
                "%s: %s is finite at step %d where that of %s is not, or the "
                "other way round",
                run.Label(), what, delta.max_step, reference.Label()));
}

// Two curves that are both NaN don't count as agreement.
void CheckFinite(const ComparedRun& reference, Comparison* comparison) {
  const std::vector<double>& loss = reference.measured.loss;
  for (size_t i = 0; i < loss.size(); ++i) {
    if (std::isfinite(loss[i])) continue;
    comparison->problems.push_back(absl::StrFormat(
        "%s, a reference: the loss is not finite at step %d, so from there on "
        "nothing is compared",
        reference.Label(), i + 1));
    return;
  }
}

void CompareRuns(Comparison* comparison) {
  for (ComparedPrecision& precision : comparison->precisions) {
    const ComparedRun* reference = ChooseReference(*comparison, precision.name);
    if (reference == nullptr) continue;
    precision.reference = reference->id;
    if (reference->status != ComparedRun::Status::kCompleted) continue;
    CheckFinite(*reference, comparison);
    for (ComparedRun& run : comparison->runs) {
      if (run.precision != precision.name ||
          run.status != ComparedRun::Status::kCompleted) {
        continue;
      }
      run.reference = reference->id;
      run.loss_delta = DeltaOf(run.measured.loss, reference->measured.loss);
      run.grad_norm_delta =
          DeltaOf(run.measured.grad_norm, reference->measured.grad_norm);
      CheckBound("loss", run.loss_delta, precision.bounds.loss, run, *reference,
                 comparison);
      CheckBound("gradient norm", run.grad_norm_delta,
                 precision.bounds.grad_norm, run, *reference, comparison);
    }
  }
}

void ComparePrecisions(Comparison* comparison) {
  std::vector<ComparedPrecision>& precisions = comparison->precisions;
  if (precisions.empty()) return;
  const ComparedRun* first = comparison->FindRun(precisions[0].reference);
  for (size_t i = 1; i < precisions.size(); ++i) {
    const ComparedRun* run = comparison->FindRun(precisions[i].reference);
    if (first == nullptr || run == nullptr ||
        first->status != ComparedRun::Status::kCompleted ||
        run->status != ComparedRun::Status::kCompleted) {
      continue;
    }
    precisions[i].from_first = PrecisionDistance{
        DeltaOf(run->measured.loss, first->measured.loss),
        DeltaOf(run->measured.grad_norm, first->measured.grad_norm)};
  }
}

}  // namespace

CurveDelta DeltaOf(const std::vector<double>& curve,
                   const std::vector<double>& reference) {
  CurveDelta delta;
  const size_t steps = std::min(curve.size(), reference.size());
  for (size_t i = 0; i < steps; ++i) {
    const double value = Distance(curve[i], reference[i]);
    if (i == 0 || value > delta.max) {
      delta.max = value;
      delta.max_step = static_cast<int64_t>(i) + 1;
    }
    delta.values.push_back(value);
  }
  return delta;
}

std::string ComparedRun::Label() const {
  return absl::StrCat(strategy, " ", precision, " on ", processes,
                      processes == 1 ? " rank" : " ranks");
}

std::string Comparison::Unit() const {
  for (const ComparedRun& run : runs) {
    if (run.status == ComparedRun::Status::kCompleted) return run.measured.unit;
  }
  return RunMeasurements().unit;
}

const ComparedRun* Comparison::FindRun(const std::string& id) const {
  const auto it =
      std::find_if(runs.begin(), runs.end(),
                   [&id](const ComparedRun& run) { return run.id == id; });
  return it == runs.end() ? nullptr : &*it;
}

void Compare(Comparison* comparison) {
  for (const ComparedRun& run : comparison->runs) {
    if (run.status != ComparedRun::Status::kFailed) continue;
    comparison->problems.push_back(
        absl::StrCat(run.Label(), " failed: ", run.reason));
  }
  CompareRuns(comparison);
  ComparePrecisions(comparison);
}

}  // namespace capstan
