// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_HOST_CONFIG_SCHEDULE_DEFAULTS_H_
#define CAPSTAN_HOST_CONFIG_SCHEDULE_DEFAULTS_H_

namespace capstan {

// The share of a WSD schedule's steps that decay, if the config names none.
constexpr double kDefaultDecayRatio = 0.2;

}  // namespace capstan

#endif  // CAPSTAN_HOST_CONFIG_SCHEDULE_DEFAULTS_H_
