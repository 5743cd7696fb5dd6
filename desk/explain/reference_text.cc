// SPDX-License-Identifier: Apache-2.0
#include "desk/explain/reference_text.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "plugins/sdk/options.pb.h"
#include "trainer/commands/command.h"
#include "trainer/metrics/console.h"

namespace capstan {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

bool IsMessage(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
}

bool IsSlot(const FieldDescriptor& field) {
  return IsMessage(field) &&
         field.message_type()->full_name() == "google.protobuf.Any";
}

std::string TypeAndDefault(const FieldDescriptor& field,
                           const Setting& setting) {
  std::string text = setting.type;
  if (!setting.unit.empty()) absl::StrAppend(&text, " (", setting.unit, ")");
  if (!IsMessage(field)) {
    absl::StrAppend(&text, ", default: ", setting.fallback);
  }
  return text;
}

// A field at full length.
std::string AboutField(const std::string& path, const FieldDescriptor& field) {
  const Setting setting = Describe(field);
  std::string text =
      WrappedText(absl::StrCat(path, ": ", TypeAndDefault(field, setting)), 0);
  absl::StrAppend(&text, WrappedText(setting.meaning, 2));
  if (field.enum_type() != nullptr) {
    for (int i = 0; i < field.enum_type()->value_count(); ++i) {
      const auto& value = *field.enum_type()->value(i);
      const std::string meaning = CommentOf(value);
      absl::StrAppend(&text, "  ", value.name(), "\n", WrappedText(meaning, 6));
    }
  }
  if (!setting.peers.empty()) {
    absl::StrAppend(
        &text,
        WrappedText(absl::StrCat("Elsewhere: ", PeersText(setting.peers)), 2));
  }
  if (setting.may_change) {
    absl::StrAppend(&text, "  A resumed run may have another value.\n");
  }
  return text;
}

// What a run takes where its config says nothing, a line each; none for most
// messages.
std::vector<std::string> RunDefaultsOf(const Descriptor& message) {
  std::vector<std::string> lines;
  const google::protobuf::MessageOptions& options = message.options();
  for (int i = 0; i < options.ExtensionSize(run_defaults); ++i) {
    const RunDefaults& defaults = options.GetExtension(run_defaults, i);
    std::string runs = "a run";
    if (defaults.start() == RunDefaults::SCRATCH) runs += " from scratch";
    if (defaults.start() == RunDefaults::PRETRAINED) {
      runs += " of a pretrained model";
    }
    if (defaults.start() == RunDefaults::ADAPTER) runs += " of an adapter";
    if (!defaults.beside().empty()) {
      absl::StrAppend(&runs, " with ", defaults.beside());
    }
    std::string config = defaults.config();
    absl::RemoveExtraAsciiWhitespace(&config);
    lines.push_back(absl::StrCat("Where its config says nothing, ", runs,
                                 " takes `", config, "`"));
  }
  return lines;
}

// A line or two for each field of `message`.
std::string AboutMessage(const std::string& path, const Descriptor& message) {
  std::string text =
      absl::StrCat(path, ":\n", WrappedText(CommentOf(message), 2));
  for (const std::string& line : RunDefaultsOf(message)) {
    absl::StrAppend(&text, WrappedText(line, 2));
  }
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    absl::StrAppend(
        &text, WrappedText(absl::StrCat(field.name(), ": ",
                                        TypeAndDefault(field, Describe(field))),
                           4));
  }
  return text;
}

std::string AboutPlugin(const DescribedPlugin& plugin) {
  return absl::StrCat(
      plugin.doc, "\n",
      AboutMessage(absl::StrCat("[plugin/", plugin.package, ".Config]"),
                   *plugin.config));
}

std::string AboutSlot(const FieldDescriptor& slot, const Reference& reference) {
  std::string text = AboutField(slot.name(), slot);
  for (const DescribedPlugin* plugin : reference.PluginsFor(slot)) {
    absl::StrAppendFormat(&text, "    %-28s %s\n", plugin->package,
                          plugin->doc);
  }
  return text;
}

std::string Join(absl::string_view path, absl::string_view name) {
  return absl::StrCat(path, path.empty() ? "" : ".", name);
}

