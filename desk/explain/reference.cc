// SPDX-License-Identifier: Apache-2.0
#include "desk/explain/reference.h"

#include <dlfcn.h>
#include <google/protobuf/any.pb.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "host/config/run_config.pb.h"
#include "host/plugins/config_docs.h"
#include "plugins/sdk/options.pb.h"

namespace capstan {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::FileDescriptorProto;

// By the end of a field's name.
constexpr const char* kUnits[][2] = {
    {"_seconds", "seconds"}, {"_mib", "MiB"},           {"_bytes", "bytes"},
    {"_every", "steps"},     {"_steps", "steps"},       {"_step", "step"},
    {"_epochs", "epochs"},   {"_length", "tokens"},     {"_tokens", "tokens"},
    {"_batches", "batches"}, {"batch_size", "samples"},
};

// The library that `symbol` is in.
std::string LibraryOf(const void* symbol) {
  Dl_info info;
  return dladdr(symbol, &info) == 0 ? "" : info.dli_fname;
}

// The comments above and behind something, as one paragraph.
template <typename Described>
std::string Comment(const Described& described) {
  google::protobuf::SourceLocation location;
  if (!described.GetSourceLocation(&location)) return "";
  const std::string text =
      absl::StrCat(location.leading_comments, " ", location.trailing_comments);
  return absl::StrJoin(
      absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty()), " ");
}

std::string TypeOfOne(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_DOUBLE:
    case FieldDescriptor::CPPTYPE_FLOAT:
      return "number";
    case FieldDescriptor::CPPTYPE_STRING:
      return field.options().GetExtension(path) ? "path" : "text";
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return field.message_type()->full_name() ==
                     google::protobuf::Any::descriptor()->full_name()
                 ? "plugin"
                 : "{ .. }";
    case FieldDescriptor::CPPTYPE_ENUM: {
      std::vector<std::string> names;
      for (int i = 0; i < field.enum_type()->value_count(); ++i) {
        names.push_back(field.enum_type()->value(i)->name());
      }
      return absl::StrJoin(names, ", ");
    }
    default:
      return "integer";
  }
}

// What a comment says behind "default"; "" if it doesn't.
std::string DefaultIn(const std::string& comment) {
  const std::string lower = absl::AsciiStrToLower(comment);
  for (const absl::string_view mark : {"default: ", "default "}) {
    const size_t at = lower.find(mark.data());
    if (at == std::string::npos ||
        absl::EndsWith(lower.substr(0, at), "the ")) {
      continue;
    }
    std::string text = comment.substr(at + mark.size());
    for (size_t i = 0; i < text.size(); ++i) {
      const bool last = i + 1 == text.size() || text[i + 1] == ' ';
      if (text[i] == ';' || (last && (text[i] == '.' || text[i] == ','))) {
        text.resize(i);
      }
    }
    return text;
  }
  return "";
}

std::string DefaultOf(const FieldDescriptor& field,
                      const std::string& comment) {
  const std::string value = field.options().GetExtension(default_value);
  if (!value.empty()) return value;
  const std::string told = DefaultIn(comment);
  if (!told.empty()) return told;
  if (field.is_repeated() || field.has_presence()) return "none";
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "false";
    case FieldDescriptor::CPPTYPE_STRING:
      return "none";
    case FieldDescriptor::CPPTYPE_ENUM:
      return field.enum_type()->value(0)->name();
    default:
      return "0";
  }
}

}  // namespace

Reference::Reference(PluginHost* host) {
  AddDocsOf(LibraryOf(reinterpret_cast<const void*>(&CoreFingerprint)));
  AddDocsOf(LibraryOf(reinterpret_cast<const void*>(&Describe)));
  // What protobuf brings, and the run's config if the library has no docs.
  AddLoaded(*RunConfig::descriptor()->file());
  run_ = pool_.FindMessageTypeByName(RunConfig::descriptor()->full_name());
  for (const std::string& package : host->Available()) {
    if (!CommandOf(package).empty()) continue;
    const std::string type = absl::StrCat(package, ".Config");
    const absl::StatusOr<const LoadedPlugin*> plugin = host->LoadBuilt(type);
    if (!plugin.ok()) continue;
    AddDocsOf((*plugin)->path);
    const Descriptor* const loaded =
        DescriptorPool::generated_pool()->FindMessageTypeByName(type);
    if (loaded == nullptr) continue;
    AddLoaded(*loaded->file());
    const PluginDescriptor& descriptor = *(*plugin)->descriptor;
    plugins_.push_back({package, descriptor.category, descriptor.doc,
                        pool_.FindMessageTypeByName(type)});
  }
}

void Reference::Add(const FileDescriptorProto& file) {
  FileDescriptorProto there;
  if (!files_.FindFileByName(file.name(), &there)) files_.Add(file);
}

void Reference::AddDocsOf(const std::string& library) {
  const google::protobuf::FileDescriptorSet docs = ReadConfigDocs(library);
  for (const FileDescriptorProto& file : docs.file()) Add(file);
}

void Reference::AddLoaded(const FileDescriptor& file) {
  for (int i = 0; i < file.dependency_count(); ++i) {
    AddLoaded(*file.dependency(i));
  }
  FileDescriptorProto copy;
  file.CopyTo(&copy);
  Add(copy);
}

std::vector<const DescribedPlugin*> Reference::PluginsFor(
    const FieldDescriptor& slot) const {
  std::vector<const DescribedPlugin*> found;
  for (const DescribedPlugin& plugin : plugins_) {
    if (CategoryOf(slot) == plugin.category) found.push_back(&plugin);
  }
  return found;
}

Setting Describe(const FieldDescriptor& field) {
  Setting setting;
  setting.name = field.name();
  setting.type = TypeOfOne(field);
  if (field.is_repeated()) {
    setting.type = absl::StrCat("list of ", setting.type);
  }
  const bool number = field.cpp_type() != FieldDescriptor::CPPTYPE_STRING &&
                      field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE;
  for (const auto& [end, unit] : kUnits) {
    if (number && setting.unit.empty() && absl::EndsWith(field.name(), end)) {
      setting.unit = unit;
    }
  }
  setting.meaning = CommentOf(field);
  setting.fallback = DefaultOf(field, setting.meaning);
  setting.peers = PeerNames(field);
  setting.may_change = field.options().GetExtension(may_change);
  return setting;
}

std::string CommentOf(const FieldDescriptor& field) { return Comment(field); }
std::string CommentOf(const Descriptor& message) { return Comment(message); }
std::string CommentOf(const google::protobuf::EnumValueDescriptor& value) {
  return Comment(value);
}

std::string PeersText(const std::vector<PeerName>& peers) {
  return absl::StrJoin(peers, ", ", [](std::string* out, const PeerName& peer) {
    absl::StrAppend(
        out, peer.name,
        peer.instead.empty() ? "" : absl::StrCat(" (", peer.instead, ")"));
  });
}

}  // namespace capstan
