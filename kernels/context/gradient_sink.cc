// SPDX-License-Identifier: Apache-2.0
#include "kernels/context/gradient_sink.h"

#include "kernels/context/wide_gradient_sink.h"

namespace capstan {

GradientSink::~GradientSink() = default;
WideGradientSink::~WideGradientSink() = default;

}  // namespace capstan
