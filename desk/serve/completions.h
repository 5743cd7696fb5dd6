// SPDX-License-Identifier: Apache-2.0
//
// OpenAI's API over HTTP: what `trainer serve` answers.
#ifndef CAPSTAN_DESK_SERVE_COMPLETIONS_H_
#define CAPSTAN_DESK_SERVE_COMPLETIONS_H_

#include <httplib.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "desk/http/server.h"
#include "desk/serve/openai_request.h"
#include "desk/serve/reply.h"
#include "inference/decode/prompt.h"
#include "inference/engine/engine.h"
#include "inference/load/generator.h"

namespace capstan {

// A model by the name that requests have.
struct NamedModel {
  std::string name;
  Generator generator;
};

struct CompletionDefaults {
  int64_t max_tokens = 512;
  TaskSettings tasks;
};

// Adds its routes to a server: /v1/chat/completions, /v1/completions,
// /v1/models, /health. Thread-safe.
class Completions {
 public:
  // All outlive the server's run.
  Completions(const std::vector<NamedModel>* models, Engine* engine,
              CompletionDefaults defaults, HttpServer* server);

  void AddRoutes();

 private:
  // An answer on its way to a client.
  struct Running;

  void Complete(Api api, const httplib::Request& request,
                httplib::Response* response) const;
  absl::StatusOr<std::shared_ptr<Running>> Start(Api api,
                                                 const std::string& body) const;
  // The same; of large bodies one at a time.
  absl::StatusOr<std::shared_ptr<Running>> StartInTurn(
      Api api, const std::string& body) const;
  absl::StatusOr<size_t> Find(const std::string& name) const;
  absl::StatusOr<std::vector<ReplyPrompt>> Prompts(
      const CompletionRequest& request, const NamedModel& model) const;
  absl::Status LimitLength(const Generator& generator,
                           const ReplyPrompt& prompt,
                           SampleOptions* sample) const;
  void SendStream(const std::shared_ptr<Running>& running,
                  httplib::Response* response) const;
  void SendWhole(const std::shared_ptr<Running>& running,
                 httplib::Response* response) const;
  nlohmann::json ModelCard(const NamedModel& model) const;

  const std::vector<NamedModel>& models_;
  Engine* const engine_;
  const CompletionDefaults defaults_;
  HttpServer* const server_;
  const int64_t created_;
  mutable std::timed_mutex large_body_;
};

}  // namespace capstan

#endif  // CAPSTAN_DESK_SERVE_COMPLETIONS_H_
