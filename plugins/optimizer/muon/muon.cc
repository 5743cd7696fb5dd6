// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/muon.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "kernels/optimizer/adamw.h"
#include "plugins/optimizer/muon/muon.pb.h"
#include "plugins/sdk/lib/field_check.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/plugin.h"

namespace capstan::muon {
namespace {

enum StateIndex { kMomentum = 0, kExpAvg, kExpAvgSq, kRowMoment };

constexpr int kDefaultSteps = 5;
constexpr int kMostSteps = 99;  // torch's

// With defaults filled in.
struct Settings {
  kernels::MuonOptions muon;
  kernels::AdamWOptions adamw;
  Config::Arithmetic arithmetic = Config::BY_DEVICE;
  bool normuon = false;
};

absl::StatusOr<Settings> SettingsOf(const Config& c) {
  Settings s;
  s.muon.learning_rate = c.learning_rate();
  if (c.has_momentum()) s.muon.momentum = c.momentum();
  if (c.has_nesterov()) s.muon.nesterov = c.nesterov();
  s.muon.weight_decay = c.has_weight_decay() ? c.weight_decay() : 0.1;
  if (c.adjust_lr() == Config::MATCH_RMS_ADAMW) {
    s.muon.rate = kernels::MuonRate::kMatchRmsAdamW;
  }
  if (c.has_beta2()) s.muon.beta2 = c.beta2();
  kernels::NewtonSchulz& ns = s.muon.newton_schulz;
  if (c.has_epsilon()) ns.epsilon = c.epsilon();
  const int steps = c.has_ns_steps() ? c.ns_steps() : kDefaultSteps;
  const bool polar = c.polynomial() == Config::POLAR_EXPRESS;
  const int most = polar ? kernels::kPolarSteps : kMostSteps;
  CAPSTAN_RETURN_IF_ERROR(CheckField(steps >= 1 && steps <= most, "ns_steps",
                                     absl::StrCat("from 1 to ", most), steps));
  ns.steps =
      polar ? kernels::PolarExpressSteps(steps) : kernels::JordanSteps(steps);
  if (polar) ns.margin = kernels::kPolarMargin;
  s.arithmetic = c.arithmetic();
  s.normuon = c.normuon();
  const Config::AdamW& a = c.adamw();
  s.adamw.learning_rate = a.learning_rate();
  if (a.learning_rate() == 0.0 && c.adjust_lr() == Config::MATCH_RMS_ADAMW) {
    s.adamw.learning_rate = c.learning_rate();
  }
  if (a.has_beta1()) s.adamw.beta1 = a.beta1();
  if (a.has_beta2()) s.adamw.beta2 = a.beta2();
  if (a.has_epsilon()) s.adamw.epsilon = a.epsilon();
  s.adamw.weight_decay = a.has_weight_decay() ? a.weight_decay() : 0.01;
  return s;
}

absl::Status CheckEnums(const Config& c) {
  const auto check = [](bool valid, const char* field, int value) {
    return valid ? absl::OkStatus()
                 : FieldError(field, absl::StrCat("no such value: ", value));
  };
  CAPSTAN_RETURN_IF_ERROR(check(Config::AdjustLr_IsValid(c.adjust_lr()),
                                "adjust_lr", c.adjust_lr()));
  CAPSTAN_RETURN_IF_ERROR(check(Config::Polynomial_IsValid(c.polynomial()),
                                "polynomial", c.polynomial()));
  CAPSTAN_RETURN_IF_ERROR(check(Config::Arithmetic_IsValid(c.arithmetic()),
                                "arithmetic", c.arithmetic()));
  if (c.has_beta2() && !c.normuon()) {
    return FieldError("beta2", "is for normuon: true only");
  }
  return absl::OkStatus();
}

absl::Status CheckNumbers(const Settings& s) {
  const kernels::MuonOptions& m = s.muon;
  const kernels::AdamWOptions& a = s.adamw;
  const auto is_decay = [](double value) { return value >= 0 && value < 1; };
  const char kDecay[] = "at least 0 and less than 1";
  const char kPositive[] = "greater than 0";
  const struct {
    const char* field;
    double value;
    bool good;
    const char* rule;
  } checks[] = {
      {"learning_rate", m.learning_rate, m.learning_rate > 0.0, kPositive},
      {"momentum", m.momentum, is_decay(m.momentum), kDecay},
      {"weight_decay", m.weight_decay, m.weight_decay >= 0.0, "at least 0"},
      {"beta2", m.beta2, is_decay(m.beta2), kDecay},
      {"epsilon", m.newton_schulz.epsilon, m.newton_schulz.epsilon > 0.0,
       kPositive},
      {"adamw.learning_rate", a.learning_rate, a.learning_rate > 0.0,
       kPositive},
      {"adamw.beta1", a.beta1, is_decay(a.beta1), kDecay},
      {"adamw.beta2", a.beta2, is_decay(a.beta2), kDecay},
      {"adamw.epsilon", a.epsilon, a.epsilon > 0.0, kPositive},
      {"adamw.weight_decay", a.weight_decay, a.weight_decay >= 0.0,
       "at least 0"}};
  for (const auto& [field, value, good, rule] : checks) {
    CAPSTAN_RETURN_IF_ERROR(
        CheckField(good && std::isfinite(value), field, rule, value));
  }
  return absl::OkStatus();
}

// Whether Muon updates it: a matrix, or a stack of them, inside the model.
bool IsMatrix(const Model& model, int parameter) {
  const ParameterSpec& spec = model.parameters()[parameter];
  const ParameterRole role = model.role(parameter);
  return spec.trainable &&
         (spec.shape.size() == 2
              ? role == ParameterRole::kMatrix
              : spec.shape.size() > 2 && (role == ParameterRole::kMatrix ||
                                          role == ParameterRole::kOther));
}

// Formulas are in kernels/optimizer/{muon,adamw}.h.
class Muon final : public Optimizer {
 public:
  static absl::StatusOr<std::unique_ptr<Muon>> Create(const Config& config) {
    CAPSTAN_RETURN_IF_ERROR(CheckEnums(config));
    CAPSTAN_ASSIGN_OR_RETURN(const Settings settings, SettingsOf(config));
    CAPSTAN_RETURN_IF_ERROR(CheckNumbers(settings));
    return std::unique_ptr<Muon>(new Muon(settings));
  }

