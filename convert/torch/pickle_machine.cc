// A stack machine: Step() carries out one opcode on a stack, its marks and a memo, until STOP. No opcode
// takes values from below the innermost mark. Values live in the Pickle and texts are views of its bytes, so
// that nothing is copied that the memo could ask for again. Two things could still multiply and are
// bounded by the pickle's length: the memo's slots, and the items that calls may copy. A read beyond the end
// sets `ran_out_` and gives nothing, so that opcodes need no check of their own and a caller can tell a
// pickle that continues from a damaged one.

#include "convert/torch/pickle_machine.h"

#include <bit>
#include <cstring>

#include "convert/torch/pickle_calls.h"

namespace cairn {
namespace {

constexpr int kHighestProtocol = 5;

class Machine {
 public:
  explicit Machine(Pickle& pickle) : pickle_(pickle), bytes_(*pickle.bytes), copies_(bytes_.size()) {}

  Status Run(uint64_t begin) {
    at_ = begin;
    while (!pickle_.root) {
      opcode_at_ = at_;
      const uint64_t opcode = Take(1);
      Status status = ran_out_ ? OkStatus() : Step(static_cast<uint8_t>(opcode));
      if (ran_out_) status = Corrupt("it ends in the middle of the pickle; it was truncated");
      if (!status.ok()) return status.WithContext(Where(static_cast<uint8_t>(opcode)));
    }
    pickle_.end = at_;
    return OkStatus();
  }
  bool ran_out() const { return ran_out_; }

 private:
  std::string Where(uint8_t opcode) const {
    return ran_out_ ? fmt::format("pickle, byte {}", opcode_at_)
                    : fmt::format("pickle, opcode 0x{:02x} at byte {}", opcode, opcode_at_);
  }

  uint64_t Take(int count) {
    const std::string_view raw = TakeText(count);
    uint64_t value = 0;
    if (!raw.empty()) std::memcpy(&value, raw.data(), raw.size());
    return value;
  }
  // Empty, and sets ran_out_, if there are fewer.
  std::string_view TakeText(uint64_t count) {
    if (count > bytes_.size() - at_) ran_out_ = true;
    if (ran_out_) return {};
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }
  std::string_view TakeLine() {
    const size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) ran_out_ = true;
    if (ran_out_) return {};
    const std::string_view line = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return line;
  }

  Status Step(uint8_t opcode) {
    switch (opcode) {
      case 0x80:  // PROTO
        return Protocol();
      case 0x95:  // FRAME
        Take(8);
        return OkStatus();
      case '.':  // STOP
        return Stop();
      case '(':  // MARK
        marks_.push_back(stack_.size());
        return OkStatus();
      case '0':  // POP
        return Pop();
      case '1':  // POP_MARK
        return ToMark([](auto) { return OkStatus(); });
      case '2':  // DUP
        return Top(1) ? Push(stack_.back()) : Short();
      case 'N':  // NONE
        return Push(New(PyKind::kNone));
      case 0x88:  // NEWTRUE
        return PushInt(PyKind::kBool, 1);
      case 0x89:  // NEWFALSE
        return PushInt(PyKind::kBool, 0);
      case 'J':  // BININT
        return PushInt(PyKind::kInt, static_cast<int32_t>(Take(4)));
      case 'K':  // BININT1
        return PushInt(PyKind::kInt, static_cast<int64_t>(Take(1)));
      case 'M':  // BININT2
        return PushInt(PyKind::kInt, static_cast<int64_t>(Take(2)));
      case 0x8a:  // LONG1
        return PushLong(TakeText(Take(1)));
      case 0x8b:  // LONG4
        return PushLong(TakeText(Take(4)));
      case 'G':  // BINFLOAT
        return PushFloat();
      case 'X':  // BINUNICODE
      case 'T':  // BINSTRING
        return PushText(PyKind::kStr, 4);
      case 0x8c:  // SHORT_BINUNICODE
      case 'U':   // SHORT_BINSTRING
        return PushText(PyKind::kStr, 1);
      case 0x8d:  // BINUNICODE8
        return PushText(PyKind::kStr, 8);
      case 'B':  // BINBYTES
        return PushText(PyKind::kBytes, 4);
      case 'C':  // SHORT_BINBYTES
        return PushText(PyKind::kBytes, 1);
      case 0x8e:  // BINBYTES8
      case 0x96:  // BYTEARRAY8
        return PushText(PyKind::kBytes, 8);
      case ']':  // EMPTY_LIST
        return Push(New(PyKind::kList));
      case ')':  // EMPTY_TUPLE
        return Push(New(PyKind::kTuple));
      case '}':  // EMPTY_DICT
        return Push(New(PyKind::kDict));
      case 0x8f:  // EMPTY_SET
        return Push(New(PyKind::kSet));
      case 0x85:  // TUPLE1
        return Collect(PyKind::kTuple, 1);
      case 0x86:  // TUPLE2
        return Collect(PyKind::kTuple, 2);
      case 0x87:  // TUPLE3
        return Collect(PyKind::kTuple, 3);
      case 't':  // TUPLE
        return CollectToMark(PyKind::kTuple);
      case 'l':  // LIST
        return CollectToMark(PyKind::kList);
      case 'd':  // DICT
        return CollectToMark(PyKind::kDict);
      case 0x91:  // FROZENSET
        return CollectToMark(PyKind::kSet);
      case 'a':  // APPEND
        return Extend(PyKind::kList, 1);
      case 's':  // SETITEM
        return Extend(PyKind::kDict, 2);
      case 'e':  // APPENDS
        return ExtendToMark(PyKind::kList);
      case 'u':  // SETITEMS
        return ExtendToMark(PyKind::kDict);
      case 0x90:  // ADDITEMS
        return ExtendToMark(PyKind::kSet);
      case 'q':  // BINPUT
        return Remember(Take(1));
      case 'r':  // LONG_BINPUT
        return Remember(Take(4));
      case 0x94:  // MEMOIZE
        return Remember(memo_.size());
      case 'h':  // BINGET
        return Recall(Take(1));
      case 'j':  // LONG_BINGET
        return Recall(Take(4));
      case 'c':  // GLOBAL
        return GlobalLines();
      case 0x93:  // STACK_GLOBAL
        return GlobalFromStack();
      case 'R':  // REDUCE
        return Call(2);
      case 0x81:  // NEWOBJ
        return Call(2);
      case 0x92:  // NEWOBJ_EX
        return Call(3);
      case 'b':  // BUILD
        return Build();
      case 'Q':  // BINPERSID
        return PersistentId();
      default:
        return NotSupported(
            "torch writes no checkpoint with this opcode; the file is damaged or not a checkpoint");
    }
  }

