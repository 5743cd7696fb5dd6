// SPDX-License-Identifier: Apache-2.0
#include "desk/http/server.h"

#include <netinet/in.h>
#include <openssl/crypto.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
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
// A connection without a request is kept no longer, as a stop waits for it.
constexpr int kKeepAliveSeconds = 1;
// For a client that sends a request, or takes an answer, piece by piece.
constexpr int kReadSeconds = 10;
constexpr int kWriteSeconds = 10;
constexpr char kNoKeyHtml[] =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
    "<meta name=\"viewport\" content=\"width=device-width\">"
    "<title>No key</title></head>\n<body><h1>The key is missing or wrong</h1>"
    "<p>Open the whole address that the server has printed where it was "
    "started: it ends with <code>?key=</code> and the key.</p></body></html>\n";

// A thread for each connection, up to `most`: the next one then waits to be
// accepted. (The library's own pool has a fixed number of threads, each of
// which an answer of events would hold.)
class ThreadPerConnection : public httplib::TaskQueue {
 public:
  explicit ThreadPerConnection(size_t most) : most_(most) {}

  // Newer versions of the library want to know whether it was taken.
  using Taken = decltype(std::declval<httplib::TaskQueue&>().enqueue({}));
  Taken enqueue(std::function<void()> serve) override {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return running_ < most_; });
    ++running_;
    lock.unlock();
    const auto run = [this, serve = std::move(serve)] {
      serve();
      std::lock_guard<std::mutex> lock(mutex_);
      --running_;
      changed_.notify_all();
    };
    try {
      std::thread(run).detach();
    } catch (const std::system_error&) {
      // No further thread may be started: by this one, then, before it accepts
      // the next connection. (Older versions of the library can't be told to
      // close it.)
      run();
    }
    return Taken(true);
  }
  void shutdown() override {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return running_ == 0; });
  }

 private:
  const size_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t running_ = 0;
};

// The host of "localhost:8000", "[::1]:8000" or "127.0.0.1".
absl::string_view HostOf(absl::string_view authority) {
  if (absl::ConsumePrefix(&authority, "[")) {
    return authority.substr(0, authority.find(']'));
  }
  return authority.substr(0, authority.find(':'));
}

// The local port of `socket` if it is a connection; otherwise -1.
int ConnectedPort(int socket) {
  sockaddr_storage peer, own;
  socklen_t peer_size = sizeof(peer), size = sizeof(own);
  auto* const address = reinterpret_cast<sockaddr*>(&own);
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &peer_size) !=
          0 ||
      getsockname(socket, address, &size) != 0) {
    return -1;
  }
  if (own.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<sockaddr_in*>(&own)->sin_port);
  }
  return own.ss_family == AF_INET6
             ? ntohs(reinterpret_cast<sockaddr_in6*>(&own)->sin6_port)
             : -1;
}

// Ends this process's connections at a port of its own, whose sockets the
// library keeps to itself: who reads or writes them finds them closed.
void EndConnections(int port) {
  std::error_code error;
  for (const auto& file :
       std::filesystem::directory_iterator("/proc/self/fd", error)) {
    int socket = -1;
    if (absl::SimpleAtoi(file.path().filename().string(), &socket) &&
        ConnectedPort(socket) == port) {
      shutdown(socket, SHUT_RDWR);
    }
  }
}

// Takes as long for any wrong key of the right length.
bool IsKey(const std::string& given, const std::string& key) {
  return given.size() == key.size() &&
         CRYPTO_memcmp(given.data(), key.data(), key.size()) == 0;
}

std::string KeyIn(const httplib::Request& request) {
  const std::string header = request.get_header_value("Authorization");
  absl::string_view given = header;
  if (absl::ConsumePrefix(&given, "Bearer ")) return std::string(given);
  return request.get_param_value("key");
}

