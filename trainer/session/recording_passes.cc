// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/recording_passes.h"

#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace capstan {
namespace {

void AddValues(const at::Tensor& host, std::string* kind) {
  absl::StrAppend(kind, "values ", ShapeText(host), "; ");
}

void AddNumber(int64_t number, std::string* kind) {
  absl::StrAppend(kind, number, "; ");
}

}  // namespace

std::string ShapeText(const at::Tensor& tensor) {
  return absl::StrCat("[", absl::StrJoin(tensor.sizes(), ", "), "] ",
                      c10::toString(tensor.scalar_type()));
}

at::Tensor ValuesNoter::Values(const at::Tensor& host, at::Device device) {
  AddValues(host, &kind_);
  const at::Tensor pinned = host.is_pinned() || !device.is_cuda()
                                ? host
                                : host.contiguous().pin_memory();
  values_.push_back(pinned.to(device, host.scalar_type(),
                              /*non_blocking=*/true, /*copy=*/true));
  return values_.back();
}

void ValuesNoter::Number(int64_t number) { AddNumber(number, &kind_); }

at::Tensor ValuesGiver::Values(const at::Tensor& host, at::Device) {
  AddValues(host, &kind_);
  if (!within_.empty()) {
    throw std::runtime_error(absl::StrCat(
        "values of the host are brought to the device within ", within_));
  }
  if (next_ == values_->size() || (*values_)[next_].sizes() != host.sizes() ||
      (*values_)[next_].scalar_type() != host.scalar_type()) {
    throw std::runtime_error(
        "other values of the host are brought to the device with than without "
        "the units' work");
  }
  return (*values_)[next_++];
}

void ValuesGiver::Number(int64_t number) { AddNumber(number, &kind_); }

at::Tensor NotingRunner::Run(int unit, const at::Tensor& input,
                             const Body& body) {
  at::Tensor output = runner_->Run(unit, input, body);
  outputs_->push_back(
      {unit, output.sizes().vec(), output.options().requires_grad(false)});
  return output;
}

at::Tensor SkippingRunner::Run(int unit, const at::Tensor&, const Body&) {
  if (complete() || (*outputs_)[next_].unit != unit) {
    throw std::runtime_error("the model runs other units than before");
  }
  if (strategy_->wants_unit_callbacks()) {
    strategy_->PreForward(unit);
    strategy_->PostForward(unit);
  }
  return placeholder_((*outputs_)[next_++]);
}

at::Tensor BodyRunner::Run(int unit, const at::Tensor& input,
                           const Body& body) {
  giver_->set_within(absl::StrCat("unit ", unit));
  at::Tensor output = runner_->Run(unit, input, body);
  giver_->set_within("");
  return output;
}

}  // namespace capstan
