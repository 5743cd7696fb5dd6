// SPDX-License-Identifier: Apache-2.0
//
// The opcodes are those of CPython's Lib/pickletools.py, protocols 2 to 5, as
// far as pickles of tensors and plain containers use them.
#include "desk/convert/pickle.h"

#include <cstring>
#include <unordered_map>
#include <utility>

#include "absl/base/internal/endian.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace capstan {

using Kind = PickleValue::Kind;

const PickleValue& PickleValue::At(absl::string_view key) const {
  static const auto* const none = new PickleValue;
  const PickleValue& dict = is(Kind::kObject) && state ? *state : *this;
  if (!dict.is(Kind::kDict)) return *none;
  for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    const PickleValue& name = *dict.items[i];
    if (name.is(Kind::kText) && name.text == key) return *dict.items[i + 1];
  }
  return *none;
}

std::vector<PickleValue::Entry> PickleValue::entries() const {
  std::vector<Entry> entries;
  for (size_t i = 0; is(Kind::kDict) && i + 1 < items.size(); i += 2) {
    entries.push_back({*items[i], *items[i + 1]});
  }
  return entries;
}

class PickleReader {
 public:
  PickleReader(Pickle* pickle, bool (*allowed)(absl::string_view))
      : pickle_(pickle), bytes_(pickle->bytes_), allowed_(allowed) {}

