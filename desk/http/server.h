// SPDX-License-Identifier: Apache-2.0
//
// An HTTP server for the user who started it: a page, or answers to programs.
#ifndef CAPSTAN_DESK_HTTP_SERVER_H_
#define CAPSTAN_DESK_HTTP_SERVER_H_

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/json.h"
#include "desk/http/connections.h"

namespace capstan {

struct ServerOptions {
  std::string address = "127.0.0.1";
  int port = 0;  // 0: any that is free
  // What each request must bring, as "Authorization: Bearer KEY" or in its
  // query as key=KEY; "": nothing.
  std::string key;
  std::vector<std::string> open_paths;  // GET needs no key there: "/health"
  size_t most_connections = 256;        // at once; further ones wait
  size_t most_body_bytes = size_t{16} << 20;
  // ConnectionLimits::patience.
  std::chrono::milliseconds patience{60000};
};

// Requests are handled on a thread each. On a loopback address only requests
// that a program or a page of this machine makes are answered: a browser that
// another site sends here is refused by its Host or Origin.
class HttpServer {
 public:
  // Binds the port. An error names the address, and the flag --port.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Listen(
      const ServerOptions& options);
  ~HttpServer();

  // Adds what answers requests for a path (a regular expression), before Run.
  // There others than GET and HEAD, or than POST, get status 405.
  void Get(const std::string& path, httplib::Server::Handler handler);
  void Post(const std::string& path, httplib::Server::Handler handler);
  bool is_running() const { return server_.is_running(); }
  int port() const { return port_; }
  // "http://127.0.0.1:8000/"; of 0.0.0.0 with this machine's name.
  std::string Address() const;
  // The same, with the key if there is one.
  std::string Url() const;

  // Answers until a stop signal (cluster/launch/signals.h) or Stop; then ends
  // within about two seconds, whatever clients do. An error if no connection
  // can be accepted any more.
  absl::Status Run();
  // From any thread.
  void Stop();
  bool stopping() const { return stopping_; }

  // Answers with server-sent events: sends what `next` returns, which may be ""
  // and may take up to about a second, until it returns nothing, the client is
  // gone or the server stops. `next` lives as long as the answer; its end tells
  // that the client is served or gone.
  void SendEvents(std::function<absl::optional<std::string>()> next,
                  httplib::Response* response);
  // The same for an answer of any `type`, with `idle` for a "".
  void SendParts(const char* type, const char* idle,
                 std::function<absl::optional<std::string>()> next,
                 httplib::Response* response);

 private:
  explicit HttpServer(const ServerOptions& options);
  httplib::Server::HandlerResponse Admit(const httplib::Request& request,
                                         httplib::Response& response) const;

  // The library's own refusals, and those of its handlers without a body.
  void Explain(const httplib::Request& request,
               httplib::Response& response) const;

  struct Route {
    std::regex path;
    const char* allowed;  // methods
  };
  const ServerOptions options_;
  std::vector<Route> routes_;
  ConnectionServer server_;
  int socket_ = -1;  // the library's, that listens
  int port_ = 0;
  std::atomic<bool> stopping_{false};
};

// An event: "data: JSON" and an empty line; with a name, its "event:" before.
std::string EventText(const nlohmann::json& json, const std::string& name = "");

// Answers with `body`, which isn't empty, as it is: what is set as content the
// library compresses if the client takes that, as hard as it can (a page of 250
// KB takes half a second).
void SendBody(std::string body, const char* type, httplib::Response* response);
void SendJson(const nlohmann::json& json, httplib::Response* response);
// {"error": {"message": .., "type": .., "param": .., "code": ..}}, as OpenAI's
// API has it: the last two are null where nothing is known.
struct ErrorDetails {
  std::string code;   // "model_not_found"; "": the status's, if it has one
  std::string param;  // the request's field
};
nlohmann::json ErrorJson(int status, const std::string& message,
                         const ErrorDetails& details = {});
void SendError(int status, const std::string& message,
               httplib::Response* response, const ErrorDetails& details = {});

// Whether only this machine can reach a host of that name: "localhost",
// "127.0.0.1", "::1".
bool IsLoopback(absl::string_view host);

}  // namespace capstan

#endif  // CAPSTAN_DESK_HTTP_SERVER_H_
