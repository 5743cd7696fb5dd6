// SPDX-License-Identifier: Apache-2.0
#include "tests/storage/s3_server.h"

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

#include "absl/strings/str_cat.h"
#include "base/free_port_for_test.h"
#include "tests/testing/run_folder.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr char kKey[] = "AKTESTKEY1234567";
constexpr char kSecret[] = "verysecretsecret0123456789";

// "" if it couldn't be fetched.
std::string Rclone() {
  for (const char* folder : {"../rclone", "external/rclone"}) {
    std::error_code error;
    for (const auto& entry : fs::recursive_directory_iterator(folder, error)) {
      if (entry.path().filename() == "rclone" && !entry.is_directory()) {
        return fs::canonical(entry.path()).string();
      }
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

bool S3Server::Available() { return !Rclone().empty(); }

S3Server::S3Server() : root_(NewTestFolder("s3")), port_(FreePort()) {
  fs::create_directories(Objects());
  Start();
  proxy_ = std::make_unique<FaultyProxy>(port_);
}

S3Server::~S3Server() { Kill(); }

void S3Server::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void S3Server::Start() {
  const std::string program = Rclone();
  const std::string keys = absl::StrCat("--auth-key=", kKey, ",", kSecret);
  const std::string address = absl::StrCat("--addr=127.0.0.1:", port_);
  pid_ = fork();
  ASSERT_GE(pid_, 0);
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; ++fd) dup2(null, fd);
    execl(program.c_str(), "rclone", "serve", "s3", keys.c_str(),
          address.c_str(), "--config=/dev/null", root_.c_str(), nullptr);
    _exit(127);
  }
  while (!Answers(port_)) {
    ASSERT_EQ(waitpid(pid_, nullptr, WNOHANG), 0) << "rclone has ended";
    // sleeps: a poll of the server's port
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void S3Server::Put(const std::string& key, const std::string& bytes) {
  Kill();
  const std::string path = absl::StrCat(Objects(), "/", key);
  fs::create_directories(fs::path(path).parent_path());
  WriteText(path, bytes);
  Start();
}

std::map<std::string, std::string> S3Server::Environment(
    const std::string& storage_folder) const {
  return {
      {"AWS_ACCESS_KEY_ID", kKey},
      {"AWS_SECRET_ACCESS_KEY", kSecret},
      {"AWS_ENDPOINT_URL", absl::StrCat("http://127.0.0.1:", proxy_->port())},
      {"AWS_EC2_METADATA_DISABLED", "true"},
      {"CAPSTAN_STORAGE_FOLDER", storage_folder},
  };
}

}  // namespace capstan
