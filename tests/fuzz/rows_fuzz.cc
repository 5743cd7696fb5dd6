// SPDX-License-Identifier: Apache-2.0
//
// A file of rows: cut into rows, each parsed, rendered and tokenized.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "datasets/chat/row_encoder.h"
#include "datasets/chat/source_file.h"
#include "glog/logging.h"
#include "plugins/sdk/chat_template.h"
#include "text/chat_template/fake_tokenizer.h"

namespace {

using capstan::chat::RowEncoder;
using capstan::chat::RowPlace;
using capstan::chat::RowReader;

constexpr int64_t kMaxLength = 100;

void ReadRow(absl::string_view json, const RowEncoder& encoder,
             RowReader* reader) {
  // An end of its own, for AddressSanitizer.
  const std::unique_ptr<char[]> copy(new char[json.size()]);
  json.copy(copy.get(), json.size());
  if (!reader->Read({copy.get(), json.size()}, capstan::chat::AUTO, encoder)
           .ok()) {
    return;
  }
  const capstan::chat::TokenRow& row = reader->tokens;
  CHECK_EQ(row.ids.size(), row.labels.size());
  CHECK_LE(static_cast<int64_t>(row.ids.size()), kMaxLength);
  CHECK_LE(row.trained(), static_cast<int64_t>(row.ids.size()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  static const auto chatml = *capstan::ChatTemplate::Named("chatml");
  static const capstan::FakeTokenizer tokenizer({"<|im_start|>", "<|im_end|>"});
  static const RowEncoder encoder(&tokenizer, chatml.get(), absl::OkStatus(),
                                  capstan::chat::BY_KIND, kMaxLength);
  RowReader reader;
  capstan::chat::RowScanner scanner(text);
  std::vector<RowPlace> rows;
  uint64_t behind = 0;
  while (scanner.Next(64, &rows).ok() && !rows.empty()) {
    for (const RowPlace& row : rows) {
      CHECK_GE(row.offset, behind);
      CHECK_GT(row.bytes, 0);
      behind = row.offset + row.bytes;
      CHECK_LE(behind, text.size());
      ReadRow(text.substr(row.offset, row.bytes), encoder, &reader);
    }
  }
  return 0;
}
