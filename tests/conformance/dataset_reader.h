// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite of dataset readers, on a data set of at least 8
// samples:
//  CAPSTAN_DATASET_READER_CONFORMANCE(
//      Acme, "acme/libacme_csv.so",
//      "[plugin/acme.csv.Config] { path: \"acme/testdata/small.csv\" }");
#ifndef CAPSTAN_TESTS_CONFORMANCE_DATASET_READER_H_
#define CAPSTAN_TESTS_CONFORMANCE_DATASET_READER_H_

#include <vector>

#include "plugins/sdk/dataset.h"
#include "tests/conformance/plugin_under_test.h"

#define CAPSTAN_DATASET_READER_CONFORMANCE(name, library, config) \
  CAPSTAN_CONFORMANCE(DatasetReaderConformance, name, library, config)

namespace capstan {
namespace conformance {

class DatasetReaderConformance
    : public PluginConformance<DatasetReader, PluginCategory::kDatasetReader> {
 protected:
  DatasetReader& reader() const { return instance(); }
  // Reads a batch; fails the test if it can't.
  static Batch MustRead(const DatasetReader& reader,
                        const std::vector<int64_t>& indices);
};

}  // namespace conformance
}  // namespace capstan

#endif  // CAPSTAN_TESTS_CONFORMANCE_DATASET_READER_H_
