// SPDX-License-Identifier: Apache-2.0
//
// A config in the making: our fields, where each came from, and what became of
// every setting of the files.
#ifndef CAPSTAN_DESK_IMPORT_DRAFT_H_
#define CAPSTAN_DESK_IMPORT_DRAFT_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "desk/import/settings.h"

namespace capstan::import {

enum class Effect {
  kMapped,
  kDefault,  // not set there; its default is written out
  kNothing,  // changes nothing that is trained
  kDiffers,  // mapped, but what is trained isn't quite the same
  kLost,     // changes what is trained, and is not in the config
};

struct TableLine {
  Effect effect;
  std::string key, value, ours, note;
};

// One row of a peer's table: "KEYS | FIELD | HOW | NOTE", of which the last
// ones may be missing. A line that begins with a space goes on with the row
// before it, one that begins with "#" is a comment.
struct Row {
  // The peer's keys, in any case, with spaces between them; "datasets[].path"
  // stands for all of a list, "fsdp_config.*" for all below that has no row of
  // its own.
  std::string keys;
  // Ours: "optimizer.learning_rate", "optimizer" for a slot's plugin. "@micro":
  // a fact that Resolve reads; "@*": the key behind "@", as it is. "": none.
  std::string field;
  // How a value becomes ours: "number" (0 or more), "positive" and "count"
  // (whole, from 1 or 0), "integer" (a count, or -1 for none), "flag", "text"
  // (quoted), "list" (of texts), "raw"; or values with ours, "linear=LINEAR
  // *=!", the first that matches in any case. "*" matches all, and stands for
  // the value itself; "-" stands for nothing to write, "!" for lost; "~" before
  // ours says that what is trained isn't quite the same. Without a field "" is
  // nothing to write, and "lost" is lost unless it is switched off (false, 0,
  // none, an empty list).
  std::string how;
  // Of a lost value why not, and what to do; of others what to know.
  std::string note;
};

struct Table {
  const char* text;
  const char* prefix = "";  // of all their keys
};

// The rows of a constant text, which are read once.
const std::vector<Row>& RowsOf(const Table& table);

class Draft;

// A program whose settings are read.
struct Peer {
  const char* name;
  // Keys of which one is in each of its files, and of no peer's after it.
  std::vector<const char*> signs;
  std::vector<Table> tables;
  // What it does without the setting, in its own words: "seed=42 betas=[0,1]".
  const char* defaults = "";
  // Adds what no row can say, once all files are read.
  void (*finish)(Draft* draft) = nullptr;
  // What it takes where `defaults` has nothing: kTrainerDefaults.
  const char* more_defaults = "";
};

// All, those first whose settings go before those of others.
const std::vector<const Peer*>& Peers();

extern const Peer kPeft, kTorchtune, kAxolotl, kSftPlay, kLlamaFactory, kTrl,
    kTransformers, kDeepSpeed, kAccelerate;

struct Field {
  std::string text;    // as it is written in a config
  std::string origin;  // the peer's key
  std::string raw;     // the peer's value
  std::string peer;    // its name
  bool by_default = false;
};

// Where rows come from, as train_data's fields.
struct Source {
  std::string path;    // as Draft::Path gives it
  std::string kind;    // "MESSAGES"; "": by the rows' keys
  std::string weight;  // "": none
  std::string origin;
  std::string loss_on;  // "": train_data's
};

class Draft {
 public:
  // Maps `setting` by the peer's tables. A value that is there already stays.
  void Apply(const Peer& peer, const Setting& setting, bool by_default);

  bool Has(const std::string& field) const { return fields_.count(field) > 0; }
  // Whether a value for the field was lost.
  bool HasLost(const std::string& field) const {
    return lost_.count(field) > 0;
  }
  // An empty one if it isn't there.
  const Field& At(const std::string& field) const;
  std::string Text(const std::string& field) const { return At(field).text; }
  std::string Raw(const std::string& field) const { return At(field).raw; }
  std::string Origin(const std::string& field) const {
    return At(field).origin;
  }
  // Of those that are there.
  std::string Origins(const std::vector<const char*>& facts) const;
  bool IsDefault(const std::string& field) const {
    return At(field).by_default;
  }
  double Number(const std::string& field, double otherwise) const;
  bool Flag(const std::string& field) const;