  bool Top(size_t count) const { return stack_.size() - Floor() >= count; }
  size_t Floor() const { return marks_.empty() ? 0 : marks_.back(); }
  static Status Short() { return Corrupt("the stack is too short for it; the file is damaged"); }

  PyValue* New(PyKind kind) { return pickle_.New(kind); }
  Status Push(PyValue* value) {
    stack_.push_back(value);
    return OkStatus();
  }
  PyValue* PopTop() {
    PyValue* top = stack_.back();
    stack_.pop_back();
    return top;
  }

  Status Protocol() {
    const uint64_t protocol = Take(1);
    if (protocol < 2 || protocol > kHighestProtocol) return NotSupported("pickle protocol {}", protocol);
    return OkStatus();
  }
  Status Stop() {
    if (!Top(1)) return Short();
    pickle_.root = PopTop();
    return OkStatus();
  }
  Status Pop() {
    if (!marks_.empty() && marks_.back() == stack_.size()) {
      marks_.pop_back();
      return OkStatus();
    }
    if (!Top(1)) return Short();
    stack_.pop_back();
    return OkStatus();
  }

  Status PushInt(PyKind kind, int64_t integer) {
    PyValue* value = New(kind);
    value->integer = integer;
    return Push(value);
  }
  Status PushLong(std::string_view raw) {
    if (raw.empty()) return PushInt(PyKind::kInt, 0);
    if (raw.size() > 8) {
      PyValue* value = New(PyKind::kBigInt);
      value->text = raw;
      return Push(value);
    }
    uint64_t bits = 0;
    std::memcpy(&bits, raw.data(), raw.size());
    const int unused = 64 - 8 * static_cast<int>(raw.size());
    return PushInt(PyKind::kInt, static_cast<int64_t>(bits << unused) >> unused);
  }
  Status PushFloat() {
    PyValue* value = New(PyKind::kFloat);
    value->real = std::bit_cast<double>(__builtin_bswap64(Take(8)));
    return Push(value);
  }
  Status PushText(PyKind kind, int length_bytes) {
    PyValue* value = New(kind);
    value->text = TakeText(Take(length_bytes));
    return Push(value);
  }

