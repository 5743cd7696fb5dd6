// SPDX-License-Identifier: Apache-2.0
#include "desk/http/server.h"

#include <openssl/crypto.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "cluster/launch/launcher.h"
#include "cluster/launch/network.h"
#include "cluster/launch/signals.h"

namespace capstan {
namespace {

constexpr std::chrono::milliseconds kSignalPoll{50};
// What a connection has to end by itself at a stop.
constexpr std::chrono::seconds kGrace{2};
constexpr char kNoKeyHtml[] =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
    "<meta name=\"viewport\" content=\"width=device-width\">"
    "<meta name=\"color-scheme\" content=\"light dark\">"
    "<style>body { margin: 2rem; font: 1rem/1.5 system-ui, sans-serif; } "
    "h1 { font-size: 1.3rem; } input, button { font: inherit; }</style>"
    "<title>No key</title></head>\n<body><h1>The key is missing or wrong</h1>"
    "<p>It is what follows <code>?key=</code> in the address that the server "
    "has printed where it was started, or what it was given there.</p>\n"
    "<form><label>Key <input name=\"key\" type=\"password\" autofocus>"
    "</label> <button>Open</button></form></body></html>\n";

// The host of "localhost:8000", "[::1]:8000" or "127.0.0.1".
absl::string_view HostOf(absl::string_view authority) {
  if (absl::ConsumePrefix(&authority, "[")) {
    return authority.substr(0, authority.find(']'));
  }
  return authority.substr(0, authority.find(':'));
}

// Takes as long for any wrong key of the right length.
bool IsKey(const std::string& given, const std::string& key) {
  return given.size() == key.size() &&
         CRYPTO_memcmp(given.data(), key.data(), key.size()) == 0;
}

std::string KeyIn(const httplib::Request& request) {
  const std::string header = request.get_header_value("Authorization");
  absl::string_view given = header;
  // The scheme's case says nothing: RFC 7235, section 2.1.
  constexpr absl::string_view kScheme = "Bearer ";
  if (absl::StartsWithIgnoreCase(given, kScheme)) {
    return std::string(given.substr(kScheme.size()));
  }
  return request.get_param_value("key");
}

// Sends an error after which the connection ends: what follows it may be the
// rest of a request that nobody reads.
void Refuse(int status, const std::string& why, httplib::Response* response) {
  response->status = status;
  response->set_header("Connection", "close");
  const auto text =
      std::make_shared<const std::string>(JsonText(ErrorJson(status, why)));
  response->set_content_provider(
      text->size(), "application/json",
      [text](size_t, size_t, httplib::DataSink& sink) {
        sink.write(text->data(), text->size());
        return false;
      });
}

// Of the library's own refusals.
std::string WhatIsWrong(int status, const httplib::Request& request) {
  const std::string& path = request.path;
  switch (status) {
    case 400:
      return "the request isn't well-formed HTTP";
    case 404:
      return absl::StrCat("there is nothing at ", path);
    case 405:
      return absl::StrCat(path, " takes no such method");
    case 413:
      // The library reads 8 KiB of a form at most.
      return absl::StrContains(request.get_header_value("Content-Type"),
                               "form-urlencoded")
                 ? "the request's body is too large for a form, which it says "
                   "it is: send Content-Type: application/json"
                 : "the request's body is too large";
    case 414:
      return "the request's address is too long";
    default:
      return absl::StrCat("HTTP status ", status);
  }
}

}  // namespace

bool IsLoopback(absl::string_view host) {
  return host == "localhost" || host == "::1" ||
         (absl::StartsWith(host, "127.") &&
          host.find_first_not_of("0123456789.") == host.npos);
}

HttpServer::HttpServer(const ServerOptions& options)
    : options_(options),
      server_({options.most_connections, options.most_body_bytes,
               options.patience}) {
  // Without SO_REUSEPORT, the library's default, by which two servers would
  // share a port and each get some of the requests.
  server_.set_socket_options([this](int socket) {
    const int on = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    socket_ = socket;
  });
  server_.set_pre_routing_handler(
      [this](const httplib::Request& request, httplib::Response& response) {
        return Admit(request, response);
      });
  // What it gets differs among versions of the library.
  server_.set_exception_handler(
      [](const auto&, httplib::Response& response, const auto&) {
        SendError(500, "the server failed to answer this request", &response);
      });
  server_.set_error_handler(
      [this](const httplib::Request& request, httplib::Response& response) {
        if (!response.has_header("Content-Type")) Explain(request, response);
      });
}

void HttpServer::Get(const std::string& path,
                     httplib::Server::Handler handler) {
  routes_.push_back({std::regex(path), "GET, HEAD"});
  server_.Get(path, std::move(handler));
}

void HttpServer::Post(const std::string& path,
                      httplib::Server::Handler handler) {
  routes_.push_back({std::regex(path), "POST"});
  server_.Post(path, std::move(handler));
}

void HttpServer::Explain(const httplib::Request& request,
                         httplib::Response& response) const {
  // The library looks for a path among those of the request's method alone.
  const auto route =
      std::find_if(routes_.begin(), routes_.end(), [&](const Route& one) {
        return response.status == 404 &&
               std::regex_match(request.path, one.path);
      });
  if (route != routes_.end()) {
    response.status = 405;
    response.set_header("Allow", route->allowed);
  }
  SendError(response.status, WhatIsWrong(response.status, request), &response);
}

HttpServer::~HttpServer() { Stop(); }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Listen(
    const ServerOptions& options) {
  std::unique_ptr<HttpServer> server(new HttpServer(options));
  errno = 0;
  if (options.port == 0) {
    server->port_ = server->server_.bind_to_any_port(options.address.c_str());
  } else if (server->server_.bind_to_port(options.address.c_str(),
                                          options.port)) {
    server->port_ = options.port;
  }
  if (server->port_ > 0) {
    // Once more, for a longer queue than the library's of 5: whoever finds it
    // full tries again a second later.
    listen(server->socket_, SOMAXCONN);
    return server;
  }
  const int error = errno;
  return absl::UnavailableError(absl::StrCat(
      "--port: can't listen on port ", options.port, " of ", options.address,
      error == 0 ? "" : absl::StrCat(" (", std::strerror(error), ")"),
      ": give another one, or 0 for any that is free"));
}

std::string HttpServer::Address() const {
  // Those of all interfaces are where one listens, and nowhere to go.
  const bool any = options_.address == "0.0.0.0" || options_.address == "::";
  const std::string host = any ? HostName() : options_.address;
  const bool v6 = absl::StrContains(host, ":");
  return absl::StrCat("http://", v6 ? "[" : "", host, v6 ? "]" : "", ":", port_,
                      "/");
}

std::string HttpServer::Url() const {
  if (options_.key.empty()) return Address();
  return httplib::append_query_params(Address(), {{"key", options_.key}});
}

httplib::Server::HandlerResponse HttpServer::Admit(
    const httplib::Request& request, httplib::Response& response) const {
  // Whole answers only: the library (0.11) doesn't hold a range against the
  // length of the body, and would send the memory behind it.
  const_cast<httplib::Request&>(request).ranges.clear();
  response.set_header("X-Content-Type-Options", "nosniff");
  response.set_header("Referrer-Policy", "no-referrer");
  const auto refuse = [&response](int status, const std::string& why) {
    Refuse(status, why, &response);
    return httplib::Server::HandlerResponse::Handled;
  };
  const BodyFrame body = BodyFrameOf(request);
  if (!body.problem.empty()) return refuse(400, body.problem);
  // Another site's name that resolves to this machine ("DNS rebinding"), or
  // another site's page.
  if (IsLoopback(options_.address)) {
    const std::string host = request.get_header_value("Host");
    if (!host.empty() && !IsLoopback(HostOf(host))) {
      return refuse(403,
                    absl::StrCat("this server is for its own machine, not ",
                                 "for requests to ", host));
    }
    const std::string origin = request.get_header_value("Origin");
    absl::string_view site = origin;
    if (!origin.empty() &&
        !(absl::ConsumePrefix(&site, "http://") && IsLoopback(HostOf(site)))) {
      return refuse(403,
                    absl::StrCat("pages of ", origin, " may not ask here"));
    }
  }
  const std::vector<std::string>& paths = options_.open_paths;
  const bool open =
      options_.key.empty() ||
      (request.method == "GET" &&
       std::find(paths.begin(), paths.end(), request.path) != paths.end());
  if (!open && !IsKey(KeyIn(request), options_.key)) {
    // A person, with an address without its end.
    if (absl::StrContains(request.get_header_value("Accept"), "text/html")) {
      refuse(401, "");
      response.set_content(kNoKeyHtml, "text/html; charset=utf-8");
      return httplib::Server::HandlerResponse::Handled;
    }
    return refuse(401,
                  "the key is missing or wrong: send \"Authorization: Bearer "
                  "KEY\", or open the address that the server has printed");
  }
  if (body.bytes > options_.most_body_bytes) {
    return refuse(413, WhatIsWrong(413, request));
  }
  // The library would make gigabytes of megabytes.
  const std::string encoding = request.get_header_value("Content-Encoding");
  if (!encoding.empty() && encoding != "identity") {
    return refuse(
        415, absl::StrCat("Content-Encoding ", encoding, " isn't known here"));
  }
  return httplib::Server::HandlerResponse::Unhandled;
}

absl::Status HttpServer::Run() {
  const StopSignals signals;
  std::atomic<bool> ended{false};
  std::thread stopper([this, &ended] {
    while (!stopping_ && StopRequested() == 0) {
      std::this_thread::sleep_for(kSignalPoll);
    }
    Stop();
    const auto limit = std::chrono::steady_clock::now() + kGrace;
    while (!ended) {
      std::this_thread::sleep_for(kSignalPoll);
      if (std::chrono::steady_clock::now() > limit) server_.EndConnections();
    }
  });
  const bool listened = server_.listen_after_bind();
  const bool asked = stopping_;
  ended = true;
  Stop();
  stopper.join();
  if (listened || asked) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "the server at ", Address(), " can accept no more connections"));
}

