// SPDX-License-Identifier: Apache-2.0
//
// `trainer serve` as programs use it: its texts beside those of `generate`,
// what it refuses, and clients that behave badly.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr char kChatPath[] = "/v1/chat/completions";
constexpr char kTextPath[] = "/v1/completions";

RunText ChatRun(const std::string& model) {
  return RunText()
      .Set("model", model)
      .Set("train_data",
           absl::StrCat("[plugin/capstan.chat.Config] { path: \"",
                        Runfile("datasets/samples/chats.jsonl"),
                        "\" tokenizer: \"",
                        Runfile("datasets/samples/tokenizer"),
                        "\" chat_template: \"chatml\" max_length: 96 }"))
      .Train("max_steps: 4");
}

// A model of conversations, of more positions than a test waits for.
std::string Base() {
  static const auto* const folder = new std::string(MustTrain(ChatRun(
      "[plugin/capstan.llama.Config] { vocab_size: 4096 hidden_size: 32 "
      "intermediate_size: 88 num_hidden_layers: 2 num_attention_heads: 4 "
      "num_key_value_heads: 2 max_position_embeddings: 100000 }")));
  return *folder;
}

// An adapter of it.
std::string Adapter() {
  static const auto* const folder = new std::string(MustTrain(
      ChatRun(absl::StrCat("[plugin/capstan.llama.Config] { "
                           "pretrained: \"",
                           Base(), "/final\" }"))
          .Set("adapter", "lora { rank: 4 }")
          .Set("optimizer",
               "[plugin/capstan.adamw.Config] { learning_rate: 0.05 }")));
  return *folder;
}

// A server while this lives.
class Served {
 public:
  explicit Served(const std::vector<std::string>& more = {},
                  const TrainerOptions& options = {})
      : Served("--model=" + Base(), {"--name=base"}, more, options) {}
  Served(const std::string& model, const std::vector<std::string>& flags,
         const std::vector<std::string>& more = {},
         const TrainerOptions& options = {}) {
    std::vector<std::string> args = {"serve", model, "--port=0"};
    args.insert(args.end(), flags.begin(), flags.end());
    args.insert(args.end(), more.begin(), more.end());
    process_ = std::make_unique<TrainerProcess>(args, options);
    const bool there = process_->WaitUntil(
        [&] { return process_->Out().find('\n') != std::string::npos; });
    EXPECT_TRUE(there) << process_->Err();
    const std::string out = process_->Out();
    const size_t colon = out.find("127.0.0.1:");
    if (colon != out.npos) port_ = std::atoi(out.c_str() + colon + 10);
  }

  int port() const { return port_; }
  std::string Out() const { return process_->Out(); }
  httplib::Client Client() const {
    httplib::Client client("127.0.0.1", port_);
    client.set_read_timeout(100);
    return client;
  }
  // The answer's status, and its JSON.
  std::pair<int, Json> Post(const std::string& path, const std::string& body,
                            const httplib::Headers& headers = {}) const {
    const auto result = Client().Post(path, headers, body, "application/json");
    if (!result) return {-1, nullptr};
    return {result->status, Json::parse(result->body, nullptr, false)};
  }
  Json Answer(const std::string& path, const Json& request) const {
    const auto [status, answer] = Post(path, request.dump());
    EXPECT_EQ(status, 200) << answer;
    return answer;
  }
  Json Load() const {
    const auto result = Client().Get("/health");
    return result ? Json::parse(result->body) : Json();
  }
  bool WaitFor(const std::function<bool()>& there) {
    return process_->WaitUntil(there);
  }
  // The most memory that it has had.
  int64_t PeakKib() const {
    std::ifstream status(absl::StrCat("/proc/", process_->pid(), "/status"));
    int64_t kib = 0;
    for (std::string word; status >> word;) {
      if (word == "VmHWM:") status >> kib;
    }
    return kib;
  }
  TrainerResult End() {
    process_->Signal(SIGTERM);
    return process_->Wait();
  }

 private:
  std::unique_ptr<TrainerProcess> process_;
  int port_ = 0;
};

