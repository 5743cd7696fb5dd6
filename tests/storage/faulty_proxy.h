// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TESTS_STORAGE_FAULTY_PROXY_H_
#define CAPSTAN_TESTS_STORAGE_FAULTY_PROXY_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <thread>

namespace capstan {

// An HTTP proxy between a client and a server of this host, a connection for
// each request, that disturbs some of them.
class FaultyProxy {
 public:
  // Of a request, drawn anew for each.
  struct Faults {
    double cut = 0;   // probability that its connection is reset on the way
    double busy = 0;  // that it is answered by 503
    double slow =
        0;  // that it takes a tenth of a second longer for each 64 KiB
  };

  // Requests go to `server_port`.
  explicit FaultyProxy(int server_port);
  ~FaultyProxy();
  FaultyProxy(const FaultyProxy&) = delete;
  FaultyProxy& operator=(const FaultyProxy&) = delete;

  int port() const { return port_; }
  void set_faults(const Faults& faults);
  // Sees the first line of each request, "PUT /bucket/key HTTP/1.1"; false: it
  // is answered by 503.
  void set_filter(std::function<bool(const std::string&)> filter);
  // Of all requests.
  int64_t requests() const { return requests_; }
  // That were disturbed.
  int64_t faults() const { return disturbed_; }

 private:
  enum class Fate { kPass, kCut, kBusy, kSlow, kDone };

  void Accept();
  void Serve(int client);
  Fate Draw(const std::string& line);

  const int server_port_;
  int port_ = 0;
  int listener_ = -1;
  std::mutex mutex_;
  Faults faults_;
  std::function<bool(const std::string&)> filter_;
  std::minstd_rand random_{7};
  std::atomic<int64_t> requests_{0};
  std::atomic<int64_t> disturbed_{0};
  std::atomic<int> serving_{0};
  std::thread accepting_;
};

}  // namespace capstan

#endif  // CAPSTAN_TESTS_STORAGE_FAULTY_PROXY_H_
