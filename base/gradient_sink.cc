// SPDX-License-Identifier: Apache-2.0
#include "base/gradient_sink.h"

#include "base/wide_gradient_sink.h"

namespace capstan {

GradientSink::~GradientSink() = default;
WideGradientSink::~WideGradientSink() = default;

}  // namespace capstan