  double learning_rate() const override { return settings_.muon.learning_rate; }
  std::vector<std::string> state_names() const override {
    std::vector<std::string> names = {"momentum_buffer", "exp_avg",
                                      "exp_avg_sq"};
    if (settings_.normuon) names.push_back("row_moment");
    return names;
  }
  // Each rank orthogonalises those matrices that a strategy gives it.
  bool NeedsWhole(const Model& model, int parameter) const override {
    Learn(model);
    return muon::IsMatrix(model, parameter);
  }
  absl::Status Check(const OptimizerRequest& request) const override {
    Learn(*request.model);
    return absl::OkStatus();
  }
  absl::Status Setup(const OptimizerContext& context) override {
    Learn(*context.model);
    return absl::OkStatus();
  }

  int64_t StateNumel(const ParameterSpec& parameter, int state) const override {
    const bool matrix = IsMatrix(parameter);
    if (state == kRowMoment) {
      return matrix ? parameter.numel() /
                          std::max<int64_t>(1, parameter.shape.back())
                    : 0;
    }
    return matrix == (state == kMomentum) ? kByRange : 0;
  }

  int64_t UpdateBytes(const UpdateMemoryRequest& request) const override {
    kernels::NewtonSchulz newton_schulz = settings_.muon.newton_schulz;
    newton_schulz.dtype = DtypeOn(!request.on_gpu);
    int64_t bytes = 0;
    const std::vector<ParameterSpec>& specs = request.model->parameters();
    for (size_t i = 0; i < specs.size(); ++i) {
      if (!muon::IsMatrix(*request.model, static_cast<int>(i))) continue;
      const std::vector<int64_t>& shape = specs[i].shape;
      bytes = std::max(
          bytes, kernels::MuonWorkspace(newton_schulz, specs[i].numel(),
                                        shape[shape.size() - 2], shape.back(),
                                        request.on_gpu));
    }
    return bytes;
  }