// Texts of `generate` for the rows of a file, whose seeds ascend from 5.
std::vector<std::string> Generated(const std::vector<Json>& rows,
                                   const std::vector<std::string>& more) {
  std::string text;
  for (const Json& row : rows) absl::StrAppend(&text, row.dump(), "\n");
  const std::string folder = NewTestFolder("generated");
  std::vector<std::string> args = {
      "generate", "--model=" + Base(),
      "--input=" + WriteText(folder + "/rows.jsonl", text),
      "--output=" + folder + "/texts.jsonl", "--batch_size=1"};
  args.insert(args.end(), more.begin(), more.end());
  const TrainerResult result = RunTrainer(args);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::vector<std::string> texts;
  for (absl::string_view line : absl::StrSplit(
           ReadText(folder + "/texts.jsonl"), '\n', absl::SkipEmpty())) {
    texts.push_back(Json::parse(line)["text"]);
  }
  EXPECT_EQ(texts.size(), rows.size());
  texts.resize(rows.size());
  return texts;
}

std::vector<Json> Prompts(size_t count) {
  std::vector<Json> rows;
  std::string text = "How";
  for (size_t i = 0; i < count; ++i) {
    // One of them takes several pieces.
    if (i == 7) text += std::string(1500, '.') + " ";
    rows.push_back({{"prompt", text}});
    text = absl::StrCat("Tell me ", i, (i % 3 == 0 ? " more about it" : ""));
  }
  return rows;
}

