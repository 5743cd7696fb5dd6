// SPDX-License-Identifier: Apache-2.0
#include "inference/engine/engine.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plugins/sdk/token_model.h"
#include "plugins/sdk/unit_runner.h"

namespace capstan {
namespace {

absl::Status Ended() {
  return absl::CancelledError("the text was stopped before its end");
}

absl::StatusOr<std::unique_ptr<TextBatch>> NewBatch(const EngineModel& model,
                                                    bool keep_context) {
  auto* const batching = dynamic_cast<TextBatching*>(model.objective);
  if (batching == nullptr) {
    return absl::UnimplementedError("the objective writes one text at a time");
  }
  return batching->NewTextBatch(*model.model, keep_context);
}

// Positions for which a joined cache of `rows` texts may have memory: rows to
// come are kept in store (kernels::LayerCache), and positions before all texts
// for a while (decoder::DecoderCache).
double CacheTokens(int64_t rows, int64_t longest) {
  constexpr double kRows = 1.5, kPositions = 4.0 / 3, kMorePositions = 64;
  const auto count = static_cast<double>(rows);
  const auto length = static_cast<double>(longest);
  if (rows <= 1) return count * length;
  return (kRows * count + 1) * (kPositions * length + kMorePositions);
}

// What `work` comes to, if it throws, too.
template <typename Work>
absl::Status StatusOf(const Work& work) {
  try {
    return work();
  } catch (...) {
    return CurrentExceptionToStatus();
  }
}

}  // namespace

Engine::Engine(std::vector<EngineModel> models, const EngineOptions& options)
    : options_(options) {
  for (const EngineModel& model : models) {
    Served served;
    served.its = model;
    if (options.keep_context) model.objective->KeepContext(true);
    absl::StatusOr<std::unique_ptr<TextBatch>> batch =
        NewBatch(model, options.keep_context);
    if (batch.ok()) {
      served.batches = true;
      served.token_bytes = (*batch)->token_bytes();
      served.batch = *std::move(batch);
    }
    models_.push_back(std::move(served));
  }
  thread_ = std::thread([this] { Run(); });
}

Engine::~Engine() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

absl::StatusOr<std::unique_ptr<Answers>> Engine::Submit(
    std::vector<EngineRequest> requests) {
  auto queue = std::make_shared<AnswerQueue>(requests.size());
  std::vector<Text> texts;
  for (size_t i = 0; i < requests.size(); ++i) {
    const Served& served = models_[requests[i].model];
    texts.push_back(std::make_shared<EngineText>(std::move(requests[i]), i,
                                                 served.its, queue));
    const int64_t longest = texts.back()->longest();
    if (served.token_bytes > 0 &&
        longest > options_.cache_bytes / served.token_bytes) {
      return absl::OutOfRangeError(
          absl::StrCat("a text of ", longest,
                       " tokens is more than the cache has room for, ",
                       options_.cache_bytes / served.token_bytes));
    }
  }
  if (texts.size() > options_.waiting) {
    return absl::InvalidArgumentError(
        absl::StrCat("a request for ", texts.size(), " texts is more than the ",
                     options_.waiting, " that may wait here"));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (waiting_.size() + texts.size() > options_.waiting) {
    return absl::ResourceExhaustedError(
        absl::StrCat(waiting_.size(), " texts are waiting already, of at most ",
                     options_.waiting, ": try again later"));
  }
  waiting_.insert(waiting_.end(), texts.begin(), texts.end());
  changed_.notify_all();
  return std::make_unique<Answers>(std::move(queue));
}

EngineLoad Engine::load() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  EngineLoad load = load_;
  load.waiting = static_cast<int64_t>(waiting_.size());
  return load;
}

bool Engine::writing() const {
  return std::any_of(models_.begin(), models_.end(), [](const Served& served) {
    return !served.texts.empty();
  });
}

void Engine::Run() {
  const at::NoGradGuard no_grad;
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(
          lock, [this] { return stopping_ || !waiting_.empty() || writing(); });
    }
    if (stopping_) break;
    if (const Text text = Admit(/*alone=*/true)) {
      WriteAlone(text);
    } else {
      StepBatches();
    }
  }
  for (Served& served : models_) {
    served.batch = nullptr;
    while (!served.texts.empty()) Finish(served.texts.back(), Ended());
  }
  // No more come: whoever could submit them has ended.
  std::deque<Text> waiting;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting.swap(waiting_);
    load_.writing += static_cast<int64_t>(waiting.size());
  }
  for (const Text& text : waiting) Finish(text, Ended());
}