// Calls `visit` with each field of `message` and below, and its path.
template <typename Visit>
void ForEachField(const std::string& path, const Descriptor& message,
                  const Visit& visit, std::set<const Descriptor*> above = {}) {
  if (!above.insert(&message).second) return;
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    const std::string own = Join(path, field.name());
    visit(own, field);
    if (IsMessage(field) && !IsSlot(field)) {
      ForEachField(own, *field.message_type(), visit, above);
    }
  }
}

// The same for a whole config. The fields of a slot's plugins come as often as
// plugins have them; `visit` gets the plugin, or null.
template <typename Visit>
void ForEachSetting(const Reference& reference, const Visit& visit) {
  ForEachField(
      "", reference.run(),
      [&](const std::string& path, const FieldDescriptor& field) {
        visit(path, field, nullptr);
        for (const DescribedPlugin* plugin : reference.PluginsFor(field)) {
          ForEachField(
              path, *plugin->config,
              [&](const std::string& own, const FieldDescriptor& inner) {
                visit(own, inner, plugin);
              });
        }
      });
}

// What ends in `.topic`, or is called so elsewhere.
std::string AboutName(const std::string& topic, const Reference& reference) {
  std::string text;
  ForEachSetting(
      reference, [&](const std::string& path, const FieldDescriptor& field,
                     const DescribedPlugin* plugin) {
        bool called = field.name() == topic;
        for (const PeerName& peer : PeerNames(field))
          called |= peer.name == topic;
        if (!called) return;
        absl::StrAppend(
            &text, text.empty() ? "" : "\n",
            plugin == nullptr ? "" : absl::StrCat(plugin->package, ": "),
            AboutField(path, field));
      });
  return text;
}

std::string InTable(const std::string& text) {
  return absl::StrReplaceAll(text, {{"|", "\\|"}, {"<", "&lt;"}});
}

// The table of a message and those in it, each under its heading.
std::string MessageMarkdown(const std::string& heading, const std::string& path,
                            const Descriptor& message,
                            std::set<const Descriptor*>* done) {
  if (!done->insert(&message).second) return "";
  std::string text = absl::StrCat("\n", heading, "\n");
  const std::string comment = CommentOf(message);
  if (!comment.empty()) absl::StrAppend(&text, InTable(comment), "\n");
  for (const std::string& line : RunDefaultsOf(message)) {
    absl::StrAppend(&text, "\n", line, ".\n");
  }
  std::string inner;
  if (message.field_count() > 0) {
    absl::StrAppend(&text,
                    "\n| field | type | default | meaning | elsewhere |\n"
                    "|---|---|---|---|---|\n");
  }
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    const Setting setting = Describe(field);
    absl::StrAppend(
        &text, "| `", setting.name, "` | ", setting.type,
        setting.unit.empty() ? "" : absl::StrCat(" (", setting.unit, ")"),
        " | ", IsMessage(field) ? "" : InTable(setting.fallback), " | ",
        InTable(setting.meaning), " | ", InTable(PeersText(setting.peers)),
        " |\n");
    if (IsMessage(field) && !IsSlot(field)) {
      const std::string own = Join(path, field.name());
      absl::StrAppend(&inner, MessageMarkdown(absl::StrCat("### ", own), own,
                                              *field.message_type(), done));
    }
  }
  return absl::StrCat(text, inner);
}

}  // namespace

absl::StatusOr<std::string> HelpOn(const std::string& topic,
                                   const Reference& reference) {
  for (const DescribedPlugin& plugin : reference.plugins()) {
    if (plugin.package == topic ||
        plugin.package.substr(plugin.package.rfind('.') + 1) == topic) {
      return AboutPlugin(plugin);
    }
  }
  std::string text;
  std::vector<std::string> names;  // paths, and how they end
  ForEachSetting(
      reference, [&](const std::string& path, const FieldDescriptor& field,
                     const DescribedPlugin* plugin) {
        names.push_back(path);
        names.push_back(field.name());
        if (path != topic) return;
        absl::StrAppend(&text, text.empty() ? "" : "\n");
        if (plugin != nullptr) absl::StrAppend(&text, plugin->package, ": ");
        absl::StrAppend(&text, !reference.PluginsFor(field).empty()
                                   ? AboutSlot(field, reference)
                               : IsMessage(field) && !IsSlot(field)
                                   ? AboutMessage(path, *field.message_type())
                                   : AboutField(path, field));
      });
  if (text.empty()) text = AboutName(topic, reference);
  if (!text.empty()) return text;
  return absl::NotFoundError(
      absl::StrCat("no field, plugin or message is called \"", topic, "\"",
                   DidYouMean(NearestName(topic, names))));
}

