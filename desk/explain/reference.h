// SPDX-License-Identifier: Apache-2.0
//
// What the .proto files say of a config's fields, comments included.
#ifndef CAPSTAN_DESK_EXPLAIN_REFERENCE_H_
#define CAPSTAN_DESK_EXPLAIN_REFERENCE_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor_database.h>

#include <memory>
#include <string>
#include <vector>

#include "host/config/field_names.h"
#include "host/plugins/plugin_host.h"

namespace capstan {

struct DescribedPlugin {
  std::string package;  // "capstan.ddp"
  PluginCategory category;
  std::string doc;  // what it does
  const google::protobuf::Descriptor* config;
};

class Reference {
 public:
  // Of the core, and of the plugins that `host` finds; those that can't be
  // loaded are left out. Loads all of them.
  explicit Reference(PluginHost* host);

  const google::protobuf::Descriptor& run() const { return *run_; }
  // By package; commands, which configs don't name, aside.
  const std::vector<DescribedPlugin>& plugins() const { return plugins_; }
  // Those that `slot` may name; none if it isn't a slot of the trainer's.
  std::vector<const DescribedPlugin*> PluginsFor(
      const google::protobuf::FieldDescriptor& slot) const;

 private:
  void Add(const google::protobuf::FileDescriptorProto& file);
  void AddDocsOf(const std::string& library);
  // For a library without docs: the same without comments.
  void AddLoaded(const google::protobuf::FileDescriptor& file);

  google::protobuf::SimpleDescriptorDatabase files_;
  google::protobuf::DescriptorPool pool_{&files_};
  const google::protobuf::Descriptor* run_ = nullptr;
  std::vector<DescribedPlugin> plugins_;
};

// A field, in words.
struct Setting {
  std::string name;
  std::string type;      // "integer", "a list of paths", "NEVER or AUTO"
  std::string unit;      // "steps"; "" if it has none
  std::string fallback;  // what holds if it is left out
  std::string meaning;   // "" if its name says it
  std::vector<PeerName> peers;
  bool may_change = false;  // in a resumed run
};
Setting Describe(const google::protobuf::FieldDescriptor& field);

// A comment of one paragraph, without line ends.
std::string CommentOf(const google::protobuf::FieldDescriptor& field);
std::string CommentOf(const google::protobuf::Descriptor& message);
std::string CommentOf(const google::protobuf::EnumValueDescriptor& value);

// "lr, optim_bits (EIGHT_BIT for 8)"
std::string PeersText(const std::vector<PeerName>& peers);

}  // namespace capstan

#endif  // CAPSTAN_DESK_EXPLAIN_REFERENCE_H_
