// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite of dataset readers, on a data set of at least 8
// samples:
//  CAPSTAN_DATASET_READER_CONFORMANCE(
//      Acme, "acme/libacme_csv.so",
//      "[plugin/acme.csv.Config] { path: \"acme/testdata/small.csv\" }");
#ifndef CAPSTAN_TESTS_CONFORMANCE_DATASET_READER_H_
#define CAPSTAN_TESTS_CONFORMANCE_DATASET_READER_H_

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "plugins/sdk/dataset.h"
#include "tests/conformance/plugin_under_test.h"

#define CAPSTAN_DATASET_READER_CONFORMANCE(name, library, config) \
  CAPSTAN_CONFORMANCE(DatasetReaderConformance, name, library, config)

namespace capstan {
namespace conformance {

class DatasetReaderConformance
    : public ::testing::TestWithParam<PluginUnderTest> {
 protected:
  void SetUp() override;

  std::unique_ptr<DatasetReader> New() const;
  DatasetReader& reader() const { return *reader_; }
  // Reads a batch; fails the test if it can't.
  static Batch MustRead(const DatasetReader& reader,
                        const std::vector<int64_t>& indices);

 private:
  std::unique_ptr<LoadedPluginUnderTest> plugin_;
  std::unique_ptr<DatasetReader> reader_;
};

}  // namespace conformance
}  // namespace capstan

#endif  // CAPSTAN_TESTS_CONFORMANCE_DATASET_READER_H_
