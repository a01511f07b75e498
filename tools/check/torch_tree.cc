// Two walks over the same values: TreePrinter writes lines for people, TreeJson builds JSON. A pickle is a
// graph, in which a container may be shared or contain itself. Both walks therefore remember the containers
// that they have shown, descend into each only once, and to a limited depth. Short lists of plain values are
// shown each time they are shared. If names are asked for, every container is, since a tensor has a name for
// each path to it; the number is bounded, because paths may double at every level. Names and texts come from
// the file, so the lines for people show no control characters.

#include "tools/check/torch_tree.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "ckpt/base/enum_names.h"
#include "ckpt/base/glob.h"
#include "convert/torch/tensor_walk.h"
#include "tools/cli/human.h"
#include "tools/cli/text_table.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMaxDepth = 60;         // of what is shown
constexpr size_t kMaxTextBytes = 100;    // of a text that is shown
constexpr size_t kMaxListed = 8;         // plain values of a list in one line
constexpr size_t kMaxAgain = 1'000'000;  // values of containers that are shown once more

bool IsPlain(const PyValue& value) {
  return value.kind <= PyKind::kBytes || value.is(PyKind::kGlobal) || value.is(PyKind::kStorage);
}

// Text for people: without control characters, which a terminal would obey.
std::string Quoted(std::string_view text) {
  std::string shown = "'";
  for (const char c : text.substr(0, kMaxTextBytes)) {
    if (static_cast<uint8_t>(c) < 0x20 || c == 0x7f)
      shown += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
    else
      shown += c;
  }
  return shown + (text.size() > kMaxTextBytes ? fmt::format("…' ({} bytes)", text.size()) : "'");
}

std::string Printable(std::string_view text) {
  const std::string quoted = Quoted(text);
  return quoted.substr(1, quoted.rfind('\'') - 1);
}

std::string PlainText(const PyValue& value) {
  switch (value.kind) {
    case PyKind::kNone:
      return "None";
    case PyKind::kBool:
      return value.integer ? "True" : "False";
    case PyKind::kInt:
      return std::to_string(value.integer);
    case PyKind::kBigInt:
      return fmt::format("an integer of {} bytes", value.text.size());
    case PyKind::kFloat:
      return fmt::format("{}", value.real);
    case PyKind::kStr:
      return Quoted(value.text);
    case PyKind::kBytes:
      return fmt::format("{} bytes", value.text.size());
    case PyKind::kGlobal:
      return Printable(value.ClassName());
    case PyKind::kStorage:
      return fmt::format("storage {}", Printable(value.storage->key));
    default:
      return "…";
  }
}

std::string TensorText(const TensorRef& tensor) {
  std::string text = fmt::format("{} {}", tensor.type->dtype ? Name(*tensor.type->dtype) : tensor.type->name,
                                 ToString(tensor.shape));
  if (!tensor.contiguous()) text += fmt::format(" strides {}", ToString(tensor.stride));
  if (!tensor.storage) return text + ", without values";
  text += fmt::format("  storage {}", Printable(tensor.storage->key));
  if (tensor.offset != 0) text += fmt::format(" from element {}", tensor.offset);
  return text;
}

std::string_view KindText(const PyValue& value) {
  if (value.is(PyKind::kList)) return "list";
  if (value.is(PyKind::kTuple)) return "tuple";
  return value.is(PyKind::kSet) ? "set" : "dict";
}

// The short form of a list or tuple of plain values.
std::string ListText(const PyValue& value) {
  std::vector<std::string> items;
  for (const PyValue* item : value.items) {
    if (items.size() == kMaxListed) break;
    items.push_back(PlainText(*item));
  }
  const bool more = items.size() < value.items.size();
  return fmt::format("[{}{}]", fmt::join(items, ", "),
                     more ? fmt::format(", … {} in all", value.items.size()) : "");
}

class TreePrinter {
 public:
  explicit TreePrinter(const std::vector<std::string>& globs) : globs_(globs) {}

  void Print(const std::string& key, const PyValue& value) { Print(key, key, value, 0); }