TEST(ServeTest, TextsOfManyAtOnceAreThoseOfGenerate) {
  const std::vector<Json> rows = Prompts(32);
  const std::vector<std::string> wanted =
      Generated(rows, {"--seed=5", "--temperature=0.8", "--top_k=40",
                       "--repetition_penalty=1.1", "--max_new_tokens=24"});
  const Served served;
  std::vector<std::string> got(rows.size());
  std::vector<std::thread> clients;
  for (size_t i = 0; i < rows.size(); ++i) {
    clients.emplace_back([&, i] {
      Json request = rows[i];
      request.update({{"seed", 5 + i},
                      {"temperature", 0.8},
                      {"top_k", 40},
                      {"repetition_penalty", 1.1},
                      {"max_tokens", 24}});
      got[i] = served.Answer(kTextPath, request)["choices"][0]["text"];
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(got, wanted);
  const Json alone = served.Answer(kTextPath, {{"prompt", rows[7]["prompt"]},
                                               {"seed", 12},
                                               {"temperature", 0.8},
                                               {"top_k", 40},
                                               {"repetition_penalty", 1.1},
                                               {"max_tokens", 24}});
  EXPECT_EQ(alone["choices"][0]["text"], wanted[7]);
  EXPECT_EQ(served.Load()["answered"], 33);
}

TEST(ServeTest, AnswersConversations) {
  const Json messages = {{{"role", "user"}, {"content", "Hello!"}}};
  const std::vector<std::string> wanted =
      Generated({{{"messages", messages}}, {{"messages", messages}}},
                {"--seed=5", "--max_new_tokens=12"});
  const Served served;
  Json request = {{"model", "base"},
                  {"messages", messages},
                  {"seed", 5},
                  {"n", 2},
                  {"max_tokens", 12}};
  const Json whole = served.Answer(kChatPath, request);
  EXPECT_EQ(whole["object"], "chat.completion");
  ASSERT_THAT(whole["choices"], SizeIs(2));
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(whole["choices"][i]["message"]["content"], wanted[i]);
    EXPECT_EQ(whole["choices"][i]["index"], i);
  }
  EXPECT_GT(whole["usage"]["prompt_tokens"], 5);
  EXPECT_LE(whole["usage"]["completion_tokens"], 24);

  request.update({{"stream", true},
                  {"logprobs", true},
                  {"top_logprobs", 2},
                  {"stream_options", {{"include_usage", true}}}});
  const auto result =
      served.Client().Post(kChatPath, request.dump(), "application/json");
  ASSERT_TRUE(result);
  EXPECT_EQ(result->get_header_value("Content-Type"), "text/event-stream");
  std::vector<std::string> texts(2), finish(2);
  Json usage;
  int64_t logprobs = 0;
  std::vector<std::string> events =
      absl::StrSplit(result->body, "\n\n", absl::SkipEmpty());
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back(), "data: [DONE]");
  events.pop_back();
  for (const std::string& event : events) {
    if (event == ":") continue;
    const Json json = Json::parse(event.substr(6));
    if (!json["usage"].is_null()) usage = json["usage"];
    for (const Json& choice : json["choices"]) {
      const size_t i = choice["index"];
      texts[i] += choice["delta"].value("content", "");
      if (!choice["finish_reason"].is_null()) {
        finish[i] = choice["finish_reason"];
      }
      if (choice["logprobs"].is_null()) continue;
      for (const Json& token : choice["logprobs"]["content"]) {
        ++logprobs;
        EXPECT_THAT(token["top_logprobs"], SizeIs(2));
        EXPECT_LE(token["logprob"], token["top_logprobs"][0]["logprob"]);
      }
    }
  }
  EXPECT_EQ(texts, wanted);
  EXPECT_EQ(finish[0], whole["choices"][0]["finish_reason"]);
  EXPECT_EQ(usage, whole["usage"]);
  EXPECT_EQ(logprobs, usage["completion_tokens"]);
}

TEST(ServeTest, StopsAndEchoes) {
  const Served served;
  Json request = {{"prompt", "Tell me more"},
                  {"temperature", 0},
                  {"max_tokens", 30},
                  {"ignore_eos", true}};
  const Json whole = served.Answer(kTextPath, request)["choices"][0];
  EXPECT_EQ(whole["finish_reason"], "length");
  const std::string text = whole["text"];
  ASSERT_GT(text.size(), 12u);
  const std::string stop = text.substr(text.size() / 2, 4);
  request["stop"] = {stop, "never there"};
  const Json stopped = served.Answer(kTextPath, request)["choices"][0];
  EXPECT_EQ(stopped["finish_reason"], "stop");
  EXPECT_EQ(stopped["text"], text.substr(0, text.find(stop)));
  // As lm-evaluation-harness asks for the likelihood of a text.
  const Json echo = served.Answer(kTextPath, {{"prompt", {{40, 50, 60, 70}}},
                                              {"temperature", 0},
                                              {"max_tokens", 1},
                                              {"logprobs", 1},
                                              {"echo", true},
                                              {"seed", 1234}});
  const Json logprobs = echo["choices"][0]["logprobs"];
  ASSERT_THAT(logprobs["token_logprobs"], SizeIs(5));
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  for (size_t i = 1; i < 5; ++i) {
    EXPECT_LT(logprobs["token_logprobs"][i], 0.0);
    EXPECT_EQ(logprobs["top_logprobs"][i][std::string(logprobs["tokens"][i])],
              logprobs["token_logprobs"][i]);
  }
  std::string joined;
  for (const Json& token : logprobs["tokens"]) joined += token;
  EXPECT_EQ(echo["choices"][0]["text"], joined);
  const Json only = served.Answer(
      kTextPath, {{"prompt", "Tell me"}, {"max_tokens", 0}, {"echo", true}});
  EXPECT_EQ(only["choices"][0]["text"], "Tell me");
  EXPECT_EQ(only["usage"]["completion_tokens"], 0);
  EXPECT_EQ(only["choices"][0]["finish_reason"], "length");
}

// What lm-evaluation-harness asks for fills the model.
TEST(ServeTest, APromptMayHaveAllPositions) {
  const std::string small = MustTrain(ChatRun(
      "[plugin/capstan.llama.Config] { vocab_size: 4096 hidden_size: 16 "
      "intermediate_size: 44 num_hidden_layers: 1 num_attention_heads: 2 "
      "num_key_value_heads: 2 max_position_embeddings: 96 }"));
  // However a path is written, its folder's name is the model's.
  const std::string name = small.substr(small.rfind('/') + 1);
  const std::string jinja = WriteText(
      NewTestFolder("template") + "/plain.jinja",
      "{% for message in messages %}{{ message.content }}{% endfor %}");
  const Served served(absl::StrCat("--model=", small, "/../", name, "//./"),
                      {"--template=" + jinja});
  const auto models = served.Client().Get("/v1/models");
  ASSERT_TRUE(models);
  EXPECT_EQ(Json::parse(models->body)["data"][0]["id"], name);

  Json request = {{"prompt", std::vector<int>(96, 70)},
                  {"max_tokens", 0},
                  {"logprobs", 1},
                  {"echo", true}};
  const Json echo = served.Answer(kTextPath, request);
  EXPECT_THAT(echo["choices"][0]["logprobs"]["token_logprobs"], SizeIs(96));
  EXPECT_EQ(echo["usage"]["prompt_tokens"], 96);
  EXPECT_EQ(echo["usage"]["completion_tokens"], 0);
  request["prompt"].push_back(70);
  EXPECT_EQ(served.Post(kTextPath, request.dump()).first, 400);

  const Json plain = served.Answer(kTextPath, {{"prompt", "Hello!"}});
  const Json chat = served.Answer(
      kChatPath, {{"messages", {{{"role", "user"}, {"content", "Hello!"}}}}});
  EXPECT_EQ(chat["usage"]["prompt_tokens"], plain["usage"]["prompt_tokens"]);
  ExpectOneError(RunTrainer({"serve", "--model=" + small, "--port=0",
                             "--template=nonsense"}),
                 {"--template", "nonsense"});
}

TEST(ServeTest, AdaptersHaveNames) {
  const std::vector<Json> rows = {{{"prompt", "Tell me more"}}};
  const std::vector<std::string> plain =
      Generated(rows, {"--greedy", "--max_new_tokens=16"});
  const std::vector<std::string> adapted = Generated(
      rows, {"--greedy", "--max_new_tokens=16", "--adapter=" + Adapter()});
  ASSERT_NE(plain, adapted);
  ExpectOneError(
      RunTrainer({"serve", "--model=" + Base(), "--port=0", "--adapter=mine="}),
      {"--adapter", "NAME=FOLDER", "mine="});
  Served served({"--adapter=mine=" + Adapter()});
  const auto models = served.Client().Get("/v1/models");
  ASSERT_TRUE(models);
  const Json data = Json::parse(models->body)["data"];
  ASSERT_THAT(data, SizeIs(2));
  EXPECT_EQ(data[0]["id"], "base");
  EXPECT_EQ(data[1]["id"], "mine");
  EXPECT_EQ(served.Client().Get("/v1/models/mine")->status, 200);
  EXPECT_EQ(served.Client().Get("/v1/models/others")->status, 404);
  Json request = rows[0];
  request.update({{"temperature", 0}, {"max_tokens", 16}});
  for (const auto& [name, wanted] :
       {std::pair("base", plain), {"mine", adapted}}) {
    request["model"] = name;
    const Json answer = served.Answer(kTextPath, request);
    EXPECT_EQ(answer["choices"][0]["text"], wanted[0]) << name;
    EXPECT_EQ(answer["model"], name);
  }
  const TrainerResult end = served.End();
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_TRUE(end.all_gone);
}

TEST(ServeTest, RefusesWhatItCannotDo) {
  const Served served;
  const auto message = [&](const std::string& path, const std::string& body,
                           int wanted) {
    const auto [status, answer] = served.Post(path, body);
    EXPECT_EQ(status, wanted) << body << ": " << answer;
    return answer.is_object() ? answer["error"].value("message", "") : "";
  };
  EXPECT_THAT(message(kTextPath, "{", 400), HasSubstr("JSON"));
  EXPECT_THAT(message(kTextPath, R"({"prompt": "a", "n": "2"})", 400),
              HasSubstr("n must be an integer"));
  EXPECT_THAT(message(kTextPath, R"({"prompt": "a", "model": "b"})", 404),
              HasSubstr("\"base\""));
  EXPECT_THAT(message(kTextPath, R"({"prompt": [100000]})", 400),
              HasSubstr("isn't one of the model's"));
  EXPECT_THAT(
      message(kTextPath, Json{{"prompt", std::vector<int>(100001, 7)}}.dump(),
              400),
      HasSubstr("positions"));
  EXPECT_THAT(message(kChatPath, R"({"messages": []})", 400),
              HasSubstr("messages"));
  EXPECT_EQ(served.Client().Get(kTextPath)->status, 405);
  const auto details = [&](const std::string& path, const std::string& body) {
    const Json error = served.Post(path, body).second["error"];
    return absl::StrCat(error["param"].dump(), error["code"].dump());
  };
  EXPECT_EQ(details(kTextPath, R"({"prompt": "a", "model": "b"})"),
            "\"model\"\"model_not_found\"");
  EXPECT_EQ(
      details(kTextPath, Json{{"prompt", std::vector<int>(100001, 7)}}.dump()),
      "\"prompt\"\"context_length_exceeded\"");
  EXPECT_EQ(details(kTextPath, R"({"prompt": [100000]})"),
            "\"prompt\"\"invalid_value\"");
  EXPECT_EQ(details(kTextPath, R"({"prompt": ""})"),
            "\"prompt\"\"invalid_value\"");
  EXPECT_EQ(details(kChatPath, R"({"messages": [{"role": "user", "content": )"
                               R"("a"}], "chat_template_kwargs": {"b": 1}})"),
            "\"chat_template_kwargs\"\"invalid_value\"");
  const std::string text(400000, '.');
  EXPECT_EQ(details(kTextPath, Json{{"prompt", text}}.dump()),
            "\"prompt\"\"context_length_exceeded\"");
  const auto page = served.Client().Get("/");
  ASSERT_TRUE(page);
  EXPECT_THAT(page->body, HasSubstr("<textarea"));
  EXPECT_THAT(page->get_header_value("Content-Security-Policy"),
              HasSubstr("default-src 'none'"));
}

// Parsed, such a one takes forty times its bytes.
TEST(ServeTest, LargeBodiesAreParsedOneAtATime) {
  const Served served;
  std::string body = "{\"prompt\": [1";
  for (int i = 0; i < 1500000; ++i) body += ",1";
  body += "]}";
  const int64_t before = served.PeakKib();
  EXPECT_EQ(served.Post(kTextPath, body).first, 400);
  const int64_t one = served.PeakKib() - before;
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back(
        [&] { EXPECT_EQ(served.Post(kTextPath, body).first, 400); });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_LT(served.PeakKib() - before, 4 * one);
}

TEST(ServeTest, OtherMachinesNeedAKey) {
  ExpectOneError(RunTrainer({"serve", "--model=" + Base(), "--port=0",
                             "--address=0.0.0.0"}),
                 {"--address", "CAPSTAN_SERVE_KEY"});
  TrainerOptions options;
  options.environment = {{"CAPSTAN_SERVE_KEY", "open-sesame"}};
  const Served served({}, options);
  const std::string body = R"({"prompt": "a", "max_tokens": 1})";
  EXPECT_EQ(served.Post(kTextPath, body).first, 401);
  EXPECT_EQ(
      served.Post(kTextPath, body, {{"Authorization", "Bearer wrong"}}).first,
      401);
  EXPECT_EQ(
      served.Post(kTextPath, body, {{"Authorization", "Bearer open-sesame"}})
          .first,
      200);
  EXPECT_EQ(served.Load()["status"], "ok");
  EXPECT_EQ(served.Out().find("open-sesame"), std::string::npos);
  EXPECT_THAT(served.Out(), HasSubstr("with the key in $CAPSTAN_SERVE_KEY"));
}

// Whether its latest, its TIME or what it has made is named.
TEST(ServeTest, ARunHasOneName) {
  namespace fs = std::filesystem;
  const fs::path runs = fs::path(NewTestFolder("runs")) / "talker";
  fs::create_directory(runs);
  const std::string time = runs / "2026-01-02_03-04-05_2";
  fs::create_directory_symlink(Base(), time);
  for (const std::string& model : {time, time + "/final/"}) {
    const Served served("--model=" + model, {"--key=open sesame"});
    EXPECT_THAT(served.Out(),
                AllOf(HasSubstr("serving talker at http://127.0.0.1:"),
                      HasSubstr("/?key=open")));
  }
}

// A connection of which the test says when it reads.
class Socket {
 public:
  explicit Socket(int port) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(socket_, reinterpret_cast<sockaddr*>(&address),
                         sizeof(address)) == 0;
  }
  ~Socket() { close(socket_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  bool connected() const { return connected_; }
  void Send(const std::string& text) const {
    EXPECT_EQ(send(socket_, text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  void Ask(const std::string& path, const Json& request) const {
    const std::string body = request.dump();
    Send(absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: localhost\r\n",
                      "Content-Type: application/json\r\nContent-Length: ",
                      body.size(), "\r\n\r\n", body));
  }
  // Some of what has come.
  std::string Read() const {
    char bytes[4096];
    const ssize_t count = recv(socket_, bytes, sizeof(bytes), 0);
    return std::string(bytes, count > 0 ? static_cast<size_t>(count) : 0);
  }

 private:
  const int socket_;
  bool connected_ = false;
};

// Longer than anyone waits.
Json Endless() {
  return {{"prompt", "Tell me"}, {"max_tokens", 90000}, {"ignore_eos", true}};
}

TEST(ServeTest, WhoLeavesFreesTheRow) {
  Served served({"--rows=2", "--cache_mib=512"});
  for (const bool stream : {true, false}) {
    Json request = Endless();
    request["stream"] = stream;
    {
      const Socket leaves(served.port()), another(served.port());
      leaves.Ask(kTextPath, request);
      another.Ask(kTextPath, request);
      EXPECT_THAT(leaves.Read(), HasSubstr("200 OK"));
      EXPECT_THAT(another.Read(), HasSubstr("200 OK"));
      EXPECT_EQ(served.Load()["writing"], 2);
    }
    EXPECT_TRUE(served.WaitFor([&] { return served.Load()["writing"] == 0; }));
    EXPECT_LT(served.Load()["new_tokens"], 150000);
  }
  {
    // Before its first token, too.
    const Socket first(served.port()), second(served.port());
    first.Ask(kTextPath, Endless());
    second.Ask(kTextPath, Endless());
    EXPECT_TRUE(served.WaitFor([&] { return served.Load()["writing"] == 2; }));
    {
      const Socket third(served.port());
      third.Ask(kTextPath, Endless());
      EXPECT_TRUE(
          served.WaitFor([&] { return served.Load()["waiting"] == 1; }));
    }
    EXPECT_TRUE(served.WaitFor([&] { return served.Load()["waiting"] == 0; }));
    EXPECT_EQ(served.Load()["writing"], 2);
  }
  EXPECT_TRUE(served.WaitFor([&] { return served.Load()["writing"] == 0; }));
  // Who takes nothing holds nobody up.
  const Socket silent(served.port());
  Json request = Endless();
  request["stream"] = true;
  silent.Ask(kTextPath, request);
  EXPECT_TRUE(served.WaitFor([&] { return served.Load()["writing"] == 1; }));
  EXPECT_EQ(served.Post(kTextPath, R"({"prompt": "a", "max_tokens": 5})").first,
            200);
  // Nor does it, or who sends a request by single bytes, hold up the end.
  const Socket slow(served.port());
  slow.Send("GET / HTTP/1.1\r\nX: ");
  const TrainerResult end = served.End();
  EXPECT_EQ(end.exit_code, 0) << end.err;
}

TEST(ServeTest, AThousandConnections) {
  Served served;
  std::vector<std::unique_ptr<Socket>> sockets;
  for (int i = 0; i < 1000; ++i) {
    sockets.push_back(std::make_unique<Socket>(served.port()));
    ASSERT_TRUE(sockets.back()->connected()) << i;
    // Half a request each, so that all are there at once.
    sockets.back()->Send("GET /health HTTP/1.1\r\nHost: localhost\r\n");
  }
  EXPECT_EQ(served.Post(kTextPath, R"({"prompt": "a", "max_tokens": 5})").first,
            200);
  for (const auto& socket : sockets) socket->Send("Connection: close\r\n\r\n");
  for (const auto& socket : sockets) {
    EXPECT_THAT(socket->Read(), HasSubstr("200 OK"));
  }
}

}  // namespace
}  // namespace capstan
