// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/conformance/dataset_reader.h"

namespace capstan {
namespace conformance {
namespace {

// The data's own folder may be one that a test can't write.
[[maybe_unused]] const int kCache =
    setenv("XDG_CACHE_HOME", ::testing::TempDir().c_str(), /*overwrite=*/1);

CAPSTAN_DATASET_READER_CONFORMANCE(Chat, "datasets/chat/libcapstan_chat.so",
                                   "[plugin/capstan.chat.Config] "
                                   "{ path: \"datasets/samples/chats.jsonl\" "
                                   "tokenizer: \"datasets/samples/tokenizer\" "
                                   "max_length: 128 loss_on: ASSISTANT }");
CAPSTAN_DATASET_READER_CONFORMANCE(ChatPacked,
                                   "datasets/chat/libcapstan_chat.so",
                                   "[plugin/capstan.chat.Config] "
                                   "{ path: \"datasets/samples/chats.jsonl\" "
                                   "tokenizer: \"datasets/samples/tokenizer\" "
                                   "chat_template: \"chatml\" max_length: 256 "
                                   "packing: BEST_FIT shuffle: true "
                                   "validation_fraction: 0.1 }");

}  // namespace
}  // namespace conformance
}  // namespace capstan