 private:
  // Tensors that are not asked for are left out, and so are other values if only some tensors are asked for.
  bool Wanted(const std::string& path, const PyValue& value) const {
    if (globs_.empty()) return true;
    return value.is(PyKind::kTensor) && FitsAnyGlob(path, globs_);
  }

  void Line(size_t depth, const std::string& key, const std::string& text) const {
    fmt::print("{:{}}{}{}{}\n", "", globs_.empty() ? 2 * depth : 0, Printable(key), key.empty() ? "" : "  ",
               text);
  }

  void Print(const std::string& path, const std::string& key, const PyValue& value, size_t depth) {
    const std::string& shown = globs_.empty() ? key : path;
    if (value.is(PyKind::kTensor)) {
      if (Wanted(path, value)) Line(depth, shown, TensorText(*value.tensor));
    } else if (IsPlain(value)) {
      if (globs_.empty()) Line(depth, shown, PlainText(value));
    } else {
      PrintContainer(path, key, value, depth);
    }
  }

  void PrintContainer(const std::string& path, const std::string& key, const PyValue& value, size_t depth) {
    const bool in_line = !value.is(PyKind::kObject) && !value.is(PyKind::kDict) &&
                         std::ranges::all_of(value.items, [](const PyValue* i) { return IsPlain(*i); });
    const auto [first, fresh] = shown_.try_emplace(&value, path);
    const bool cut = !in_line && ((!fresh && !MayEnterAgain(value)) || depth == kMaxDepth);
    if (globs_.empty()) {
      const std::string what = value.is(PyKind::kObject) ? Printable(value.ClassName())
                               : in_line                 ? ListText(value)
                                         : fmt::format("{} of {}", KindText(value), Count(value));
      Line(depth, key, cut ? fmt::format("{}, as at {}", what, Printable(first->second)) : what);
    }
    if (cut || in_line) return;
    inside_.push_back(&value);
    PrintItems(path, value, depth + 1);
    inside_.pop_back();
  }

  // Not what it lies in.
  bool MayEnterAgain(const PyValue& value) {
    return !globs_.empty() && std::ranges::count(inside_, &value) == 0 &&
           (again_ += 1 + value.items.size()) <= kMaxAgain;
  }

  static size_t Count(const PyValue& value) { return value.items.size() / (value.is(PyKind::kDict) ? 2 : 1); }

  void PrintItems(const std::string& path, const PyValue& value, size_t depth) {
    const auto below = [&](const std::string& key, const PyValue& item) {
      Print(path.empty() ? key : path + "." + key, key, item, depth);
    };
    for (size_t i = 0; i < value.items.size(); ++i) {
      if (!value.is(PyKind::kDict))
        below(std::to_string(i), *value.items[i]);
      else if (i % 2 == 1)
        below(KeyText(*value.items[i - 1]), *value.items[i]);
    }
    for (const PyValue* part : {value.contents, value.state}) {
      if (!part || !value.is(PyKind::kObject)) continue;
      if (part->is(PyKind::kDict))
        PrintItems(path, *part, depth);
      else
        below("state", *part);
    }
  }

  const std::vector<std::string>& globs_;
  std::map<const PyValue*, std::string> shown_;
  std::vector<const PyValue*> inside_;  // from the root on
  size_t again_ = 0;
};

ordered_json Number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
}

class TreeJson {
 public:
  explicit TreeJson(const TorchFile& file) : file_(file) {}

  ordered_json Of(const PyValue& value, size_t depth = 0) {
    switch (value.kind) {
      case PyKind::kNone:
        return nullptr;
      case PyKind::kBool:
        return value.integer != 0;
      case PyKind::kInt:
        return value.integer;
      case PyKind::kFloat:
        return Number(value.real);
      case PyKind::kStr:
        return std::string(value.text);
      case PyKind::kBigInt:
      case PyKind::kBytes:
        return {{"bytes", value.text.size()}};
      case PyKind::kGlobal:
        return {{"global", value.ClassName()}};
      case PyKind::kStorage:
        return {{"storage", std::string(value.storage->key)}};
      case PyKind::kTensor:
        return OfTensor(*value.tensor);
      default:
        return OfContainer(value, depth);
    }
  }