  void Update(const OptimizerStep& step,
              const std::vector<ParameterSpec>& specs, OptimizerShard& shard,
              absl::Span<at::Tensor> state) override {
    kernels::MuonOptions muon = settings_.muon;
    muon.learning_rate = step.learning_rate;
    muon.gradient_scale = step.gradient_scale;
    muon.newton_schulz.dtype = DtypeOn(shard.master.is_cpu());
    kernels::AdamWOptions adamw = settings_.adamw;
    adamw.step = step.step;
    adamw.learning_rate *= step.learning_rate / settings_.muon.learning_rate;
    adamw.gradient_scale = step.gradient_scale;
    int64_t next[4] = {0, 0, 0, 0};  // in the state without padding
    for (const ParameterRange& r : shard.ranges) {
      const ParameterSpec& spec = specs[r.parameter];
      const auto slice = [&r](const at::Tensor& t) {
        return t.defined() ? t.narrow(0, r.offset, r.length) : t;
      };
      const auto take = [&](int index, int64_t length) {
        next[index] += length;
        return state[index].narrow(0, next[index] - length, length);
      };
      if (!IsMatrix(spec)) {
        kernels::AdamWStep(adamw,
                           {slice(shard.gradient), slice(shard.master),
                            take(kExpAvg, r.length), take(kExpAvgSq, r.length),
                            slice(shard.working), step.device_scale});
        continue;
      }
      kernels::MuonBuffers buffers;
      buffers.rows = spec.shape[spec.shape.size() - 2];
      buffers.columns = spec.shape.back();
      buffers.gradient = slice(shard.gradient);
      buffers.parameter = slice(shard.master);
      buffers.momentum = take(kMomentum, r.length);
      if (settings_.normuon) {
        buffers.row_moment = take(kRowMoment, r.length / buffers.columns);
      }
      buffers.working = slice(shard.working);
      buffers.device_scale = step.device_scale;
      kernels::MuonStep(muon, buffers);
    }
  }

 private:
  explicit Muon(const Settings& settings) : settings_(settings) {}

  at::ScalarType DtypeOn(bool cpu) const {
    const bool wide = settings_.arithmetic == Config::FLOAT32 ||
                      (settings_.arithmetic == Config::BY_DEVICE && cpu);
    return wide ? at::kFloat : at::kBFloat16;
  }

  // Remembers the model's embeddings and head, which a spec alone doesn't tell
  // from other matrices. A run creates an optimizer for one model, and asks it
  // NeedsWhole or Check before anything of its state.
  void Learn(const Model& model) const {
    const absl::MutexLock lock(&mutex_);
    // An adapter adds parameters.
    const size_t count = model.parameters().size();
    if (learnt_ == &model && count_ == count) return;
    learnt_ = &model;
    count_ = count;
    others_.clear();
    for (size_t i = 0; i < count; ++i) {
      if (!muon::IsMatrix(model, static_cast<int>(i))) {
        others_.insert(model.parameters()[i].name);
      }
    }
  }

  bool IsMatrix(const ParameterSpec& spec) const {
    const absl::MutexLock lock(&mutex_);
    return spec.shape.size() > 1 && others_.count(spec.name) == 0;
  }

  const Settings settings_;
  mutable absl::Mutex mutex_;
  mutable const Model* learnt_ = nullptr;  // only compared
  mutable size_t count_ = 0;
  mutable std::set<std::string> others_;  // what AdamW updates
};

}  // namespace

CAPSTAN_PLUGIN(Optimizer, Muon, ::capstan::muon::Config,
               "Muon for the matrices inside the model, AdamW for the rest");

}  // namespace capstan::muon
