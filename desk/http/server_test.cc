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

#include "cluster/launch/network.h"
#include "cluster/launch/rank_info.h"

namespace capstan {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A server that runs while this lives.
class Served {
 public:
  explicit Served(const ServerOptions& options,
                  const std::function<void(HttpServer&)>& routes = {}) {
    auto server = HttpServer::Listen(options);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = std::move(*server);
    server_->Get("/", [](const auto&, auto& response) {
      SendJson({{"hello", 1}}, &response);
    });
    server_->Post("/post", [](const auto& request, auto& response) {
      SendJson({{"bytes", request.body.size()}}, &response);
    });
    if (routes) routes(*server_);
    thread_ = std::thread([this] { EXPECT_TRUE(server_->Run().ok()); });
    while (!server_->is_running()) std::this_thread::yield();
  }
  ~Served() {
    server_->Stop();
    thread_.join();
  }
  httplib::Client client() const {
    return httplib::Client("127.0.0.1", server_->port());
  }
  int port() const { return server_->port(); }
  HttpServer& server() const { return *server_; }

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
  options.key = RandomToken();
  options.open_paths = {"/health"};
  Served served(options, [](HttpServer& server) {
    server.Get("/health", [](const auto&, auto& response) {
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
  EXPECT_EQ(
      StatusOf(client.Get("/", {{"Authorization", "bearer " + options.key}})),
      200);
  EXPECT_EQ(StatusOf(client.Get("/health")), 200);
  // A browser shows it to a person.
  const auto page = client.Get("/", {{"Accept", "text/html,*/*;q=0.8"}});
  EXPECT_EQ(StatusOf(page), 401);
  EXPECT_THAT(page->get_header_value("Content-Type"), HasSubstr("text/html"));
  EXPECT_THAT(page->body, HasSubstr("the server has printed"));
  EXPECT_THAT(page->body, HasSubstr("<input name=\"key\""));
  EXPECT_THAT(client.Get("/")->body, HasSubstr("\"code\":\"invalid_api_key\""));
  EXPECT_THAT(served.server().Url(), HasSubstr("/?key=" + options.key));
}

TEST(HttpServer, ItsAddressCanBeOpened) {
  ServerOptions options;
  options.address = "0.0.0.0";
  options.key = "a b&c";
  const Served served(options);
  const std::string port = std::to_string(served.port());
  const HttpServer& server = served.server();
  EXPECT_EQ(server.Address(), "http://" + HostName() + ":" + port + "/");
  const std::string url = server.Url();
  EXPECT_THAT(url, Not(AnyOf(HasSubstr(" "), HasSubstr("b&"))));
  EXPECT_EQ(StatusOf(served.client().Get(url.substr(url.find("/?")).c_str())),
            200);
}

TEST(HttpServer, AnotherMethodIsToldWhichAreAllowed) {
  const Served served(ServerOptions{});
  const auto got = served.client().Get("/post");
  ASSERT_EQ(StatusOf(got), 405);
  EXPECT_EQ(got->get_header_value("Allow"), "POST");
  EXPECT_THAT(got->body, HasSubstr("/post takes no such method"));
  const auto put = served.client().Put("/", "x", "text/plain");
  ASSERT_EQ(StatusOf(put), 405);
  EXPECT_EQ(put->get_header_value("Allow"), "GET, HEAD");
  EXPECT_EQ(StatusOf(served.client().Put("/nothing", "x", "text/plain")), 404);
}

TEST(HttpServer, SendsEventsUntilTheyEnd) {
  Served served(ServerOptions(), [](HttpServer& server) {
    server.Get("/events", [&server](const auto&, auto& response) {
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
    server.Get("/events", [&held, &server](const auto&, auto& response) {
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

// A connection of which the test says what comes when.
class Socket {
 public:
  explicit Socket(int port) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    // A small window: what isn't read is soon not taken.
    const int bytes = 4096;
    setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_, reinterpret_cast<sockaddr*>(&to), sizeof(to)),
              0);
  }
  ~Socket() { close(socket_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  bool Send(const std::string& text) const {
    return send(socket_, text.data(), text.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(text.size());
  }
  // What comes within `limit`; "": the end, or nothing.
  std::string Read(size_t most, std::chrono::milliseconds limit) const {
    pollfd events = {socket_, POLLIN, 0};
    if (poll(&events, 1, static_cast<int>(limit.count())) <= 0) return "";
    std::string bytes(most, 0);
    const ssize_t count = recv(socket_, bytes.data(), most, 0);
    bytes.resize(count > 0 ? static_cast<size_t>(count) : 0);
    return bytes;
  }
  // All that comes until the end.
  std::string ReadAll() const {
    std::string all;
    for (;;) {
      const std::string more = Read(4096, std::chrono::minutes(1));
      if (more.empty()) return all;
      all += more;
    }
  }

 private:
  const int socket_;
};

// What a server sends to raw bytes until it closes the connection.
std::string AnswersTo(const Served& served, const std::string& bytes) {
  const Socket socket(served.port());
  EXPECT_TRUE(socket.Send(bytes));
  return socket.ReadAll();
}

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != text.npos;
       at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

// What follows would be a request of its own to whoever sees another end.
TEST(HttpServer, RefusesBodiesOfTwoEnds) {
  const Served served{ServerOptions()};
  const std::string inner = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  for (const char* headers : {
           "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
           "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n",
           "Transfer-Encoding: gzip, chunked\r\n",
           "Transfer-Encoding: identity\r\n",
           "Content-Length: -1\r\n",
           "Content-Length: +5\r\n",
           "Content-Length: five\r\n",
           "Content-Length: 99999999999999999999999\r\n",
           "Content-Length: 5\r\nContent-Length: 6\r\n",
           "Content-Length: 5, 6\r\n",
           "Content-Length : 5\r\n",
       }) {
    for (const char* method : {"POST /post", "GET /"}) {
      const std::string answers =
          AnswersTo(served, std::string(method) + " HTTP/1.1\r\n" + headers +
                                "\r\n" + inner);
      EXPECT_THAT(answers, HasSubstr("HTTP/1.1 400 ")) << headers;
      EXPECT_EQ(Count(answers, "HTTP/1.1"), 1) << headers << answers;
    }
  }
}

// What is in a body that nobody reads isn't a request.
TEST(HttpServer, EndsConnectionsOfUnreadBodies) {
  ServerOptions options;
  options.key = "key";
  options.open_paths = {"/"};
  options.most_body_bytes = 1000;
  const Served served(options);
  const std::string inner = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  const std::string length =
      "Content-Length: " + std::to_string(inner.size()) + "\r\n";
  const struct {
    std::string head;
    const char* status;
  } cases[] = {{"POST /post HTTP/1.1\r\n" + length, " 401 "},
               {"HEAD /post HTTP/1.1\r\n" + length, " 401 "},
               {"POST / HTTP/1.1\r\nHost: evil\r\n" + length, " 403 "},
               {"POST / HTTP/1.1\r\n" + length, " 401 "},
               {"POST /?key=key HTTP/1.1\r\nContent-Length: 1001\r\n", " 413 "},
               {"GET / HTTP/1.1\r\n" + length, " 200 "},
               {"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n", " 200 "},
               {"GET\r\n", " 400 "}};
  for (const auto& [head, status] : cases) {
    const std::string answers =
        AnswersTo(served, head + "\r\n" + inner + inner);
    EXPECT_THAT(answers, HasSubstr(std::string("HTTP/1.1") + status)) << head;
    EXPECT_EQ(Count(answers, "HTTP/1.1"), 1) << head << answers;
  }
  // Refusals end connections without a body, too.
  EXPECT_EQ(
      Count(AnswersTo(served, "GET /a HTTP/1.1\r\n\r\n" + inner), "HTTP/1.1"),
      1);
  // Others don't, and requests may come together.
  EXPECT_EQ(Count(AnswersTo(served, inner + inner), " 200 "), 2);
}

TEST(HttpServer, ReadsBodiesInChunks) {
  ServerOptions options;
  options.most_body_bytes = 1000;
  const Served served(options);
  const std::string head =
      "POST /post HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_THAT(AnswersTo(served, head + "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"),
              HasSubstr("{\"bytes\":5}"));
  std::string endless = head;
  for (int i = 0; i < 500; ++i) endless += "3\r\nabc\r\n";
  EXPECT_THAT(AnswersTo(served, endless), HasSubstr(" 400 "));
  // Without a length there is no body.
  EXPECT_THAT(AnswersTo(served, "POST /post HTTP/1.1\r\n\r\n"),
              HasSubstr("{\"bytes\":0}"));
}

// A few bytes could become gigabytes.
TEST(HttpServer, TakesNoCompressedBodies) {
  const Served served{ServerOptions()};
  EXPECT_THAT(AnswersTo(served,
                        "POST /post HTTP/1.1\r\nContent-Encoding: gzip\r\n"
                        "Content-Length: 3\r\n\r\nabc"),
              HasSubstr("Content-Encoding gzip isn't known here"));
}

TEST(HttpServer, TakesNoEndlessHead) {
  const Served served{ServerOptions()};
  std::string head = "GET / HTTP/1.1\r\n";
  for (int i = 0; i < 1000; ++i) head += "X: " + std::string(100, 'x') + "\r\n";
  EXPECT_THAT(AnswersTo(served, head), HasSubstr("HTTP/1.1 400 "));
}

// However a client keeps its connection waiting, the next one gets its turn.
TEST(HttpServer, ASlowClientHoldsAConnectionForAWhile) {
  ServerOptions options;
  options.most_connections = 1;
  options.patience = std::chrono::seconds(1);
  const Served served(options, [](HttpServer& server) {
    server.Get("/long", [](const auto&, auto& response) {
      SendBody(std::string(size_t{64} << 20, 'x'), "text/plain", &response);
    });
  });
  enum { kSends, kTakesSome, kTakesNothing };
  for (const int does : {kSends, kTakesSome, kTakesNothing}) {
    const Socket slow(served.port());
    ASSERT_TRUE(slow.Send(does == kSends ? "POST /post HTTP/1.1\r\nX: "
                                         : "GET /long HTTP/1.1\r\n\r\n"));
    std::atomic<bool> served_another{false};
    std::thread another([&] {
      httplib::Client client = served.client();
      client.set_read_timeout(60);
      served_another = StatusOf(client.Get("/")) == 200;
    });
    const auto limit =
        std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!served_another && std::chrono::steady_clock::now() < limit) {
      if (does == kSends) slow.Send("x");
      if (does == kTakesSome) slow.Read(1024, std::chrono::milliseconds(0));
      // sleeps: the client is slow
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    another.join();
    EXPECT_TRUE(served_another) << does;
  }
}

// One that sends a byte now and then is never done by itself.
TEST(HttpServer, ASlowSenderDoesNotHoldItsEnd) {
  std::atomic<bool> ended{false};
  std::thread sender;
  {
    ServerOptions options;
    options.most_connections = 1;
    const Served served(options);
    const auto slow = std::make_shared<Socket>(served.port());
    ASSERT_TRUE(slow->Send("GET / HTTP/1.1\r\nX: "));
    sender = std::thread([slow, &ended] {
      while (!ended && slow->Send("x")) {
        slow->Read(1, std::chrono::milliseconds(200));
      }
      ended = true;
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
  options.key = RandomToken();
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
    server.Get("/fails",
               [](const auto&, auto&) { throw std::runtime_error("secret"); });
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
