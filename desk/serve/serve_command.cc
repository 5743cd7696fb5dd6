// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <httplib.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/machine.h"
#include "base/status.h"
#include "desk/generate/model_flags.h"
#include "desk/http/server.h"
#include "desk/page/page.h"
#include "desk/serve/completions.h"
#include "inference/engine/engine.h"
#include "plugins/sdk/lib/field_check.h"
#include "trainer/commands/command.h"
#include "trainer/metrics/console.h"

namespace capstan {

extern const EmbeddedFile kChatPage[];

namespace {

constexpr const char* kKeyVariable = "CAPSTAN_SERVE_KEY";
constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kMostRows = 4096;
constexpr int64_t kMostCacheMib = int64_t{1} << 30;
// A thread each, most of which sleep.
constexpr size_t kMostConnections = 2048;

struct ServeOptions : SamplingOptions {
  std::string name;                   // of the model; "": its folder's
  std::vector<std::string> adapters;  // NAME=FOLDER
  ServerOptions server;
  int64_t rows = EngineOptions().rows;
  absl::optional<int64_t> cache_mib;
  int64_t waiting = static_cast<int64_t>(EngineOptions().waiting);
  int64_t max_tokens = CompletionDefaults().max_tokens;
  bool keep_context = false;
  bool key_from_environment = false;

