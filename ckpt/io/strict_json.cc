#include "ckpt/io/strict_json.h"

#include <nlohmann/json.hpp>
#include <set>

namespace cairn {
namespace {

using nlohmann::json;

// Accepts or refuses; builds nothing.
class Checker final : public nlohmann::json_sax<json> {
 public:
  explicit Checker(int max_depth) : max_depth_(max_depth) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return Enter(); }
  bool start_array(size_t) override { return Enter(); }
  bool end_object() override { return Leave(); }
  bool end_array() override { return Leave(); }
  bool key(string_t& key) override {
    return keys_.back().insert(key).second || Fail("the key \"" + key + "\" occurs twice");
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return Fail(fmt::format("not JSON at byte {}", position));
  }

  Status status() const { return error_.empty() ? OkStatus() : Corrupt("{}", error_); }

 private:
  bool Enter() {
    keys_.emplace_back();
    return static_cast<int>(keys_.size()) <= max_depth_ ||
           Fail(fmt::format("it is nested more than {} levels deep", max_depth_));
  }
  bool Leave() {
    keys_.pop_back();
    return true;
  }
  bool Fail(std::string error) {
    error_ = std::move(error);
    return false;
  }

  const int max_depth_;
  std::vector<std::set<std::string>> keys_;  // of each object or array that is open
  std::string error_;
};

}  // namespace

Result<json> ParseStrictJson(std::string_view text, int max_depth) {
  Checker checker(max_depth);
  if (!json::sax_parse(text.begin(), text.end(), &checker)) return checker.status();
  return json::parse(text.begin(), text.end());
}

Result<json> ReadJsonObject(FileSystem& fs, const std::string& path, uint64_t max_bytes) {
  CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(fs, path, max_bytes));
  Result<json> value = ParseStrictJson(text);
  if (!value.ok()) return value.status().WithContext(path);
  if (!value->is_object()) return Corrupt("{}: not a JSON object", path);
  return value;
}

}  // namespace cairn