 private:
  ordered_json OfTensor(const TensorRef& tensor) const {
    ordered_json json = {{"tensor", tensor.type->name},
                         {"shape", std::vector<uint64_t>(tensor.shape.begin(), tensor.shape.end())}};
    if (!tensor.contiguous())
      json["stride"] = std::vector<uint64_t>(tensor.stride.begin(), tensor.stride.end());
    if (!tensor.storage) return json;
    json["storage"] = std::string(tensor.storage->key);
    json["storage_offset"] = tensor.offset;
    if (const auto at = file_.Locate(tensor); at.ok())
      json["file_offset"] = *at + tensor.offset * tensor.type->bytes;
    return json;
  }

  ordered_json OfContainer(const PyValue& value, size_t depth) {
    const bool plain = std::ranges::all_of(value.items, [](const PyValue* i) { return IsPlain(*i); });
    if ((!shown_.insert(&value).second && !(plain && value.items.size() <= kMaxListed)) || depth == kMaxDepth)
      return {{"shared", true}};
    if (value.is(PyKind::kDict)) return OfDict(value, depth);
    ordered_json items = ordered_json::array();
    for (const PyValue* item : value.items) items.push_back(Of(*item, depth + 1));
    if (!value.is(PyKind::kObject)) return items;
    ordered_json object = {{"class", value.ClassName()}};
    if (!items.empty()) object["arguments"] = std::move(items);
    if (value.contents) object["contents"] = Of(*value.contents, depth + 1);
    if (value.state) object["state"] = Of(*value.state, depth + 1);
    return object;
  }

  ordered_json OfDict(const PyValue& dict, size_t depth) {
    ordered_json::object_t entries;  // a vector of pairs: push_back() looks no key up
    for (size_t i = 0; i + 1 < dict.items.size(); i += 2)
      entries.push_back({KeyText(*dict.items[i]), Of(*dict.items[i + 1], depth + 1)});
    return entries;
  }

  const TorchFile& file_;
  std::set<const PyValue*> shown_;
};

std::string_view Name(TorchContainer container) {
  return NameIn<TorchContainer::kPickle>({"zip", "stream", "pickle"}, container);
}

uint64_t StoredBytes(const TorchFile& file) {
  uint64_t bytes = 0;
  for (const auto& [key, storage] : file.storages()) bytes += storage.bytes;
  return bytes;
}

}  // namespace

void PrintTorchTree(const std::string& path, const TorchFile& file, const std::vector<std::string>& globs,
                    bool storages) {
  fmt::print("{}: torch.save ({}), {} storages, {}\n", path, Name(file.container()), file.storages().size(),
             HumanBytes(StoredBytes(file)));
  for (const SuspiciousGlobal& global : file.suspicious())
    fmt::print(
        "warning: {} at byte {} of its pickle would run in Python; do not load this file with pickle\n",
        Printable(global.name), global.offset);
  TreePrinter(globs).Print("", file.root());
  if (!storages) return;
  fmt::print("\n");
  TextTable table({"storage", "offset", "bytes"});
  for (const auto& [key, storage] : file.storages())
    table.Add({Printable(key), std::to_string(storage.file_offset), std::to_string(storage.bytes)});
  table.Print();
}

ordered_json TorchTreeJson(const std::string& path, const TorchFile& file) {
  ordered_json storages = ordered_json::array();
  for (const auto& [key, storage] : file.storages())
    storages.push_back({{"key", key}, {"file_offset", storage.file_offset}, {"bytes", storage.bytes}});
  ordered_json suspicious = ordered_json::array();
  for (const SuspiciousGlobal& global : file.suspicious())
    suspicious.push_back({{"global", global.name}, {"offset", global.offset}});
  return {{"file", path},
          {"container", Name(file.container())},
          {"suspicious", std::move(suspicious)},
          {"storages", std::move(storages)},
          {"tree", TreeJson(file).Of(file.root())}};
}

}  // namespace cairn
