// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/hf_tokenizer.h"

#include <utility>

#include "text/tokenizer/unicode.h"

namespace capstan::tokenizer {

void HfTokenizer::ModelStep::Take(const Piece& piece, Worker* worker) const {
  const absl::string_view text = piece.frame->text;
  if (!worker->with_places) {
    bpe_.Encode(piece.text, text, &worker->bpe, &worker->ids);
    return;
  }
  bpe_.EncodeWithPlaces(piece.text, text, &worker->bpe, &worker->symbols);
  const size_t offset = piece.text.data() - text.data();
  for (const Symbol& symbol : worker->symbols) {
    size_t begin = offset + symbol.begin;
    size_t end = begin + symbol.size;
    if (whole_characters_) {
      while (begin > 0 && IsContinuation(text[begin])) --begin;
      while (end < text.size() && IsContinuation(text[end])) ++end;
    }
    ToCaller(piece.frame, &begin, &end);
    worker->ids.push_back(symbol.id);
    worker->begins.push_back(static_cast<int64_t>(begin));
    worker->ends.push_back(static_cast<int64_t>(end));
  }
}

template <typename Use>
void HfTokenizer::WithWorker(const Use& use) const {
  std::unique_ptr<Worker> worker;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      worker = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (worker == nullptr) worker = std::make_unique<Worker>();
  // After an exception the worker is not reused.
  use(worker.get());
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(std::move(worker));
}

std::vector<int64_t> HfTokenizer::Encode(absl::string_view text) const {
  std::vector<int64_t> ids;
  WithWorker([&](Worker* worker) {
    worker->with_places = false;
    worker->ids.clear();
    Run(text, worker);
    ids = worker->ids;  // right-sized copy: the worker keeps its capacity
  });
  return ids;
}

Encoding HfTokenizer::EncodeWithPlaces(absl::string_view text) const {
  Encoding encoding;
  WithWorker([&](Worker* worker) {
    worker->with_places = true;
    worker->ids.clear();
    worker->begins.clear();
    worker->ends.clear();
    Run(text, worker);
    encoding = {worker->ids, worker->begins, worker->ends};
  });
  return encoding;
}

void HfTokenizer::Run(absl::string_view text, Worker* worker) const {
  const Frame given = {text, nullptr, {}, nullptr};
  if (!reads_characters_ || IsUtf8(text)) {
    FindPlain(given, worker);
    return;
  }
  Alignment alignment;
  const std::string valid = ToUtf8(text, &alignment);
  FindPlain({valid, &given, text, &alignment}, worker);
}

template <typename Rest>
void HfTokenizer::Find(const AddedTokenFinder& finder, const Piece& piece,
                       Worker* worker, const Rest& rest) const {
  size_t done = 0;
  size_t search = 0;
  AddedTokenFinder::Match match;
  while (finder.Next(piece.text, done, &search, &match)) {
    if (match.begin > done) {
      rest({piece.frame, piece.text.substr(done, match.begin - done)});
    }
    worker->ids.push_back(match.token->id);
    if (worker->with_places) {
      const size_t offset = piece.text.data() - piece.frame->text.data();
      size_t begin = offset + match.begin;
      size_t end = offset + match.end;
      ToCaller(piece.frame, &begin, &end);
      worker->begins.push_back(static_cast<int64_t>(begin));
      worker->ends.push_back(static_cast<int64_t>(end));
    }
    done = match.end;
  }
  if (done < piece.text.size()) {
    rest({piece.frame, piece.text.substr(done)});
  }
}

void HfTokenizer::FindPlain(const Frame& frame, Worker* worker) const {
  Find(plain_finder_, {&frame, frame.text}, worker,
       [&](const Piece& piece) { Normalize(piece, 0, worker); });
}

void HfTokenizer::Normalize(const Piece& piece, size_t first,
                            Worker* worker) const {
  for (size_t i = first; i < normalizers_.size(); ++i) {
    std::string text;
    Alignment alignment;
    if (normalizers_[i]->Apply(piece.text, &worker->regex, &text, &alignment)) {
      const Frame frame = {text, piece.frame, piece.text, &alignment};
      Normalize({&frame, text}, i + 1, worker);
      return;
    }
  }
  FindNormalized(piece, worker);
}

void HfTokenizer::FindNormalized(const Piece& piece, Worker* worker) const {
  Find(normalized_finder_, piece, worker,
       [&](const Piece& rest) { first_step_->Take(rest, worker); });
}

void HfTokenizer::AddEnds(std::vector<int64_t>* ids) const {
  ids->insert(ids->begin(), ends_.before.begin(), ends_.before.end());
  ids->insert(ids->end(), ends_.behind.begin(), ends_.behind.end());
}

std::string HfTokenizer::Decode(absl::Span<const int64_t> ids) const {
  return decoder_.Decode(ids);
}

absl::optional<int64_t> HfTokenizer::IdOf(absl::string_view token) const {
  const int32_t id = vocabulary_.IdOf(token);
  if (id < 0) return absl::nullopt;
  return id;
}

bool HfTokenizer::IsSpecial(int64_t id) const {
  return id >= 0 && id < static_cast<int64_t>(special_.size()) && special_[id];
}

std::string HfTokenizer::chat_template() const {
  return files_.chat_template_jinja.value_or(config_.chat_template);
}

absl::Status HfTokenizer::Save(const std::string& folder) const {
  return WriteFolderFiles(files_, folder);
}

}  // namespace capstan::tokenizer
