// SPDX-License-Identifier: Apache-2.0
#include "tests/storage/store_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/free_port_for_test.h"
#include "tests/testing/run_folder.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr char kKey[] = "AKTESTKEY1234567";
constexpr char kSecret[] = "verysecretsecret0123456789";

// azure_blobs.py's, in base64.
constexpr char kAzureKey[] =
    "YSBrZXkgdGhhdCBzaWducyB3aGF0IHRlc3RzIGFzayBvZiB0aGUgc2VydmVy";

// The emulator answers one connection at a time; its clients keep several open.
constexpr char kEmulator[] =
    "import http.server, sys\n"
    "http.server.HTTPServer = http.server.ThreadingHTTPServer\n"
    "from gcp_storage_emulator.__main__ import main\n"
    "main(sys.argv[1:])\n";

// The folder of what was fetched: "" if nothing could be.
std::string Site() {
  for (const char* folder :
       {"../store_servers/site", "external/store_servers/site"}) {
    if (fs::exists(folder)) return fs::canonical(folder).string();
  }
  return "";
}

std::string Rclone() {
  for (const auto& entry : fs::recursive_directory_iterator(Site())) {
    if (entry.path().filename() == "rclone" && !entry.is_directory()) {
      return fs::canonical(entry.path()).string();
    }
  }
  return "";
}

bool Answers(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  const bool answers =
      connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return answers;
}

}  // namespace

bool StoreServer::Available() { return !Site().empty(); }

StoreServer::StoreServer(StoreKind kind)
    : kind_(kind), root_(NewTestFolder("store")), port_(FreePort()) {
  fs::create_directories(Objects());
  Start();
  proxy_ = std::make_unique<FaultyProxy>(port_);
}

StoreServer::~StoreServer() { Kill(); }

void StoreServer::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void StoreServer::Start() {
  // Before the fork: the proxy's threads may hold locks.
  std::vector<std::string> words = Command();
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(&word[0]);
  argv.push_back(nullptr);
  pid_ = fork();
  ASSERT_GE(pid_, 0);
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; ++fd) dup2(null, fd);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!Answers(port_)) {
    ASSERT_EQ(waitpid(pid_, nullptr, WNOHANG), 0) << "the server has ended";
    ASSERT_LT(std::chrono::steady_clock::now(), end) << "it doesn't listen";
    // sleeps: a poll of the server's port
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

std::vector<std::string> StoreServer::Command() const {
  if (kind_ == StoreKind::kS3) {
    return {Rclone(),
            "serve",
            "s3",
            absl::StrCat("--auth-key=", kKey, ",", kSecret),
            absl::StrCat("--addr=127.0.0.1:", port_),
            "--config=/dev/null",
            root_};
  }
  if (kind_ == StoreKind::kAzure) {
    return {"python3", fs::canonical("tests/storage/azure_blobs.py").string(),
            absl::StrCat(port_), root_};
  }
  return {"env",
          "PYTHONPATH=" + Site(),
          "PYTHONDONTWRITEBYTECODE=1",
          "python3",
          "-c",
          kEmulator,
          "--data-dir",
          root_,
          "start",
          "--quiet",
          "--host=127.0.0.1",
          absl::StrCat("--port=", port_),
          "--default-bucket=bucket"};
}

void StoreServer::Put(const std::string& key, const std::string& bytes) {
  ASSERT_EQ(kind_, StoreKind::kS3);
  Kill();
  const std::string path = absl::StrCat(Objects(), "/", key);
  fs::create_directories(fs::path(path).parent_path());
  WriteText(path, bytes);
  Start();
}

std::string StoreServer::address() const {
  return absl::StrCat(testing::PrintToString(kind_), "://bucket/");
}

std::string StoreServer::Objects() const {
  return root_ +
         (kind_ == StoreKind::kGcs ? "/.cloudstorage/bucket" : "/bucket");
}

std::map<std::string, std::string> StoreServer::Environment(
    const std::string& storage_folder) const {
  const std::string url = absl::StrCat("http://127.0.0.1:", proxy_->port());
  if (kind_ == StoreKind::kGcs) {
    return {{"CLOUD_STORAGE_EMULATOR_ENDPOINT", url},
            {"CAPSTAN_STORAGE_FOLDER", storage_folder}};
  }
  if (kind_ == StoreKind::kAzure) {
    return {{"AZURE_STORAGE_CONNECTION_STRING",
             absl::StrCat("DefaultEndpointsProtocol=http;AccountName=account;"
                          "AccountKey=",
                          kAzureKey, ";BlobEndpoint=", url, "/account;")},
            {"CAPSTAN_STORAGE_FOLDER", storage_folder}};
  }
  return {{"AWS_ACCESS_KEY_ID", kKey},
          {"AWS_SECRET_ACCESS_KEY", kSecret},
          {"AWS_ENDPOINT_URL", url},
          {"AWS_EC2_METADATA_DISABLED", "true"},
          {"CAPSTAN_STORAGE_FOLDER", storage_folder}};
}

}  // namespace capstan
