// SPDX-License-Identifier: Apache-2.0
#include "base/gradient_sink.h"

namespace capstan {

GradientSink::~GradientSink() = default;

}  // namespace capstan
