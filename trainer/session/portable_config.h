// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_PORTABLE_CONFIG_H_
#define CAPSTAN_TRAINER_SESSION_PORTABLE_CONFIG_H_

#include "trainer/run_config.pb.h"

namespace capstan {

// `config` without what only this machine knows, for texts that leave it: of
// each file and folder (fields with the option `path`) the last name, of a
// model in Hugging Face's cache its name at the hub; no output_dir.
RunConfig PortableConfig(const RunConfig& config);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_PORTABLE_CONFIG_H_
