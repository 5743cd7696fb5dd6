// SPDX-License-Identifier: Apache-2.0
#include "cluster/watch/courier.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

constexpr int kHosts = 3;
constexpr std::chrono::milliseconds kInterval{20};

// One host's view of the store that all share. Counts the reports it reads.
class HostStore : public c10d::HashStore {
 public:
  explicit HostStore(c10::intrusive_ptr<c10d::HashStore> all)
      : all_(std::move(all)) {}

  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    all_->set(key, value);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    return all_->get(key);
  }
  bool check(const std::vector<std::string>& keys) override {
    return all_->check(keys);
  }
  std::vector<std::vector<uint8_t>> multiGet(
      const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) {
      if (absl::StrContains(key, "/report/")) ++reports;
    }
    return all_->multiGet(keys);
  }

  std::atomic<int> reports{0};

 private:
  const c10::intrusive_ptr<c10d::HashStore> all_;
};

// Three hosts of a rank each.
class CourierTest : public testing::Test {
 protected:
  struct Host {
    c10::intrusive_ptr<HostStore> store;
    std::unique_ptr<Courier> courier;
    std::atomic<bool> alarm{false};
    std::atomic<bool> hangs{false};  // its report doesn't change
    std::atomic<int> calls{0};
    uint64_t count = 0;
  };

  void SetUp() override {
    const auto all = c10::make_intrusive<c10d::HashStore>();
    for (int h = 0; h < kHosts; ++h) {
      hosts_[h].store = c10::make_intrusive<HostStore>(all);
      Ledgers ledgers;
      for (int i = 0; i < kHosts; ++i) {
        ledgers.hosts.push_back({absl::StrCat("host", i), {i}});
      }
      ledgers.host = h;
      ledgers.store = hosts_[h].store;
      hosts_[h].courier = std::make_unique<Courier>(
          ledgers, [this, h] { return ReportOf(&hosts_[h]); }, kInterval);
    }
    AwaitRounds(3);
  }

  static Courier::Report ReportOf(Host* host) {
    HostReport report;
    if (!host->hangs) ++host->count;
    report.count = host->count;
    report.ranks.resize(1);
    report.ranks[0].alarm = host->alarm;
    ++host->calls;
    return {Encode(report), HasAlarm(report)};
  }

  static void Await(const std::function<bool()>& done) {
    for (int i = 0; i < 3000 && !done(); ++i) {
      // sleeps: polls
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_TRUE(done());
  }
  // Until each host that has a courier has begun `more` rounds.
  void AwaitRounds(int more) {
    for (Host& host : hosts_) {
      if (host.courier == nullptr) continue;
      const int until = host.calls + more;
      Await([&] { return host.calls >= until; });
    }
  }
  Courier::Heard Heard(int at, int of) const {
    return hosts_[at].courier->heard()[of];
  }
  bool HearsAlarm(int at, int of) const {
    const Courier::Heard heard = Heard(at, of);
    return heard.report.has_value() && heard.report->ranks[0].alarm;
  }

  Host hosts_[kHosts];
};

TEST_F(CourierTest, WithoutAnAlarmOnlyTheFirstReadsReports) {
  const int before[] = {hosts_[0].store->reports, hosts_[1].store->reports,
                        hosts_[2].store->reports};
  const int64_t heard = Heard(1, 2).at_ns;
  AwaitRounds(5);
  EXPECT_GT(hosts_[0].store->reports, before[0]);
  EXPECT_EQ(hosts_[1].store->reports, before[1]);
  EXPECT_EQ(hosts_[2].store->reports, before[2]);
  EXPECT_FALSE(Heard(1, 2).report.has_value());
  Await([&] { return Heard(1, 2).at_ns > heard; });
}

TEST_F(CourierTest, AnAlarmIsHeardByAllAndPasses) {
  for (int times = 0; times < 2; ++times) {
    hosts_[2].alarm = true;
    Await([&] { return HearsAlarm(1, 2) && HearsAlarm(0, 2); });
    Await([&] { return Heard(1, 0).report.has_value(); });
    hosts_[2].alarm = false;
    Await([&] { return !Heard(1, 2).report.has_value(); });
    EXPECT_FALSE(HearsAlarm(0, 2));
  }
}

TEST_F(CourierTest, AnOldReportIsNoSignOfLife) {
  hosts_[2].hangs = true;
  AwaitRounds(3);
  const int64_t last = Heard(0, 2).at_ns;
  const int64_t after = LedgerNow();
  hosts_[1].alarm = true;
  Await([&] { return Heard(1, 2).report.has_value(); });
  AwaitRounds(3);
  EXPECT_EQ(Heard(0, 2).at_ns, last);
  EXPECT_LT(Heard(1, 2).at_ns, after);
  EXPECT_LT(Heard(1, 2).report_ns, after);
}

TEST_F(CourierTest, AWatchdogOfTheFirstHostThatHangsIsNotHeard) {
  hosts_[0].hangs = true;
  AwaitRounds(3);
  const int64_t after = LedgerNow();
  AwaitRounds(8);
  EXPECT_LT(Heard(1, 0).at_ns, after);
  EXPECT_GT(Heard(1, 2).at_ns, after);
}

TEST_F(CourierTest, TheAlarmOfASilentHostPasses) {
  hosts_[2].alarm = true;
  Await([&] { return HearsAlarm(1, 2); });
  hosts_[2].hangs = true;
  Await([&] { return !Heard(1, 2).report.has_value(); });
}

TEST_F(CourierTest, WithoutNewsAHostReadsForItself) {
  hosts_[0].courier.reset();
  Await([&] { return Heard(1, 2).report.has_value(); });
  const int64_t heard = Heard(1, 2).report_ns;
  Await([&] { return Heard(1, 2).report_ns > heard; });
}

}  // namespace
}  // namespace capstan