std::string SettingsMarkdown(const Reference& reference) {
  std::set<const Descriptor*> done;
  std::string text =
      "# Settings\n"
      "All that a config may say, from the .proto files; `trainer help "
      "train.eval_every`\nshows one of them. This page is what `trainer help "
      "--markdown` prints.\n";
  absl::StrAppend(&text,
                  MessageMarkdown("## A run", "", reference.run(), &done));
  for (const DescribedPlugin& plugin : reference.plugins()) {
    absl::StrAppend(
        &text, MessageMarkdown(absl::StrCat("## ", plugin.package, "\n",
                                            CategoryName(plugin.category), ": ",
                                            plugin.doc, "\n"),
                               plugin.package, *plugin.config, &done));
  }
  return text;
}

std::string LlmsText(const Reference& reference) {
  std::string text =
      "# Capstan\n\n"
      "> A trainer of models on GPUs and CPUs, in C++. A run is a config, "
      "protobuf text that names plugins: `trainer run.pbtxt`. This page is "
      "what `trainer help --llms` prints.\n\n"
      "A config: `model { [plugin/capstan.decoder.Config] { pretrained: "
      "\"FOLDER\" } } train_data { [plugin/capstan.chat.Config] { path: "
      "\"chats.jsonl\" } }`. The rest has defaults; `--set train.max_steps=9` "
      "changes a field. Errors end with a code, which `trainer explain CODE` "
      "explains; `--apply` writes the right line where it is known.\n\n"
      "## Docs\n\n"
      "- [Settings](settings.md): each field, its type, default and meaning\n"
      "- [Troubleshooting](troubleshooting.md): errors by code\n"
      "- [Tutorial](tutorial.md): from a text to a model that answers\n\n"
      "## Commands\n\n";
  for (const CommandName& command : CommandNames()) {
    absl::StrAppend(&text, "- `trainer ", command.name, "`: ", command.help,
                    "\n");
  }
  absl::StrAppend(&text, "\n## Fields of a config\n\n");
  for (int i = 0; i < reference.run().field_count(); ++i) {
    const FieldDescriptor& field = *reference.run().field(i);
    const Setting setting = Describe(field);
    absl::StrAppend(&text, "- `", field.name(), "` (", setting.type, ")",
                    setting.meaning.empty() ? "" : ": ", setting.meaning, "\n");
  }
  absl::StrAppend(&text, "\n## Plugins\n\n");
  for (const DescribedPlugin& plugin : reference.plugins()) {
    absl::StrAppend(&text, "- `[plugin/", plugin.package, ".Config]`, ",
                    CategoryName(plugin.category), ": ", plugin.doc, "\n");
  }
  return text;
}

std::vector<std::string> SetWords(const Reference& reference) {
  std::set<std::string> words;  // plugins share names of fields
  ForEachSetting(
      reference, [&](const std::string& path, const FieldDescriptor& field,
                     const DescribedPlugin*) {
        const std::vector<const DescribedPlugin*> plugins =
            reference.PluginsFor(field);
        for (const DescribedPlugin* plugin : plugins) {
          words.insert(absl::StrCat(path, "=", plugin->package));
        }
        if (field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
          words.insert({path + "=true", path + "=false"});
        } else if (field.enum_type() != nullptr) {
          for (int i = 0; i < field.enum_type()->value_count(); ++i) {
            words.insert(
                absl::StrCat(path, "=", field.enum_type()->value(i)->name()));
          }
        } else if (!IsMessage(field)) {
          words.insert(path + "=");
        }
      });
  return {words.begin(), words.end()};
}

}  // namespace capstan