  ServeOptions() { server.port = 8000; }
};

absl::Status CheckOptions(ServeOptions* options) {
  CAPSTAN_RETURN_IF_ERROR(CheckField(options->rows <= kMostRows, "--rows",
                                     absl::StrCat("at most ", kMostRows),
                                     options->rows));
  CAPSTAN_RETURN_IF_ERROR(CheckField(
      options->max_tokens <= kMostNewTokens, "--max_tokens",
      absl::StrCat("at most ", kMostNewTokens), options->max_tokens));
  CAPSTAN_RETURN_IF_ERROR(CheckField(
      options->cache_mib.value_or(1) <= kMostCacheMib, "--cache_mib",
      absl::StrCat("at most ", kMostCacheMib), options->cache_mib.value_or(1)));
  ServerOptions& server = options->server;
  CAPSTAN_RETURN_IF_ERROR(CheckField(server.port >= 0 && server.port < 65536,
                                     "--port", "from 0 to 65535", server.port));
  const char* const key = std::getenv(kKeyVariable);
  if (server.key.empty() && key != nullptr) {
    server.key = key;
    options->key_from_environment = true;
  }
  if (server.key.empty() && !IsLoopback(server.address)) {
    return FieldError(
        "--address",
        absl::StrCat(server.address,
                     " is open to other machines, which need a key: set ",
                     kKeyVariable, " or --key"));
  }
  return absl::OkStatus();
}

// Whether a folder is named for when its run began (output_folder.cc).
bool IsTimeOfRun(const std::string& name) {
  constexpr size_t kLength = 19;  // a suffix may follow
  absl::Time time;
  return absl::ParseTime("%Y-%m-%d_%H-%M-%S", name.substr(0, kLength), &time,
                         nullptr);
}

// The last part of a path that says something, however it is written:
// runs/NAME/latest/ and runs/NAME/TIME/final are NAME, and so is "." there.
std::string NameOf(const std::string& model) {
  namespace fs = std::filesystem;
  std::string name;
  // Not FromCaller(model), which follows `latest`.
  for (fs::path path = (fs::path(FromCaller(".")) / model).lexically_normal();
       !path.empty(); path = path.parent_path()) {
    name = path.filename().string();
    if (!name.empty() && name != "." && name != "latest" && name != "final" &&
        !IsTimeOfRun(name)) {
      return name;
    }
    if (path == path.parent_path()) break;
  }
  return name.empty() ? "model" : name;
}

absl::Status AddModel(const std::string& name, const SamplingOptions& options,
                      std::vector<NamedModel>* models) {
  for (const NamedModel& other : *models) {
    if (other.name != name) continue;
    return FieldError("--adapter",
                      absl::StrCat("has a name, ", name, ", that is taken"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(Generator generator, LoadToWrite(options));
  if (generator.tokenizer == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("--model=", options.model, " has no tokenizer (",
                     generator.tokenizer_error.message(), ")"));
  }
  CAPSTAN_RETURN_IF_ERROR(TellIgnoredSettings(*generator.model));
  const absl::Status chats =
      ChatTemplateOf(options.Tasks(), *generator.tokenizer).status();
  if (!options.chat_template.empty()) CAPSTAN_RETURN_IF_ERROR(chats);
  if (!chats.ok()) {
    std::cerr << "NOTE: chats, those of the page too, will be refused: "
              << PrintableText(chats.message()) << "\n";
  }
  models->push_back({name, std::move(generator)});
  return absl::OkStatus();
}

absl::StatusOr<std::vector<NamedModel>> LoadModels(
    const ServeOptions& options) {
  std::vector<NamedModel> models;
  CAPSTAN_RETURN_IF_ERROR(
      AddModel(options.name.empty() ? NameOf(options.model) : options.name,
               options, &models));
  for (const std::string& adapter : options.adapters) {
    const size_t equals = adapter.find('=');
    // Without a folder the base would answer in the adapter's name.
    if (equals == 0 || equals == adapter.npos || equals + 1 == adapter.size()) {
      return FieldError("--adapter",
                        absl::StrCat("must be NAME=FOLDER, is ", adapter));
    }
    // Weights in a folder's own form are mapped: the base is in memory once.
    SamplingOptions with = options;
    with.adapter.folder = adapter.substr(equals + 1);
    CAPSTAN_RETURN_IF_ERROR(AddModel(adapter.substr(0, equals), with, &models));
  }
  return models;
}

EngineOptions EngineOf(const ServeOptions& options,
                       const std::vector<NamedModel>& models) {
  EngineOptions engine;
  engine.rows = options.rows;
  engine.waiting = static_cast<size_t>(options.waiting);
  engine.keep_context = options.keep_context;
  if (options.cache_mib.has_value()) {
    engine.cache_bytes = *options.cache_mib * kMiB;
  } else if (!models[0].generator.place.gpu) {
    constexpr int64_t kPart = 4;
    engine.cache_bytes = AvailableHostMemory() / kPart;
  }
  return engine;
}

void AddPage(HttpServer* server) {
  server->Get("/", [](const httplib::Request&, httplib::Response& response) {
    // Nothing comes from elsewhere, and nothing goes there.
    response.set_header("Content-Security-Policy",
                        "default-src 'none'; style-src 'unsafe-inline'; "
                        "script-src 'unsafe-inline'; connect-src 'self'; "
                        "img-src data:; base-uri 'none'; form-action 'none'; "
                        "frame-ancestors 'none'");
    response.set_content(
        absl::StrCat(EmbeddedText(kChatPage, "page.html"), "<style>",
                     EmbeddedText(kChatPage, "page.css"), "</style>\n<script>",
                     EmbeddedText(kChatPage, "page.js"), "</script>\n"),
        "text/html; charset=utf-8");
  });
}

// What a person opens. A key of the environment isn't shown on a screen, which
// others may see: the page asks for it.
std::string AddressFor(const ServeOptions& options, const HttpServer& server) {
  return options.key_from_environment
             ? absl::StrCat(server.Address(), " (with the key in $",
                            kKeyVariable, ")")
             : server.Url();
}

absl::StatusOr<int> Serve(const ServeOptions& given) {
  ServeOptions options = given;
  CAPSTAN_RETURN_IF_ERROR(CheckOptions(&options));
  // The port first: loading may take minutes.
  options.server.open_paths = {"/health"};
  options.server.most_connections = kMostConnections;
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<HttpServer> server,
                           HttpServer::Listen(options.server));
  at::set_num_threads(AvailableCores());
  const at::NoGradGuard no_grad;
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<NamedModel> models,
                           LoadModels(options));
  std::vector<EngineModel> written;
  for (const NamedModel& model : models) {
    written.push_back({model.generator.model.get(),
                       model.generator.objective.get(),
                       model.generator.tokenizer.get()});
  }
  Engine engine(std::move(written), EngineOf(options, models));
  Completions completions(&models, &engine,
                          {options.max_tokens, options.Tasks()}, server.get());
  completions.AddRoutes();
  AddPage(server.get());
  std::cout << "serving "
            << PrintableText(
                   absl::StrJoin(models, ", ",
                                 [](std::string* out, const NamedModel& model) {
                                   absl::StrAppend(out, model.name);
                                 }))
            << " at " << AddressFor(options, *server)
            << ", to programs below /v1"
            << (engine.batches(0) ? "" : ", one text after the other")
            << std::endl;
  CAPSTAN_RETURN_IF_ERROR(server->Run());
  return 0;
}

void AddFlags(Flags& flags, ServeOptions* options) {
  AddModelFlag(flags, &options->model);
  flags.Add("--name", &options->name,
            "What requests call the model; default: its folder's name");
  flags
      .Add("--adapter", &options->adapters,
           "A LoRA adapter (PEFT's files) for the model, and what requests "
           "call the model with it; may be given several times")
      .Type("NAME=FOLDER")
      .OneEach();
  flags.Add("--other_base", &options->adapter.other_base,
            "The adapters may have been trained on a base with other weights");
  AddWeightsFlag(flags, &options->weights);
  flags.Add("--port", &options->server.port, "0: any that is free")
      .ShowDefault();
  flags
      .Add("--address", &options->server.address,
           "0.0.0.0 answers other machines, too, which then need a key")
      .ShowDefault();
  flags.Add("--key", &options->server.key,
            "What requests must bring as their API key; better in the "
            "variable CAPSTAN_SERVE_KEY, which other users can't see");
  flags
      .Add("--rows", &options->rows,
           "Texts that a model writes at once; further ones wait")
      .Positive()
      .ShowDefault();
  flags
      .Add("--cache_mib", &options->cache_mib,
           "Memory for the keys and values of all of them; default: a quarter "
           "of the host's that is free, or 4096 on a GPU")
      .Positive();
  flags
      .Add("--waiting", &options->waiting,
           "Texts that may wait; further ones are refused")
      .Positive()
      .ShowDefault();
  flags
      .Add("--max_tokens", &options->max_tokens,
           "Of a text, where a request doesn't say")
      .Positive()
      .ShowDefault();
  flags.Add("--keep_context", &options->keep_context,
            "Go on from the last text's keys and values where a prompt begins "
            "with it: conversations answer sooner, in last bits differently");
  AddTemplateFlags(flags, options);
  AddSet(flags, &options->overrides, "Sets a field of the model's config");
  AddPluginPath(flags, &options->plugin_path);
}

const RegisterFunction<ServeOptions> serve_command("serve", AddFlags, Serve);

}  // namespace
}  // namespace capstan