  // Makes `count` values of the top one.
  Status Collect(PyKind kind, size_t count) {
    if (!Top(count)) return Short();
    PyValue* value = New(kind);
    value->items.assign(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return Push(value);
  }
  template <typename Then>
  Status ToMark(Then then) {
    if (marks_.empty()) return Corrupt("its mark is missing; the file is damaged");
    const size_t mark = marks_.back();
    marks_.pop_back();
    std::vector<PyValue*> items(stack_.begin() + static_cast<std::ptrdiff_t>(mark), stack_.end());
    stack_.resize(mark);
    return then(std::move(items));
  }
  Status CollectToMark(PyKind kind) {
    return ToMark([&](std::vector<PyValue*> items) -> Status {
      if (kind == PyKind::kDict && items.size() % 2 != 0) return Corrupt("a key without a value");
      PyValue* value = New(kind);
      value->items = std::move(items);
      return Push(value);
    });
  }

  // The value that is filled: `target` itself, or the contents of an object of an unknown class.
  PyValue* Filled(PyValue* target, PyKind kind) {
    if (!target->is(PyKind::kObject)) return target;
    if (!target->contents) target->contents = New(kind);
    return target->contents;
  }
  Status ExtendTop(PyKind kind, const std::vector<PyValue*>& items) {
    if (!Top(1)) return Short();
    PyValue* target = Filled(stack_.back(), kind);
    if (!target->is(kind)) return Corrupt("it fills a value of another kind; the file is damaged");
    if (kind == PyKind::kDict && items.size() % 2 != 0) return Corrupt("a key without a value");
    target->items.insert(target->items.end(), items.begin(), items.end());
    return OkStatus();
  }
  Status Extend(PyKind kind, size_t count) {
    if (!Top(count + 1)) return Short();
    const std::vector<PyValue*> items(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return ExtendTop(kind, items);
  }
  Status ExtendToMark(PyKind kind) {
    return ToMark([&](std::vector<PyValue*> items) { return ExtendTop(kind, items); });
  }

  Status Remember(uint64_t slot) {
    if (!Top(1)) return Short();
    // Picklers count the slots up, and each takes at least one byte to fill.
    if (slot > bytes_.size()) return Corrupt("memo slot {} is beyond the pickle's length", slot);
    if (slot >= memo_.size()) memo_.resize(slot + 1);
    memo_[slot] = stack_.back();
    return OkStatus();
  }
  Status Recall(uint64_t slot) {
    if (slot >= memo_.size() || !memo_[slot])
      return Corrupt("memo slot {} is empty; the file is damaged", slot);
    return Push(memo_[slot]);
  }

  Status PushGlobal(std::string_view module, std::string_view name) {
    if (IsSuspicious(module, name))
      pickle_.suspicious.push_back({fmt::format("{}.{}", module, name), opcode_at_});
    PyValue* value = New(PyKind::kGlobal);
    value->module = module;
    value->text = name;
    return Push(value);
  }
  Status GlobalLines() {
    const std::string_view module = TakeLine();
    return PushGlobal(module, TakeLine());
  }
  Status GlobalFromStack() {
    if (!Top(2)) return Short();
    const PyValue* name = PopTop();
    const PyValue* module = PopTop();
    if (!name->is(PyKind::kStr) || !module->is(PyKind::kStr)) return Corrupt("a global's name must be text");
    return PushGlobal(module->text, name->text);
  }

  // (callable, args) or (class, args, keywords); of the keywords only their presence is kept.
  Status Call(size_t operands) {
    if (!Top(operands)) return Short();
    PyValue* keywords = operands == 3 ? PopTop() : nullptr;
    const PyValue* args = PopTop();
    const PyValue* callable = PopTop();
    const bool named = callable->is(PyKind::kGlobal) || callable->is(PyKind::kObject);
    if (!named || !args->is(PyKind::kTuple))
      return Corrupt("the call target is not a class or function; the file is damaged");
    CAIRN_ASSIGN_OR_RETURN(PyValue * value, CallKnown(pickle_, *callable, *args, copies_));
    if (keywords && keywords->is(PyKind::kDict) && value->is(PyKind::kObject)) value->contents = keywords;
    return Push(value);
  }
  Status Build() {
    if (!Top(2)) return Short();
    PyValue* state = PopTop();
    stack_.back()->state = state;
    return OkStatus();
  }
  Status PersistentId() {
    if (!Top(1)) return Short();
    CAIRN_ASSIGN_OR_RETURN(PyValue * storage, StorageOf(pickle_, *PopTop()));
    return Push(storage);
  }

  Pickle& pickle_;
  const std::string_view bytes_;
  uint64_t copies_;
  uint64_t at_ = 0;
  uint64_t opcode_at_ = 0;
  bool ran_out_ = false;
  std::vector<PyValue*> stack_;
  std::vector<size_t> marks_;
  std::vector<PyValue*> memo_;
};

}  // namespace

Result<std::unique_ptr<Pickle>> Unpickle(std::shared_ptr<const std::string> bytes, uint64_t begin,
                                         bool* ran_out) {
  auto pickle = std::make_unique<Pickle>();
  pickle->bytes = std::move(bytes);
  Machine machine(*pickle);
  Status status =
      begin > pickle->bytes->size() ? Corrupt("a pickle beyond the end of its file") : machine.Run(begin);
  if (ran_out) *ran_out = machine.ran_out();
  if (!status.ok()) return status;
  return pickle;
}

}  // namespace cairn
