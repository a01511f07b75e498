#include "ckpt/io/strict_json.h"

#include <nlohmann/json.hpp>
#include <vector>

namespace cairn {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 16;

// Builds the value, and refuses what is not strict.
class Builder final : public nlohmann::json_sax<json> {
 public:
  // row: of each member of the object `rows`; `rows` is empty if the caller wants no rows.
  Builder(int max_depth, std::string_view rows, JsonRow row)
      : max_depth_(max_depth), rows_(rows), row_(std::move(row)) {}

  bool null() override { return Put(nullptr); }
  bool boolean(bool value) override { return Put(value); }
  bool number_integer(number_integer_t value) override { return Put(value); }
  bool number_unsigned(number_unsigned_t value) override { return Put(value); }
  bool number_float(number_float_t value, const string_t&) override { return Put(value); }
  bool string(string_t& value) override { return Put(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // JSON has none
  bool start_object(size_t) override { return Enter(json::value_t::object); }
  bool start_array(size_t) override { return Enter(json::value_t::array); }
  bool end_object() override { return Leave(); }
  bool end_array() override { return Leave(); }
  bool key(string_t& key) override {
    if (AtRow()) {
      row_key_ = std::move(key);
      next_ = &row_value_;
      return true;
    }
    const auto [at, added] = open_.back()->get_ref<json::object_t&>().try_emplace(key);
    next_ = &at->second;
    if (open_.size() == 1) in_rows_ = row_ && key == rows_;
    return added || Fail(Corrupt("the key \"{}\" occurs twice", key));
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return Fail(Corrupt("not JSON at byte {}", position));
  }

  Result<json> Take() {
    if (!status_.ok()) return status_;
    return std::move(root_);
  }

 private:
  bool AtRow() const { return in_rows_ && open_.size() == 2 && open_.back()->is_object(); }
  // Where the next value belongs. Containers that are open do not move: only the last one grows.
  json* Place() {
    if (open_.empty()) return &root_;
    return open_.back()->is_array() ? &open_.back()->get_ref<json::array_t&>().emplace_back() : next_;
  }
  bool Put(json value) {
    *Place() = std::move(value);
    return Finished();
  }
  bool Enter(json::value_t kind) {
    json* const place = Place();
    *place = json(kind);
    open_.push_back(place);
    return static_cast<int>(open_.size()) <= max_depth_ ||
           Fail(Corrupt("it is nested more than {} levels deep", max_depth_));
  }
  bool Leave() {
    open_.pop_back();
    return Finished();
  }
  bool Finished() {
    if (!AtRow()) return true;
    Status status = row_(std::move(row_key_), std::move(row_value_));
    return status.ok() || Fail(std::move(status));
  }
  bool Fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
    return false;
  }

  const int max_depth_;
  const std::string_view rows_;
  const JsonRow row_;
  json root_;
  std::vector<json*> open_;  // the objects and arrays around the next value
  json* next_ = nullptr;     // of the last key
  bool in_rows_ = false;     // the last key of the outermost object was `rows_`
  std::string row_key_;
  json row_value_;
  Status status_;
};

Result<json> Parse(std::string_view text, int max_depth, std::string_view rows, const JsonRow& row) {
  Builder builder(max_depth, rows, row);
  (void)json::sax_parse(text.begin(), text.end(), &builder);
  return builder.Take();
}

}  // namespace

Result<json> ParseStrictJson(std::string_view text, int max_depth) { return Parse(text, max_depth, {}, {}); }

Result<json> ParseJsonRows(std::string_view text, std::string_view rows, const JsonRow& row) {
  return Parse(text, kMaxDepth, rows, row);
}

Result<json> ReadJsonObject(FileSystem& fs, const std::string& path, uint64_t max_bytes) {
  CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(fs, path, max_bytes));
  Result<json> value = ParseStrictJson(text);
  if (!value.ok()) return value.status().WithContext(path);
  if (!value->is_object()) return Corrupt("{}: not a JSON object", path);
  return value;
}

}  // namespace cairn
