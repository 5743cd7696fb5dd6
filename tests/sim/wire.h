// SPDX-License-Identifier: Apache-2.0
//
// A c10d backend over the simulated network, in Gloo's place: messages between
// hosts' leaders, which fail as Gloo's do when the other end closes or its
// process ends, and wait for ever when its host falls silent.
#ifndef CAPSTAN_TESTS_SIM_WIRE_H_
#define CAPSTAN_TESTS_SIM_WIRE_H_

#include "cluster/comm/backend_group.h"
#include "cluster/meet/rendezvous.h"

namespace capstan::sim {

BackendGroup::Connect WireConnect(const Meeting& meeting);

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_WIRE_H_
