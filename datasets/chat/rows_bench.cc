// SPDX-License-Identifier: Apache-2.0
//
// How fast one core turns rows into text with trained ranges, i.e. all steps
// before the tokenizer:
//  bazel run -c opt //datasets/chat:rows_bench [-- FILE]
// Without a file it generates 64 MiB of conversations.
#include <chrono>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "datasets/chat/row_encoder.h"
#include "datasets/chat/source_file.h"
#include "plugins/sdk/lib/byte_tokenizer.h"

namespace capstan::chat {
namespace {

constexpr int kRounds = 5;

// Conversations of 2 to 8 messages of about 20 to 400 bytes, some with escapes.
std::string MadeUpRows(size_t bytes) {
  std::string text;
  const uint64_t key = RandomKey(1, "rows");
  for (uint64_t i = 0; text.size() < bytes;) {
    text += "{\"messages\": [";
    const uint64_t pairs = 1 + RandomBelow(key, i++, 4);
    for (uint64_t m = 0; m < 2 * pairs; ++m) {
      absl::StrAppend(&text, m > 0 ? ", " : "", "{\"role\": \"",
                      m % 2 == 0 ? "user" : "assistant", "\", \"content\": \"");
      for (uint64_t w = RandomBelow(key, i++, 40) + 3; w > 0; --w) {
        absl::StrAppend(&text, "words ", RandomBelow(key, i++, 1000),
                        w % 16 == 0 ? "\\n" : " ");
      }
      text += "\"}";
    }
    text += "]}\n";
  }
  return text;
}

absl::Status Run(absl::string_view text) {
  const auto chatml = *ChatTemplate::Named("chatml");
  const auto tokenizer = NewByteTokenizer();
  const RowEncoder encoder(tokenizer.get(), chatml.get(), absl::OkStatus(),
                           ASSISTANT, 1024);
  RowParser parser;
  Row row;
  RenderedRow rendered;
  std::vector<RowPlace> places;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    RowScanner scanner(text);
    uint64_t rows = 0;
    uint64_t trained = 0;
    while (true) {
      absl::Status status = scanner.Next(1 << 20, &places);
      for (const RowPlace& place : places) {
        if (status.ok()) {
          status = parser.Parse(text.substr(place.offset, place.bytes),
                                text.size() - place.offset, AUTO, &row);
        }
        if (status.ok()) status = encoder.Render(row, &rendered);
        for (const auto& [begin, end] : rendered.trained) {
          trained += end - begin;
        }
        ++rows;
      }
      if (!status.ok()) return status;
      if (places.empty()) break;
    }
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
            .count();
    std::cout << rows << " rows, " << trained << " bytes trained on, "
              << static_cast<double>(text.size()) / seconds / 1e6 << " MB/s\n";
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  absl::Status status;
  if (argc > 1) {
    const absl::StatusOr<SourceFile> source = OpenSource(argv[1]);
    status = source.ok() ? Run(source->text) : source.status();
  } else {
    status = Run(MadeUpRows(64 << 20));
  }
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace capstan::chat

int main(int argc, char** argv) { return capstan::chat::Main(argc, argv); }
