// A file of torch.save taken apart, and written again with one entry less or one more: as if a reader
// forgot an entry, or an unknown program added one.
//
// For files as Cairn itself writes them: zips whose storages are data/0, data/1, ..., and bare pickles.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <set>
#include <string>
#include <vector>

#include "convert/torch/tensor_walk.h"
#include "convert/torch/torch_file.h"
#include "convert/torch/zip_layout.h"

namespace cairn {

class EditedTorch {
 public:
  static constexpr uint64_t kSecretElements = 5;  // of the tensor "secret" that is put in, fp32

  // An item of a dict, list or tuple, with everything below it.
  struct Slot {
    const PyValue* holder;
    size_t item;  // a dict: of its key
    std::string path;
  };

  EditedTorch(FileSystem& fs, std::string path) : fs_(fs), path_(std::move(path)) {
    auto bytes = ReadSmallFile(fs_, path_, 64 << 20);
    auto file = TorchFile::Open(fs_, "", path_);
    if (!bytes.ok() || !file.ok()) throw std::runtime_error(path_ + " does not open");
    bytes_ = std::move(bytes).value();
    file_.emplace(std::move(file).value());
    if (file_->container() == TorchContainer::kPickle)
      for (const char* name : {"state_dict_metadata", "storage_data"}) {
        const PyValue* entries = Find(file_->root(), name);
        for (size_t i = 0; entries && i < entries->items.size(); i += 2)
          slots_.push_back({entries, i, std::string(name) + "." + KeyOf(*entries->items[i])});
      }
    else
      FindSlots(file_->root(), "");
  }

  // Those with a tensor in them, the outer before the inner ones; of .metadata the entries.
  const std::vector<Slot>& slots() const { return slots_; }

  const PyValue& root() const { return file_->root(); }

  void WriteWithout(const Slot& slot) { Write({.without = &slot}); }
  // A tensor "secret" as one entry more of a dict.
  void WriteWithSecret(const PyValue& dict) { Write({.beside = &dict}); }
  // The same as a text.
  void WriteWithWord(const PyValue& dict) { Write({.beside = &dict, .word = true}); }
  void Restore() { ASSERT_TRUE(Replace(bytes_)); }

 private:
  struct Change {
    const Slot* without = nullptr;
    const PyValue* beside = nullptr;
    bool word = false;
  };

  static std::string KeyOf(const PyValue& key) {
    if (const PyValue* name = Find(key, "fqn"))  // a MetadataIndex
      return std::string(AsText(name).value_or("?"));
    return KeyText(key);
  }

  bool FindSlots(const PyValue& value, const std::string& path) {
    if (value.is(PyKind::kTensor)) return true;
    bool found = false;
    const bool dict = value.is(PyKind::kDict);
    for (size_t i = 0; i < value.items.size(); i += dict ? 2 : 1) {
      const std::string inner =
          path + (path.empty() ? "" : ".") + (dict ? KeyOf(*value.items[i]) : std::to_string(i));
      const size_t before = slots_.size();
      if (!FindSlots(*value.items[i + (dict ? 1 : 0)], inner)) continue;
      found = true;
      slots_.insert(slots_.begin() + static_cast<ptrdiff_t>(before), {&value, i, inner});
    }
    for (const PyValue* more : {value.state, value.contents})
      if (more) found |= FindSlots(*more, path);
    return found;
  }

  void Little(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out_ += static_cast<char>(value >> 8 * i);
  }
  void Text(std::string_view text) {
    out_ += 'X';
    Little(text.size(), 4);
    out_ += text;
  }
  void Int(uint64_t value) {
    out_ += "\x8a\x08";
    Little(value, 8);
  }
  void Global(std::string_view module, std::string_view name) {
    out_.append("c").append(module).append("\n").append(name).append("\n");
  }
  void Sizes(const Dims& dims) {
    out_ += '(';
    for (const uint64_t size : dims) Int(size);
    out_ += 't';
  }

