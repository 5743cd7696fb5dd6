// SPDX-License-Identifier: Apache-2.0
//
// What the .proto files of a library say of its config, comments included.
#ifndef CAPSTAN_HOST_PLUGINS_CONFIG_DOCS_H_
#define CAPSTAN_HOST_PLUGINS_CONFIG_DOCS_H_

#include <google/protobuf/descriptor.pb.h>

#include <string>

namespace capstan {

// The files that were compiled into the library at `path`, a plugin's or the
// core's, with source info; read without loading it. Empty if it has none: it
// was built by other means than tools/capstan.bzl.
google::protobuf::FileDescriptorSet ReadConfigDocs(const std::string& path);

}  // namespace capstan

#endif  // CAPSTAN_HOST_PLUGINS_CONFIG_DOCS_H_
