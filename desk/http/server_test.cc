// SPDX-License-Identifier: Apache-2.0
#include "desk/http/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace capstan {
namespace {

using ::testing::HasSubstr;

// A server that runs while this lives.
class Served {
 public:
  explicit Served(const ServerOptions& options,
                  const std::function<void(HttpServer&)>& routes = {}) {
    auto server = HttpServer::Listen(options);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = std::move(*server);
    server_->routes().Get("/", [](const auto&, auto& response) {
      SendJson({{"hello", 1}}, &response);
    });
    server_->routes().Post("/post", [](const auto& request, auto& response) {
      SendJson({{"bytes", request.body.size()}}, &response);
    });
    if (routes) routes(*server_);
    thread_ = std::thread([this] { EXPECT_TRUE(server_->Run().ok()); });
    while (!server_->routes().is_running()) std::this_thread::yield();
  }
  ~Served() {
    server_->Stop();
    thread_.join();
  }
  httplib::Client client() const {
    return httplib::Client("127.0.0.1", server_->port());
  }
  int port() const { return server_->port(); }
  HttpServer& server() { return *server_; }

 private:
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
};

int StatusOf(const httplib::Result& result) {
  return result ? result->status : -1;
}

// The library would take half a second to compress a page.
TEST(HttpServer, SendsBodiesAsTheyAre) {
  const Served served{ServerOptions()};
  httplib::Client client = served.client();
  client.set_decompress(false);
  const auto result =
      client.Get("/", {{"Accept-Encoding", "gzip, deflate, br"}});
  ASSERT_EQ(StatusOf(result), 200);
  EXPECT_EQ(result->body, "{\"hello\":1}");
  EXPECT_FALSE(result->has_header("Content-Encoding"));
}

TEST(HttpServer, AnswersItsMachineAlone) {
  const Served served{ServerOptions()};
  httplib::Client client = served.client();
  EXPECT_EQ(StatusOf(client.Get("/")), 200);
  EXPECT_EQ(StatusOf(client.Get("/", {{"Host", "localhost:9"}})), 200);
  EXPECT_EQ(StatusOf(client.Get("/", {{"Host", "[::1]:9"}})), 200);
  EXPECT_EQ(StatusOf(client.Get("/", {{"Host", "evil.example"}})), 403);
  EXPECT_EQ(StatusOf(client.Get("/", {{"Host", "127.evil.example"}})), 403);
  EXPECT_EQ(StatusOf(client.Post("/post", {{"Origin", "http://127.0.0.1:1"}},
                                 "x", "text/plain")),
            200);
  EXPECT_EQ(StatusOf(client.Post("/post", {{"Origin", "https://evil.example"}},
                                 "x", "text/plain")),
            403);
  EXPECT_EQ(
      StatusOf(client.Post("/post", {{"Origin", "null"}}, "x", "text/plain")),
      403);
  const auto nothing = client.Get("/nothing");
  EXPECT_EQ(StatusOf(nothing), 404);
  EXPECT_THAT(nothing->body, HasSubstr("there is nothing at /nothing"));
}

TEST(HttpServer, AsksForItsKey) {
  ServerOptions options;
  options.key = RandomKey();
  options.open_paths = {"/health"};
  Served served(options, [](HttpServer& server) {
    server.routes().Get("/health", [](const auto&, auto& response) {
      SendJson({{"ok", true}}, &response);
    });
  });
  httplib::Client client = served.client();
  EXPECT_EQ(StatusOf(client.Get("/")), 401);
  EXPECT_EQ(StatusOf(client.Get("/?key=" + std::string(32, '0'))), 401);
  EXPECT_EQ(StatusOf(client.Get("/?key=" + options.key)), 200);
  EXPECT_EQ(
      StatusOf(client.Get("/", {{"Authorization", "Bearer " + options.key}})),
      200);
  EXPECT_EQ(StatusOf(client.Get("/health")), 200);
  // A browser shows it to a person.
  const auto page = client.Get("/", {{"Accept", "text/html,*/*;q=0.8"}});
  EXPECT_EQ(StatusOf(page), 401);
  EXPECT_THAT(page->get_header_value("Content-Type"), HasSubstr("text/html"));
  EXPECT_THAT(page->body, HasSubstr("the server has printed"));
  EXPECT_THAT(client.Get("/")->body, HasSubstr("authentication_error"));
  EXPECT_THAT(served.server().Url(), HasSubstr("/?key=" + options.key));
}

TEST(HttpServer, SendsEventsUntilTheyEnd) {
  Served served(ServerOptions(), [](HttpServer& server) {
    server.routes().Get("/events", [&server](const auto&, auto& response) {
      auto count = std::make_shared<int>(0);
      server.SendEvents(
          [count]() -> absl::optional<std::string> {
            if (++*count == 2) return "";
            if (*count > 3) return absl::nullopt;
            return EventText({{"count", *count}}, "tick");
          },
          &response);
    });
  });
  const auto answer = served.client().Get("/events");
  ASSERT_EQ(StatusOf(answer), 200);
  EXPECT_EQ(answer->body,
            "event: tick\ndata: {\"count\":1}\n\n:\n\n"
            "event: tick\ndata: {\"count\":3}\n\n");
}

// The end of `next` is how a handler learns that its client has left.
TEST(HttpServer, NoticesThatAClientHasLeft) {
  auto held = std::make_shared<int>(0);
  const std::weak_ptr<int> alive = held;
  Served served(ServerOptions(), [&held](HttpServer& server) {
    server.routes().Get("/events",
                        [&held, &server](const auto&, auto& response) {
                          server.SendEvents(
                              [mine = std::move(held)] {
                                return absl::make_optional("data: \n\n");
                              },
                              &response);
                        });
  });
  httplib::Client client = served.client();
  client.Get("/events", [](const char*, size_t) { return false; });
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!alive.expired() && std::chrono::steady_clock::now() < limit) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(alive.expired());
}