  absl::Status Read() {
    while (error_.ok() && pickle_->root_ == nullptr) {
      const size_t at = at_;
      const absl::string_view op = Take(1);
      if (error_.ok()) Step(static_cast<unsigned char>(op[0]));
      if (absl::IsInvalidArgument(error_)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "its pickle is damaged at byte ", at, ": ", error_.message()));
      }
    }
    pickle_->size_ = at_;
    return error_;
  }

 private:
  // Errors are sticky: after one, values are None.
  void Fail(absl::string_view what) {
    error_.Update(absl::InvalidArgumentError(what));
  }

  absl::string_view Take(uint64_t bytes) {
    if (bytes > bytes_.size() - at_) {
      Fail("it ends too early");
      return {};
    }
    const absl::string_view taken = bytes_.substr(at_, bytes);
    at_ += bytes;
    return taken;
  }
  // A little-endian number of so many bytes.
  uint64_t TakeNumber(int bytes) {
    uint64_t number = 0;
    const absl::string_view taken = Take(bytes);
    for (size_t i = taken.size(); i-- > 0;) {
      number = number << 8 | static_cast<unsigned char>(taken[i]);
    }
    return number;
  }
  absl::string_view TakeLine() {
    const size_t end = bytes_.find('\n', at_);
    if (end == absl::string_view::npos) {
      Fail("a line has no end");
      return {};
    }
    const absl::string_view line = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return line;
  }

  PickleValue* New(Kind kind) {
    if (pickle_->values_.size() == Pickle::kMostValues) {
      Fail("it has too many values");
    }
    pickle_->values_.emplace_back();
    pickle_->values_.back().kind = kind;
    return &pickle_->values_.back();
  }
  PickleValue* Push(Kind kind) {
    stack_.push_back(New(kind));
    return stack_.back();
  }
  void PushInt(int64_t value, Kind kind = Kind::kInt) {
    Push(kind)->integer = value;
  }
  void PushText(absl::string_view text) { Push(Kind::kText)->text = text; }

  PickleValue* Top() {
    if (stack_.size() <= Floor()) {
      Fail("its stack is empty");
      return New(Kind::kNone);
    }
    return stack_.back();
  }
  PickleValue* Pop() {
    PickleValue* const top = Top();
    if (stack_.size() > Floor()) stack_.pop_back();
    return top;
  }
  // Nothing below the last mark can be popped.
  size_t Floor() const { return marks_.empty() ? 0 : marks_.back(); }
  // All above the last mark, which is removed.
  std::vector<const PickleValue*> PopMark() {
    if (marks_.empty()) {
      Fail("it has no mark");
      return {};
    }
    std::vector<const PickleValue*> items(stack_.begin() + marks_.back(),
                                          stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }

  void PushMany(Kind kind, std::vector<const PickleValue*> items) {
    if (kind == Kind::kDict && items.size() % 2 != 0)
      Fail("a key lacks a value");
    Push(kind)->items = std::move(items);
  }
  void PushLast(size_t count) {
    std::vector<const PickleValue*> items(count);
    for (size_t i = count; i-- > 0;) items[i] = Pop();
    PushMany(Kind::kTuple, std::move(items));
  }
  // Adds items to the container on top.
  void Extend(Kind kind, const std::vector<const PickleValue*>& items) {
    PickleValue* const top = Top();
    if (top->kind != kind)
      return Fail("it adds items to what isn't a container");
    if (kind == Kind::kDict && items.size() % 2 != 0) {
      return Fail("a key lacks a value");
    }
    top->items.insert(top->items.end(), items.begin(), items.end());
  }

  void PushGlobal(absl::string_view module, absl::string_view name) {
    if (!error_.ok()) return;
    pickle_->names_.push_back(absl::StrCat(module, ".", name));
    const std::string& global = pickle_->names_.back();
    if (!allowed_(global)) {
      error_ = absl::PermissionDeniedError(global);
      return;
    }
    Push(Kind::kGlobal)->text = global;
  }

  // What a call would return.
  void PushCall() {
    const PickleValue* const arguments = Pop();
    const PickleValue* const callee = Pop();
    if (!callee->is(Kind::kGlobal) || !arguments->is(Kind::kTuple)) {
      return Fail("it calls what isn't a function");
    }
    // Dicts with an order or a default.
    if (callee->text == "collections.OrderedDict" ||
        callee->text == "collections.defaultdict" ||
        callee->text == "collections.Counter") {
      Push(Kind::kDict);
      return;
    }
    // One tuple can be the arguments of many calls, at two bytes each.
    copied_ += arguments->items.size();
    if (copied_ > Pickle::kMostValues) return Fail("it has too many values");
    PickleValue* const object = Push(Kind::kObject);
    object->text = callee->text;
    object->items = arguments->items;
  }

  void SetState() {
    const PickleValue* const state = Pop();
    PickleValue* const top = Top();
    if (top->is(Kind::kObject)) {
      top->state = state;
    } else if (!top->is(Kind::kDict)) {  // a dict's attributes say nothing
      Fail("it sets the state of what isn't an object");
    }
  }

  void Remember(uint64_t key) { memo_[key] = Top(); }
  void Recall(uint64_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) return Fail("it recalls what it hasn't stored");
    stack_.push_back(found->second);
  }
  // A little-endian number in two's complement.
  void PushLong(uint64_t bytes) {
    const absl::string_view taken = Take(bytes);
    if (taken.size() > 8) {
      Push(Kind::kLong);
      return;
    }
    uint64_t value =
        !taken.empty() && (taken.back() & 0x80) != 0 ? ~uint64_t{0} : 0;
    for (size_t i = taken.size(); i-- > 0;) {
      value = value << 8 | static_cast<unsigned char>(taken[i]);
    }
    PushInt(static_cast<int64_t>(value));
  }
  void PushReal() {
    const absl::string_view taken = Take(8);
    if (taken.size() < 8) return;
    const uint64_t bits = absl::big_endian::Load64(taken.data());
    std::memcpy(&Push(Kind::kFloat)->real, &bits, sizeof(bits));
  }

  void Step(unsigned char op) {
    if (!StepValue(op) && !StepContainer(op) && !StepObject(op)) {
      Fail(absl::StrFormat("no pickle of tensors has opcode 0x%02x", op));
    }
  }
  // Each returns whether the opcode is one of its.
  bool StepValue(unsigned char op);
  bool StepContainer(unsigned char op);
  bool StepObject(unsigned char op);

  Pickle* const pickle_;
  const absl::string_view bytes_;
  bool (*const allowed_)(absl::string_view);
  size_t at_ = 0;
  size_t copied_ = 0;  // items, by calls
  absl::Status error_;
  std::vector<PickleValue*> stack_;
  std::vector<size_t> marks_;  // heights of the stack
  std::unordered_map<uint64_t, PickleValue*> memo_;
};

