// SPDX-License-Identifier: Apache-2.0
//
// Whether a run's config.pbtxt is the config that its receipts are of.
#ifndef CAPSTAN_DESK_AUDIT_CONFIG_THAT_RAN_H_
#define CAPSTAN_DESK_AUDIT_CONFIG_THAT_RAN_H_

#include <string>

#include "trainer/session/receipt_chain.h"

namespace capstan {

// How `config_text`, which PrintConfig wrote, differs from what the newest
// process of the run has in its receipts: "optimizer.learning_rate: 0.004, the
// run had 0.003", of the first such field; "" if it doesn't. Opens no plugin,
// so that what isn't written there as a config has it isn't compared: paths,
// texts of a model, and fields that the receipts don't have.
std::string ConfigDifference(const std::string& config_text,
                             const Receipts& receipts);

}  // namespace capstan

#endif  // CAPSTAN_DESK_AUDIT_CONFIG_THAT_RAN_H_
