// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TESTS_GOLDEN_QLORA_FOLDER_H_
#define CAPSTAN_TESTS_GOLDEN_QLORA_FOLDER_H_

#include <string>

namespace capstan {

// Writes `folder`, which is emptied first: the base in `golden`
// (testdata/llama_qlora) as transformers saves it in 4 bits with double
// quantisation, the layers' matrices as bitsandbytes packed them, from `dtype`
// ("float32", "bfloat16").
void WriteQloraFolder(const std::string& golden, const std::string& folder,
                      const std::string& dtype = "float32");

}  // namespace capstan

#endif  // CAPSTAN_TESTS_GOLDEN_QLORA_FOLDER_H_
