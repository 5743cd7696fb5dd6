// SPDX-License-Identifier: Apache-2.0
//
// Windows of a text, cut when read or read from the files of a folder, and the
// writing of such a folder. For the reader and for `trainer llada-data`.
#ifndef CAPSTAN_PLUGINS_LLADA_WINDOWS_WINDOW_DATA_H_
#define CAPSTAN_PLUGINS_LLADA_WINDOWS_WINDOW_DATA_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan::llada_windows {

// Windows of equal length. Thread-safe.
class Windows {
 public:
  virtual ~Windows() = default;
  virtual int64_t size() const = 0;
  // Reads the tokens of window i, in [0, size).
  virtual void Read(int64_t i, int64_t* out) const = 0;
};

// The offsets of windows of `width` in `total` tokens: 0, stride, 2 * stride,
// .., and total - width if no window ends there already.
struct WindowPlaces {
  int64_t total = 0;
  int64_t width = 1;
  int64_t stride = 1;

  int64_t size() const;
  int64_t Begin(int64_t i) const;
};

struct WindowData {
  int64_t sequence_length = 0;
  int64_t total_tokens = 0;  // of the text
  int64_t vocab_size = 0;    // ids are below it
  std::shared_ptr<const Windows> train;
  std::shared_ptr<const Windows> validation;  // null: nothing is held back
  std::shared_ptr<const Tokenizer> tokenizer;
  // The mask's id if tokens are characters; -1: the model's own.
  int64_t mask = -1;
  std::vector<std::string> notes;  // as DatasetReader::notes
  std::function<absl::StatusOr<std::string>()> digest;  // as DatasetReader's
};

enum class WindowEnds { kAround, kNone, kCut };

// As the reader's Config.
struct TextWindowsSpec {
  std::string path;
  // Null: the characters that the text has.
  std::shared_ptr<const Tokenizer> tokenizer;
  std::string tokenizer_name;  // for errors
  int64_t sequence_length = 4096;
  int64_t stride = 0;  // 0: half of sequence_length
  double validation_fraction = 0.0;
  WindowEnds ends = WindowEnds::kAround;
};

// Errors name the field of the reader's Config.
absl::StatusOr<WindowData> OpenTextWindows(const TextWindowsSpec& spec);

// Opens a folder with train_data.npy and val_data.npy (int64, [windows,
// sequence_length]), metadata.json, and vocab.json or tokenizer.json. Validates
// all ids, and that the files agree. Errors name the file.
absl::StatusOr<WindowData> OpenNpyFolder(const std::string& folder);

// Whether the folder's tokens are characters.
bool HasCharacters(const std::string& folder);

// Writes such a folder from `data`, which must hold something back, and copies
// `text` to shakespeare_raw.txt in it.
absl::Status WriteNpyFolder(const WindowData& data, const std::string& text,
                            const std::string& folder);

}  // namespace capstan::llada_windows

#endif  // CAPSTAN_PLUGINS_LLADA_WINDOWS_WINDOW_DATA_H_