// More clients than connections: each is served in its turn.
TEST(HttpServer, LetsFurtherConnectionsWait) {
  ServerOptions options;
  options.most_connections = 2;
  const Served served(options);
  std::vector<std::thread> threads;
  std::atomic<int> served_count{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      httplib::Client client = served.client();
      client.set_read_timeout(60);
      served_count += StatusOf(client.Get("/")) == 200;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(served_count, 8);
}

// One that sends a byte now and then is never done by itself.
TEST(HttpServer, ASlowSenderDoesNotHoldItsEnd) {
  std::atomic<bool> ended{false};
  std::thread sender;
  {
    ServerOptions options;
    options.most_connections = 1;
    const Served served(options);
    const int slow = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(served.port());
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(connect(slow, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    ASSERT_GT(send(slow, "GET / HTTP/1.1\r\nX: ", 19, MSG_NOSIGNAL), 0);
    sender = std::thread([slow, &ended] {
      pollfd events = {slow, POLLIN, 0};
      while (!ended && poll(&events, 1, /*milliseconds=*/200) == 0) {
        send(slow, "x", 1, MSG_NOSIGNAL);
      }
      ended = true;
      close(slow);
    });
    // Waits for the sender's thread.
    const auto limit =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
    while (std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    EXPECT_FALSE(ended);
  }  // ends
  ended = true;
  sender.join();
}

TEST(HttpServer, KnowsItsMachinesNames) {
  EXPECT_TRUE(IsLoopback("localhost"));
  EXPECT_TRUE(IsLoopback("127.0.0.2"));
  EXPECT_TRUE(IsLoopback("::1"));
  EXPECT_FALSE(IsLoopback("127.anything.example"));
  EXPECT_FALSE(IsLoopback("0.0.0.0"));
}

// The library would send the memory behind the body.
TEST(HttpServer, SendsNothingBeyondABody) {
  ServerOptions options;
  options.key = RandomKey();
  options.open_paths = {"/"};
  const Served served(options);
  httplib::Client client = served.client();
  for (const char* path : {"/", "/refused"}) {
    const auto whole = client.Get(path);
    ASSERT_TRUE(whole);
    for (const char* range : {"bytes=0-5000", "bytes=200-5000", "bytes=3-",
                              "bytes=1000000-", "bytes=-5,10-20"}) {
      const auto answer = client.Get(path, {{"Range", range}});
      ASSERT_TRUE(answer) << range;
      EXPECT_EQ(answer->status, whole->status) << range;
      EXPECT_EQ(answer->body, whole->body) << range;
    }
  }
}

TEST(HttpServer, RefusesLargeBodies) {
  ServerOptions options;
  options.most_body_bytes = 1000;
  const Served served(options);
  EXPECT_EQ(StatusOf(served.client().Post("/post", std::string(2000, 'x'),
                                          "text/plain")),
            413);
}

TEST(HttpServer, AHandlersExceptionIsAnError) {
  Served served(ServerOptions(), [](HttpServer& server) {
    server.routes().Get("/fails", [](const auto&, auto&) {
      throw std::runtime_error("secret");
    });
  });
  const auto answer = served.client().Get("/fails");
  EXPECT_EQ(StatusOf(answer), 500);
  EXPECT_EQ(answer->body.find("secret"), std::string::npos);
}

TEST(HttpServer, SaysThatAPortIsTaken) {
  Served served{ServerOptions()};
  ServerOptions options;
  options.port = served.server().port();
  EXPECT_THAT(std::string(HttpServer::Listen(options).status().message()),
              HasSubstr("Address already in use): give another one"));
}

}  // namespace
}  // namespace capstan
