// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_HF_TOKENIZER_H_
#define CAPSTAN_TEXT_TOKENIZER_HF_TOKENIZER_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/sdk/tokenizer.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/ends.h"
#include "text/tokenizer/model.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/special_tokens.h"
#include "text/tokenizer/vocabulary.h"

namespace capstan::tokenizer {

// Runs a tokenizer.json in the order of Hugging Face's tokenizers library:
// finds added tokens, normalizes the text between them, finds added tokens in
// that, splits the rest into words and encodes each word.
class HfTokenizer final : public Tokenizer {
 public:
  // Contents by name; "tokenizer.json" is required.
  using Files = std::map<std::string, std::string>;

  // Errors name the file and the JSON path. Encode throws std::runtime_error,
  // with `folder` ("" or "../") before the file's name, for a text that takes
  // more time or memory than its size allows (see budget.h).
  static absl::StatusOr<std::unique_ptr<HfTokenizer>> Make(
      Files files, const std::string& folder = "");
  // Of a folder's tokenizer.json, which is made from vocab.json and merges.txt
  // if it isn't there, and the files beside it. NOT_FOUND if there is neither.
  static absl::StatusOr<std::unique_ptr<HfTokenizer>> Open(
      const std::string& folder);

  int64_t vocab_size() const override { return vocabulary_.size(); }
  std::vector<int64_t> Encode(absl::string_view text) const override;
  Encoding EncodeWithPlaces(absl::string_view text) const override;
  void AddEnds(std::vector<int64_t>* ids) const override;
  std::string Decode(absl::Span<const int64_t> ids) const override;
  absl::optional<int64_t> IdOf(absl::string_view token) const override;
  bool IsSpecial(int64_t id) const override;
  SpecialIds special_ids() const override { return special_ids_; }
  std::string chat_template() const override;
  absl::Status Save(const std::string& folder) const override;
  int64_t FirstUnknown(absl::string_view text) const override;
  // By id, those of the files beside tokenizer.json among them.
  const std::map<int64_t, AddedToken>& added_tokens() const {
    return added_.all();
  }
  const Files& files() const { return files_; }
  // See TokenizerDefinition.
  std::string definition() const;

 private:
  // The last step: encodes words.
  class ModelStep final : public PieceStep {
   public:
    ModelStep(const Bpe* bpe, const Model* model, bool whole_characters)
        : bpe_(bpe), model_(model), whole_characters_(whole_characters) {}
    void Take(const Piece& piece, Worker* worker) const override;

   private:
    void SeekLeftOut(const Piece& piece, Worker* worker) const;
    void TakeSymbols(const Piece& piece, Worker* worker) const;

    const Bpe* const bpe_;  // or
    const Model* const model_;
    const bool whole_characters_;  // offsets don't split characters
  };

  HfTokenizer() = default;
  absl::Status Load();
  absl::Status LoadTokenizer(const JsonNode& root);
  absl::Status LoadModel(const JsonNode& root);
  // What is beside tokenizer.json.
  absl::Status LoadConfig(const JsonNode& root);
  void Connect();
  // `spellings` has each added token, by id.
  void IndexAddedTokens(const std::map<int64_t, Decoder::Spelling>& spellings);
  // How `token` is written in the texts that are searched for it.
  std::string Spelling(const AddedToken& token) const;

  // Calls use(worker) with exclusive use of a worker.
  template <typename Use>
  void WithWorker(const Use& use) const;
  void Run(absl::string_view text, Worker* worker) const;
  void FindPlain(const Frame& frame, Worker* worker) const;
  void Normalize(const Piece& piece, size_t first, Worker* worker) const;
  void FindNormalized(const Piece& piece, Worker* worker) const;
  // Splits at `finder`'s tokens and passes the text between them to
  // rest(piece).
  template <typename Rest>
  void Find(const AddedTokenFinder& finder, const Piece& piece, Worker* worker,
            const Rest& rest) const;

  Files files_;
  std::string folder_;     // for errors
  SpecialTokens written_;  // by the files beside tokenizer.json
  std::string beside_;     // what they change, for definition()
  Vocabulary vocabulary_;
  AddedTokens added_;
  std::vector<bool> special_;           // by id
  AddedTokenFinder plain_finder_;       // searches the original text
  AddedTokenFinder normalized_finder_;  // searches the normalized text
  std::vector<std::unique_ptr<Normalizer>> normalizers_;
  PreTokenizers pre_tokenizers_;
  std::unique_ptr<Bpe> bpe_;      // or
  std::unique_ptr<Model> model_;  // any other
  std::unique_ptr<ModelStep> model_step_;
  const PieceStep* first_step_ = nullptr;
  bool reads_characters_ = false;
  Decoder decoder_;
  Ends ends_;
  SpecialIds special_ids_;
  std::string chat_template_;  // the default if several; "" if none

  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Worker>> idle_;  // guarded by mutex_
};

}  // namespace capstan::tokenizer

#endif  // CAPSTAN_TEXT_TOKENIZER_HF_TOKENIZER_H_
