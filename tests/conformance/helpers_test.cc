// SPDX-License-Identifier: Apache-2.0
//
// Collectors, commands and parts.
#include "plugins/algorithm_distillation/environment.h"
#include "tests/conformance/collector.h"
#include "tests/conformance/command.h"
#include "tests/conformance/part.h"

#define DARKROOM(name, fields)                                                \
  CAPSTAN_COLLECTOR_CONFORMANCE(                                              \
      name, "plugins/algorithm_distillation/darkroom/libcapstan_darkroom.so", \
      "[plugin/capstan.darkroom.Config] { output: \"$OUTPUT\" streams: 2 "    \
      "steps: 320 tasks: 3 ppo { n_epochs: 2 } " fields "}")

DARKROOM(Darkroom, "");
DARKROOM(Permuted, "variant: PERMUTED grid_size: 5 ");

CAPSTAN_PART_CONFORMANCE(
    DarkKeyToDoor, capstan::Environment,
    "plugins/algorithm_distillation/dark_key_to_door/"
    "libcapstan_dark_key_to_door.so",
    "[plugin/capstan.dark_key_to_door.Config] { grid_size: 5 tasks: 10 }");

CAPSTAN_COMMAND_CONFORMANCE(Greet,
                            "tests/plugins/acme/libacme_command_greet.so",
                            "--name=Ada --times=2");
CAPSTAN_COMMAND_CONFORMANCE(
    LladaData, "plugins/llada/windows/libcapstan_command_llada_data.so",
    "--text=tests/testdata/corpus.txt --output=$OUTPUT --sequence_length=64");
// Any folder may be the model's: the suite doesn't train.
CAPSTAN_COMMAND_CONFORMANCE(
    Llada, "plugins/llada/command/libcapstan_command_llada.so",
    "--data_dir=tests/golden/testdata/llada_npy --model_name=tests/golden "
    "--epochs=1");