std::deque<Engine::Text>::iterator Engine::Next(bool alone) {
  return std::find_if(waiting_.begin(), waiting_.end(), [&](const Text& text) {
    return text->cancelled() ||
           (GoesIntoBatch(*text) ? HasRowFor(*text) : alone);
  });
}

Engine::Text Engine::Admit(bool alone) {
  for (;;) {
    Text text;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto next = Next(alone);
      if (next == waiting_.end()) return nullptr;
      text = *next;
      if (!text->cancelled() && GoesIntoBatch(*text) && !HasRoomFor(*text)) {
        return nullptr;
      }
      waiting_.erase(next);
      // The rest of its request comes after all others.
      std::stable_partition(
          waiting_.begin(), waiting_.end(),
          [&](const Text& other) { return !other->IsBeside(*text); });
      ++load_.writing;
    }
    if (text->cancelled()) {
      Finish(text, Ended());
    } else if (GoesIntoBatch(*text)) {
      AddToBatch(text);
    } else {
      return text;
    }
  }
}

bool Engine::GoesIntoBatch(const EngineText& text) const {
  const Served& served = models_[text.request().model];
  return served.batches && text.request().sample.max_new_tokens > 0 &&
         // The last new token isn't read.
         text.longest() - 1 <= served.its.model->token_model()->max_positions();
}

bool Engine::HasRowFor(const EngineText& text) const {
  return static_cast<int64_t>(models_[text.request().model].texts.size()) <
         options_.rows;
}

bool Engine::HasRoomFor(const EngineText& text) const {
  const Served& its = models_[text.request().model];
  // All rows of a batch are as long as its longest.
  double bytes = 0.0;
  for (const Served& served : models_) {
    int64_t rows = static_cast<int64_t>(served.texts.size());
    int64_t longest = 0;
    for (const Text& other : served.texts) {
      longest = std::max(longest, other->longest());
    }
    if (&served == &its) {
      ++rows;
      longest = std::max(longest, text.longest());
    }
    bytes +=
        CacheTokens(rows, longest) * static_cast<double>(served.token_bytes);
  }
  return bytes <= static_cast<double>(options_.cache_bytes) || !writing();
}

void Engine::AddToBatch(const Text& text) {
  Served& served = models_[text->request().model];
  const absl::Status status = StatusOf([&]() -> absl::Status {
    if (served.batch == nullptr) {
      CAPSTAN_ASSIGN_OR_RETURN(served.batch,
                               NewBatch(served.its, options_.keep_context));
    }
    return served.batch->Add(text->Batched(
        [this, text](const absl::Status& status) { Finish(text, status); }));
  });
  if (status.ok()) {
    served.texts.push_back(text);
  } else {
    Finish(text, status);
  }
}

void Engine::StepBatches() {
  for (Served& served : models_) {
    if (!served.texts.empty()) StepBatch(&served);
  }
}

void Engine::StepBatch(Served* served) {
  const absl::Status status = StatusOf([&] {
    PlainRunner runner;
    return served->batch->Step(runner);
  });
  if (status.ok()) return;
  served->batch = nullptr;
  while (!served->texts.empty()) Finish(served->texts.back(), status);
}

void Engine::WriteAlone(const Text& text) {
  // Between its forwards the others go on, and new ones come.
  const auto stop = [this] {
    Admit(/*alone=*/false);
    StepBatches();
    return stopping_.load();
  };
  Finish(text, StatusOf([&] { return text->WriteAlone(stop); }));
}

void Engine::Finish(const Text& text, const absl::Status& status) {
  // `text` may be the element that goes.
  const Text finished = text;
  std::vector<Text>& texts = models_[finished->request().model].texts;
  texts.erase(std::remove(texts.begin(), texts.end(), finished), texts.end());
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    --load_.writing;
    ++load_.answered;
    load_.prompt_tokens +=
        static_cast<int64_t>(finished->request().prompt.size());
    load_.new_tokens += finished->new_tokens();
  }
  finished->Finish(status);
}

}  // namespace capstan