// Of the library's own refusals.
std::string WhatIsWrong(int status, const std::string& path) {
  switch (status) {
    case 400:
      return "the request isn't well-formed HTTP";
    case 404:
      return absl::StrCat("there is nothing at ", path);
    case 413:
      return "the request's body is too large";
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

HttpServer::HttpServer(const ServerOptions& options) : options_(options) {
  const size_t most = options.most_connections;
  server_.new_task_queue = [most] { return new ThreadPerConnection(most); };
  server_.set_keep_alive_timeout(kKeepAliveSeconds);
  server_.set_read_timeout(kReadSeconds);
  server_.set_write_timeout(kWriteSeconds);
  server_.set_tcp_nodelay(true);
  server_.set_payload_max_length(options.most_body_bytes);
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
  server_.set_exception_handler([](const httplib::Request&,
                                   httplib::Response& response,
                                   std::exception_ptr) {
    SendError(500, "the server failed to answer this request", &response);
  });
  server_.set_error_handler(
      [](const httplib::Request& request, httplib::Response& response) {
        if (!response.body.empty()) return;
        SendError(response.status, WhatIsWrong(response.status, request.path),
                  &response);
      });
}

HttpServer::~HttpServer() { Stop(); }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Listen(
    const ServerOptions& options) {
  std::unique_ptr<HttpServer> server(new HttpServer(options));
  errno = 0;
  if (options.port == 0) {
    server->port_ = server->server_.bind_to_any_port(options.address);
  } else if (server->server_.bind_to_port(options.address, options.port)) {
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
  const bool v6 = absl::StrContains(options_.address, ":");
  return absl::StrCat("http://", v6 ? "[" : "", options_.address, v6 ? "]" : "",
                      ":", port_, "/");
}

std::string HttpServer::Url() const {
  return absl::StrCat(Address(),
                      options_.key.empty() ? "" : "?key=", options_.key);
}

httplib::Server::HandlerResponse HttpServer::Admit(
    const httplib::Request& request, httplib::Response& response) const {
  // Whole answers only: the library (0.11) doesn't hold a range against the
  // length of the body, and would send the memory behind it.
  const_cast<httplib::Request&>(request).ranges.clear();
  response.set_header("X-Content-Type-Options", "nosniff");
  response.set_header("Referrer-Policy", "no-referrer");
  const auto refuse = [&response](int status, const std::string& why) {
    SendError(status, why, &response);
    return httplib::Server::HandlerResponse::Handled;
  };
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
  const std::vector<std::string>& open = options_.open_paths;
  if (!options_.key.empty() && !IsKey(KeyIn(request), options_.key) &&
      std::find(open.begin(), open.end(), request.path) == open.end()) {
    // A person, with an address without its end.
    if (absl::StrContains(request.get_header_value("Accept"), "text/html")) {
      response.status = 401;
      response.set_content(kNoKeyHtml, "text/html; charset=utf-8");
      return httplib::Server::HandlerResponse::Handled;
    }
    return refuse(401,
                  "the key is missing or wrong: send \"Authorization: Bearer "
                  "KEY\", or open the address that the server has printed");
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
      if (std::chrono::steady_clock::now() > limit) EndConnections(port_);
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
  response->set_chunked_content_provider(
      "text/event-stream",
      [this, next = std::move(next)](size_t, httplib::DataSink& sink) {
        if (stopping_) return false;
        const absl::optional<std::string> text = next();
        if (!text.has_value()) {
          sink.done();
          return true;
        }
        // A comment, by which a client that has left is noticed.
        const absl::string_view idle = ":\n\n";
        return text->empty() ? sink.write(idle.data(), idle.size())
                             : sink.write(text->data(), text->size());
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

void SendError(int status, const std::string& message,
               httplib::Response* response) {
  const char* const type = status >= 500   ? "server_error"
                           : status == 401 ? "authentication_error"
                           : status == 403 ? "permission_error"
                           : status == 404 ? "not_found_error"
                                           : "invalid_request_error";
  response->status = status;
  // As content, by which the server's own errors are told from these.
  response->set_content(
      JsonText(nlohmann::json{
          {"error", {{"message", message}, {"type", type}, {"code", status}}}}),
      "application/json");
}

std::string RandomKey() {
  constexpr size_t kBytes = 16;
  return absl::BytesToHexString(RandomBytes(kBytes));
}

}  // namespace capstan