  // Replaces, also in the table.
  void Set(const std::string& field, const std::string& text,
           const std::string& origin);
  void SetQuoted(const std::string& field, const std::string& value,
                 const std::string& origin);
  // Erases. Its lines in the table then say that they have no effect.
  void Erase(const std::string& field);
  // PREFIX.NAME of each name, with spaces between them.
  void EraseAll(absl::string_view prefix, absl::string_view names);
  // Sets the field to what the fact says, if it is there.
  void Copy(const std::string& fact, const std::string& field);
  // Copies facts, "@NAME @NAME", to PREFIX.NAME.
  void CopyAll(absl::string_view prefix, absl::string_view facts);
  // Erases what came by default, also from the table.
  void DropDefault(const std::string& field);
  // Whether an adapter is trained.
  bool Adapts() const { return Has("@adapter") && Text("@adapter") != "full"; }

  // Of the line of a fact: it has no effect, and why. Not if something else
  // comes from the same setting, or more is said of it.
  void NoteUnused(const std::string& fact, const std::string& note);
  // What became of a setting after all: in place of its lines that say mapped
  // or default.
  void Note(Effect effect, const std::string& key, const std::string& value,
            const std::string& ours, const std::string& note);

  // Note of the setting that `field` came from.
  void Lose(const std::string& field, const std::string& note) {
    Note(Effect::kLost, Origin(field), "", "", note);
  }
  void Differ(const std::string& field, const std::string& note) {
    Note(Effect::kDiffers, Origin(field), "", "", note);
  }

  const std::map<std::string, Field>& fields() const { return fields_; }
  const std::vector<TableLine>& table() const { return table_; }
  // Whether something that changes the model isn't in the config.
  bool loses() const;

  std::vector<std::string> files;  // that were read
  // Names of the peers that were met, and of the program that a command runs.
  std::set<std::string> peers;
  std::string program;
  // The folder that the config will lie in, absolute: its paths start there.
  std::string folder;

  // The folders of the files that were read, in which others are looked for.
  std::vector<std::string> bases;
  std::set<std::string> nulls;  // settings that say "none"
  std::vector<Source> sources;
  std::vector<Source> eval_sources;  // measured, each by itself

  // A file that a setting names: from here, or from one of `bases` or a folder
  // around it. "" if there is none.
  std::string Find(const std::string& path) const;
  // `path` of a peer as ours: what Find finds, relative to `folder` if it is
  // below it; else as it is.
  std::string FilePath(const std::string& path) const;
  // The same of what may also be the hub's, "NAME" or "OWNER/NAME": with "hf:"
  // before it if it isn't found.
  std::string Path(const std::string& path) const;

 private:
  void ApplyRow(const std::string& peer, const Row& row, const Setting& setting,
                bool by_default);

  // Lines that say what `field` is.
  std::vector<TableLine*> LinesOf(const std::string& field);

  // If a value for `field` was lost, what `ours` in its place, by default, is
  // said in its line.
  bool SayInPlace(const std::string& field, const std::string& ours);

  std::map<std::string, Field> fields_;
  std::map<std::string, std::string> lost_;  // keys of values for a field
  std::set<std::string> unused_;             // facts
  std::vector<TableLine> table_;
};

// Works out what follows from several facts: batch, precision, strategy,
// adapter, objective. FAILED_PRECONDITION if nothing can be trained so.
absl::Status Resolve(Draft* draft);

// Reads `files`, in any order, and what they name, and maps their settings to a
// config that lies in `folder` (absolute). INVALID_ARGUMENT names a file that
// can't be read or is of no known program, FAILED_PRECONDITION a training that
// isn't here.
absl::StatusOr<Draft> Import(const std::vector<std::string>& files,
                             const std::string& folder);

// The config, with a comment of origin behind each field.
std::string ConfigText(const Draft& draft, const std::string& head);

// Columns key, value, ours, with notes below, in lines of `columns` characters;
// settings without effect are one group.
std::string TableText(const Draft& draft, size_t columns);

}  // namespace capstan::import

#endif  // CAPSTAN_DESK_IMPORT_DRAFT_H_