  void EmitTensor(std::string_view storage_class, std::string_view key, uint64_t elements, uint64_t offset,
                  const Dims& shape, const Dims& stride) {
    used_.insert(std::string(key));
    Global("torch._utils", "_rebuild_tensor_v2");
    out_ += "((";
    Text("storage");
    Global("torch", storage_class);
    Text(key);
    Text("cpu");
    Int(elements);
    out_ += "tQ";
    Int(offset);
    Sizes(shape);
    Sizes(stride);
    out_ += "\x89}tR";
  }

  void EmitItems(const PyValue& value, const Change& change) {
    const size_t step = value.is(PyKind::kDict) ? 2 : 1;
    for (size_t i = 0; i < value.items.size(); i += step) {
      if (change.without && change.without->holder == &value && change.without->item == i) continue;
      for (size_t j = i; j < i + step; ++j) Emit(*value.items[j], change);
    }
    if (change.beside != &value) return;
    Text("secret");
    if (change.word) return Text("on");
    EmitTensor("FloatStorage", std::to_string(file_->storages().size()), kSecretElements, 0,
               {kSecretElements}, {1});
  }

  void Emit(const PyValue& value, const Change& change) {
    switch (value.kind) {
      case PyKind::kNone:
        out_ += 'N';
        return;
      case PyKind::kBool:
        out_ += value.integer ? '\x88' : '\x89';
        return;
      case PyKind::kInt:
        return Int(static_cast<uint64_t>(value.integer));
      case PyKind::kFloat:
        out_ += 'G';
        for (int i = 7; i >= 0; --i) out_ += static_cast<char>(std::bit_cast<uint64_t>(value.real) >> 8 * i);
        return;
      case PyKind::kStr:
        return Text(value.text);
      case PyKind::kList:
        out_ += "](";
        EmitItems(value, change);
        out_ += 'e';
        return;
      case PyKind::kTuple:
        out_ += '(';
        EmitItems(value, change);
        out_ += 't';
        return;
      case PyKind::kDict:
        out_ += "}(";
        EmitItems(value, change);
        out_ += 'u';
        return;
      case PyKind::kGlobal:
        return Global(value.module, value.text);
      case PyKind::kObject:
        Global(value.module, value.text);
        out_ += '(';
        EmitItems(value, change);
        out_ += "tR";
        ASSERT_EQ(value.contents, nullptr) << value.ClassName();
        if (value.state) Emit(*value.state, change), out_ += 'b';
        return;
      case PyKind::kTensor: {
        const TensorRef& tensor = *value.tensor;
        return EmitTensor(tensor.storage->type->storage, tensor.storage->key, tensor.storage->elements,
                          tensor.offset, tensor.shape, tensor.stride);
      }
      default:
        FAIL() << path_ << " has a value of kind " << static_cast<int>(value.kind);
    }
  }

  // Storages that no tensor names any more are empty.
  void Write(const Change& change) {
    out_ = "\x80\x02";
    used_.clear();
    Emit(file_->root(), change);
    out_ += '.';
    if (file_->container() == TorchContainer::kPickle) {
      ASSERT_TRUE(Replace(out_));
      return;
    }
    std::vector<uint64_t> sizes;
    for (size_t i = 0; i < file_->storages().size(); ++i)
      sizes.push_back(used_.contains(std::to_string(i)) ? file_->storages().at(std::to_string(i)).bytes : 0);
    if (change.beside && !change.word) sizes.push_back(kSecretElements * sizeof(float));
    const ZipLayout zip("edited", out_, sizes);
    std::string bytes(zip.bytes(), '\0');
    for (const PlacedBytes& around : zip.Around({.crcs = std::vector<uint32_t>(sizes.size())}))
      bytes.replace(around.offset, around.bytes.size(), around.bytes);
    for (size_t i = 0; i < file_->storages().size(); ++i)
      bytes.replace(zip.storage_offset(i), sizes[i], bytes_,
                    file_->storages().at(std::to_string(i)).file_offset, sizes[i]);
    ASSERT_TRUE(Replace(bytes));
  }

  bool Replace(const std::string& bytes) {
    return fs_.RemoveFile(path_).ok() && WriteSmallFile(fs_, path_, bytes).ok();
  }

  FileSystem& fs_;
  const std::string path_;
  std::string bytes_;
  std::optional<TorchFile> file_;
  std::vector<Slot> slots_;
  std::string out_;
  std::set<std::string> used_;
};

}  // namespace cairn