bool PickleReader::StepValue(unsigned char op) {
  switch (op) {
    case 'N':  // NONE
      Push(Kind::kNone);
      return true;
    case 0x88:  // NEWTRUE
    case 0x89:  // NEWFALSE
      PushInt(op == 0x88, Kind::kBool);
      return true;
    case 'J':  // BININT
      PushInt(static_cast<int32_t>(TakeNumber(4)));
      return true;
    case 'K':  // BININT1
    case 'M':  // BININT2
      PushInt(static_cast<int64_t>(TakeNumber(op == 'K' ? 1 : 2)));
      return true;
    case 0x8a:  // LONG1
    case 0x8b:  // LONG4
      PushLong(TakeNumber(op == 0x8a ? 1 : 4));
      return true;
    case 'G':  // BINFLOAT
      PushReal();
      return true;
    case 'U':   // SHORT_BINSTRING
    case 'C':   // SHORT_BINBYTES
    case 0x8c:  // SHORT_BINUNICODE
      PushText(Take(TakeNumber(1)));
      return true;
    case 'T':  // BINSTRING
    case 'B':  // BINBYTES
    case 'X':  // BINUNICODE
      PushText(Take(TakeNumber(4)));
      return true;
    case 0x8d:  // BINUNICODE8
    case 0x8e:  // BINBYTES8
    case 0x96:  // BYTEARRAY8
      PushText(Take(TakeNumber(8)));
      return true;
    default:
      return false;
  }
}

bool PickleReader::StepContainer(unsigned char op) {
  switch (op) {
    case '(':  // MARK
      marks_.push_back(stack_.size());
      return true;
    case ')':  // EMPTY_TUPLE
    case 't':  // TUPLE
      PushMany(Kind::kTuple,
               op == 't' ? PopMark() : std::vector<const PickleValue*>());
      return true;
    case 0x85:  // TUPLE1
    case 0x86:  // TUPLE2
    case 0x87:  // TUPLE3
      PushLast(op - 0x84);
      return true;
    case ']':   // EMPTY_LIST
    case 0x8f:  // EMPTY_SET
      Push(Kind::kList);
      return true;
    case 'l':   // LIST
    case 0x91:  // FROZENSET
      PushMany(Kind::kList, PopMark());
      return true;
    case 'a':  // APPEND
      Extend(Kind::kList, {Pop()});
      return true;
    case 'e':   // APPENDS
    case 0x90:  // ADDITEMS
      Extend(Kind::kList, PopMark());
      return true;
    case '}':  // EMPTY_DICT
      Push(Kind::kDict);
      return true;
    case 'd':  // DICT
      PushMany(Kind::kDict, PopMark());
      return true;
    case 's': {  // SETITEM
      const PickleValue* const value = Pop();
      const PickleValue* const key = Pop();
      Extend(Kind::kDict, {key, value});
      return true;
    }
    case 'u':  // SETITEMS
      Extend(Kind::kDict, PopMark());
      return true;
    default:
      return false;
  }
}

bool PickleReader::StepObject(unsigned char op) {
  switch (op) {
    case 0x80:  // PROTO
      Take(1);
      return true;
    case 0x95:  // FRAME
      Take(8);
      return true;
    case '.':  // STOP
      pickle_->root_ = Pop();
      return true;
    case '0':  // POP
      Pop();
      return true;
    case '1':  // POP_MARK
      PopMark();
      return true;
    case '2':  // DUP
      stack_.push_back(Top());
      return true;
    case 'c': {  // GLOBAL
      const absl::string_view module = TakeLine();
      PushGlobal(module, TakeLine());
      return true;
    }
    case 0x93: {  // STACK_GLOBAL
      const PickleValue* const name = Pop();
      const PickleValue* const module = Pop();
      PushGlobal(module->text, name->text);
      return true;
    }
    case 'R':   // REDUCE
    case 0x81:  // NEWOBJ
      PushCall();
      return true;
    case 0x92:  // NEWOBJ_EX: class, arguments, keyword arguments
      Pop();
      PushCall();
      return true;
    case 'b':  // BUILD
      SetState();
      return true;
    case 'Q':  // BINPERSID
      PushMany(Kind::kPersistent, {Pop()});
      return true;
    case 'q':  // BINPUT
    case 'r':  // LONG_BINPUT
      Remember(TakeNumber(op == 'q' ? 1 : 4));
      return true;
    case 0x94:  // MEMOIZE
      Remember(memo_.size());
      return true;
    case 'h':  // BINGET
    case 'j':  // LONG_BINGET
      Recall(TakeNumber(op == 'h' ? 1 : 4));
      return true;
    default:
      return false;
  }
}

absl::StatusOr<std::unique_ptr<const Pickle>> Pickle::Read(
    absl::string_view bytes, bool (*allowed)(absl::string_view global)) {
  auto pickle = std::make_unique<Pickle>();
  // A longer one may still end within the limit: storages follow it in files of
  // the legacy format.
  pickle->bytes_ = std::string(bytes.substr(0, kMostBytes));
  CAPSTAN_RETURN_IF_ERROR(PickleReader(pickle.get(), allowed).Read());
  return pickle;
}

}  // namespace capstan
