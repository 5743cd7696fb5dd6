// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_CHAT_CHAT_H_
#define CAPSTAN_DATASETS_CHAT_CHAT_H_

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "datasets/chat/chat.pb.h"
#include "datasets/chat/row_encoder.h"
#include "datasets/chat/row_index.h"
#include "datasets/chat/sample_table.h"
#include "plugins/sdk/chat_template.h"
#include "plugins/sdk/dataset.h"
#include "text/rows/rows.h"

namespace capstan::chat {

// Conversations and other rows for fine-tuning (see chat.proto). Batches have
// "input_ids" and "labels" [n, T] int64. With packing, T is max_length, and
// "positions" [n, T] int64 has each token's position in its row (not with
// WRAPPED, whose samples are one document); the rest of a
// pack is a document of its own, without labels. Otherwise T is the longest row
// of the batch, and shorter rows are padded at the end. kTokenCounts says what
// isn't padding. Rows and indexes are mapped files, so only batches take
// memory.
//
// A sample of a PREFERENCE is two texts: of n samples, rows 0 to n - 1 are the
// chosen ones and rows n to 2 n - 1 the rejected ones, all of one length. What
// counts a sample's tokens then counts both. "margins" [n] float32 has by how
// much the chosen texts should score higher, 0 where a row doesn't say.
//
// A sample of an UNPAIRED is two texts, too: the row's, and its prompt with the
// completion of the row before it in the source, of the last before the first.
// Such mismatched answers estimate KTO's KL term. (TRL takes them from each
// batch of the file's order, so that they depend on its size.) "desirable" [n]
// int64 has the labels, 1 or 0.
//
// A sample of a PROMPT is what the model reads before it answers, padded at the
// end. Its batches have no "labels", but kRowText.
class Chat final : public DatasetReader {
 public:
  static absl::StatusOr<std::unique_ptr<Chat>> Create(const Config& config);
  // With an existing tokenizer; tokenizer_hash identifies everything that its
  // tokens depend on, in names of cached files.
  static absl::StatusOr<std::unique_ptr<Chat>> Create(
      const Config& config, std::shared_ptr<const Tokenizer> tokenizer,
      uint64_t tokenizer_hash);

  // A VisitRowsFunction.
  static absl::Status VisitRows(absl::string_view config,
                                const RowVisitor& visit);

  int64_t size() const override { return mixture_.size(); }
  bool draws_anew() const override { return mixture_.endless(); }
  bool shuffle() const override {
    return is_training_ && data_->config.shuffle();
  }
  absl::Status Read(absl::Span<const int64_t> indices,
                    Batch* batch) const override;
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override;
  int64_t max_sequence_length() const override {
    return texts() * data_->config.max_length();
  }
  int64_t sample_length(int64_t index) const override {
    return texts() * RowLength(index);
  }
  std::vector<std::string> notes() const override;
  std::vector<CountedFile> counted_files() const override;
  // A user's turn, if any row is a conversation. Throws std::invalid_argument
  // if the template refuses it.
  std::vector<int64_t> PromptIds(absl::string_view text) const override;
  const Tokenizer* tokenizer() const override { return data_->tokenizer.get(); }
  // Of the rows of all sources, in their order, as their indexes have them.
  absl::StatusOr<std::string> Digest() const override;

 private:
  struct OpenedSource {
    Kind kind = AUTO;
    std::unique_ptr<RowEncoder> encoder;
    std::unique_ptr<SourceRows> rows;
    std::unique_ptr<SampleTable> samples;
  };
  struct Data {
    Config config;  // with defaults filled in, and `path` as a source
    std::shared_ptr<const Tokenizer> tokenizer;
    std::unique_ptr<ChatTemplate> chat_template;  // null: see no_template
    absl::Status no_template;
    std::vector<OpenedSource> sources;
    int64_t pad = 0;
    Kind kind = AUTO;             // of the sources (KindOfBatches)
    bool default_length = false;  // max_length wasn't set
  };
  // A batch's memory, row-major.
  struct Out {
    int64_t* ids;
    int64_t* labels;     // null of prompts
    int64_t* positions;  // null without packing, and with WRAPPED
    int64_t length;
  };

  Chat(std::shared_ptr<const Data> data, Part part, bool is_training,
       Mixture mixture)
      : data_(std::move(data)),
        part_(part),
        is_training_(is_training),
        mixture_(std::move(mixture)) {}

  struct HashedTokenizer {
    std::shared_ptr<const Tokenizer> tokenizer;
    uint64_t hash;  // of everything that its tokens depend on
  };
  static absl::StatusOr<HashedTokenizer> OpenTokenizer(const Config& config);
  // All but `sources`.
  static absl::StatusOr<std::shared_ptr<Data>> WithoutSources(
      const Config& config, std::shared_ptr<const Tokenizer> tokenizer);
  static absl::Status ChooseTemplate(Data* data);
  static absl::Status OpenSources(uint64_t tokenizer_hash, Data* data);
  // weighted: by the sources' weights, if they have any.
  static absl::StatusOr<Mixture> Mix(const Data& data, Part part,
                                     bool weighted);

  bool pairs() const {
    return data_->kind == PREFERENCE || data_->kind == UNPAIRED;
  }
  bool prompts() const { return data_->kind == PROMPT; }
  int64_t texts() const { return pairs() ? 2 : 1; }  // of a sample
  // Of the sample's longest row; 0 with packing.
  int64_t RowLength(int64_t index) const;
  absl::Status CheckIndices(absl::Span<const int64_t> indices) const;
  // A pair's two texts.
  struct Pair {
    std::array<TokenRow, 2> texts;
    bool desirable = false;
    double margin = 0.0;
  };
  absl::StatusOr<Pair> ReadPair(int64_t index) const;
  // Writes the rows of a batch.
  void WritePairs(absl::Span<const Pair> pairs, const Out& out,
                  Batch* batch) const;
  // Returns its number of tokens; the rest is padding.
  absl::StatusOr<int64_t> ReadSample(int64_t index, const Out& out) const;
  // kRowText.
  void WriteRowTexts(absl::Span<const int64_t> indices, Batch* batch) const;
  // Of the sample's own row, without packing.
  SourceRows::Place PlaceOf(int64_t index) const;
  absl::StatusOr<int64_t> ReadRows(const OpenedSource& source, int64_t sample,
                                   const Out& out) const;
  absl::StatusOr<int64_t> ReadPieces(const OpenedSource& source, int64_t sample,
                                     const Out& out) const;
  // The row's tokens, checked against the index; this thread's next call
  // overwrites them.
  static absl::StatusOr<const RowReader*> ReadRow(const OpenedSource& source,
                                                  size_t row);
  // "packed: .."; of this reader's part.
  std::string FillNote(const OpenedSource& source) const;

  const std::shared_ptr<const Data> data_;
  const Part part_;
  const bool is_training_;
  const Mixture mixture_;
};

}  // namespace capstan::chat

#endif  // CAPSTAN_DATASETS_CHAT_CHAT_H_