void HttpServer::Stop() {
  stopping_ = true;
  server_.stop();
}

void HttpServer::SendEvents(std::function<absl::optional<std::string>()> next,
                            httplib::Response* response) {
  response->set_header("Cache-Control", "no-store");
  // A comment, by which a client that has left is noticed.
  SendParts("text/event-stream", ":\n\n", std::move(next), response);
}

void HttpServer::SendParts(const char* type, const char* idle,
                           std::function<absl::optional<std::string>()> next,
                           httplib::Response* response) {
  response->set_chunked_content_provider(
      type, [this, idle = absl::string_view(idle), next = std::move(next)](
                size_t, httplib::DataSink& sink) {
        if (stopping_) return false;
        const absl::optional<std::string> text = next();
        if (!text.has_value()) {
          sink.done();
          return true;
        }
        const absl::string_view part = text->empty() ? idle : *text;
        return sink.write(part.data(), part.size());
      });
}

std::string EventText(const nlohmann::json& json, const std::string& name) {
  return absl::StrCat(name.empty() ? "" : absl::StrCat("event: ", name, "\n"),
                      "data: ", JsonText(json), "\n\n");
}

void SendBody(std::string body, const char* type, httplib::Response* response) {
  const auto shared = std::make_shared<const std::string>(std::move(body));
  response->set_content_provider(
      shared->size(), type,
      [shared](size_t offset, size_t bytes, httplib::DataSink& sink) {
        const absl::string_view rest =
            absl::ClippedSubstr(*shared, offset, bytes);
        return sink.write(rest.data(), rest.size());
      });
}

void SendJson(const nlohmann::json& json, httplib::Response* response) {
  SendBody(JsonText(json), "application/json", response);
}

nlohmann::json ErrorJson(int status, const std::string& message,
                         const ErrorDetails& details) {
  const std::string code = !details.code.empty() ? details.code
                           : status == 401       ? "invalid_api_key"
                           : status == 429       ? "rate_limit_exceeded"
                                                 : "";
  const auto or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::json() : nlohmann::json(text);
  };
  return {{"error",
           {{"message", message},
            {"type", status >= 500 ? "server_error" : "invalid_request_error"},
            {"param", or_null(details.param)},
            {"code", or_null(code)}}}};
}

void SendError(int status, const std::string& message,
               httplib::Response* response, const ErrorDetails& details) {
  response->status = status;
  SendJson(ErrorJson(status, message, details), response);
}

}  // namespace capstan
