// The file is flattened to paths such as zero_optimization.stage. A path fills a flag, has no effect, or is
// unknown. Settings that stand for several flags or depend on others (fp16, offload, optimizer, scheduler)
// have separate functions. deepspeed_keys.h lists the paths. The values that "auto" stands for are those of
// transformers' integrations/deepspeed.py.
#include "runtime/config/deepspeed_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "ckpt/base/nearest_name.h"
#include "ckpt/io/strict_json.h"
#include "runtime/config/deepspeed_keys.h"

namespace cairn {
namespace {

using namespace deepspeed;
using Json = nlohmann::json;

constexpr uint64_t kMaxJsonBytes = 1 << 20;
constexpr double kLargestExact = 9007199254740992.0;  // 2^53

// Sizes for "auto", as transformers computes them, for a model of this width. The model may come from a
// checkpoint, which is read after the command line.
constexpr int64_t kAutoSize = std::numeric_limits<int64_t>::min();  // no size of a file or a flag
struct AutoSize {
  std::string_view flag;
  int64_t TrainConfig::*field;
  double (*size)(double width);
};
constexpr AutoSize kAutoSizes[] = {
    {"reduce-bucket-size", &TrainConfig::reduce_bucket_size, [](double width) { return width * width; }},
    {"stage3-prefetch-bucket-size", &TrainConfig::stage3_prefetch_bucket_size,
     [](double width) { return 0.9 * width * width; }},
    {"stage3-param-persistence-threshold", &TrainConfig::stage3_param_persistence_threshold,
     [](double width) { return 10 * width; }},
};

bool IsAuto(const Json& value) { return value.is_string() && value == "auto"; }

bool IsBelow(std::string_view path, std::string_view section) {
  return path.starts_with(section) && (path.size() == section.size() || path[section.size()] == '.');
}

// True if its "enabled" is not false, or if it is a plain value other than false and null.
bool IsOn(const Json& section) {
  if (!section.is_object()) return section != false && !section.is_null();
  if (section.contains("enabled")) return section["enabled"] != false;
  return std::ranges::any_of(section, [](const Json& part) { return part.is_object() && IsOn(part); });
}

template <typename Value>
requires std::is_integral_v<Value>
bool ReadNumber(const Json& json, Value& out) {
  if (!json.is_number()) return false;
  const double number = json.get<double>();  // DeepSpeed's files have 5e8 for whole numbers
  if (number != std::floor(number) || std::abs(number) > kLargestExact) return false;
  if (number < double(std::numeric_limits<Value>::min()) ||
      number > double(std::numeric_limits<Value>::max()))
    return false;
  out = static_cast<Value>(number);
  return true;
}

bool ReadJson(const Json& json, bool& out) { return json.is_boolean() && (out = json.get<bool>(), true); }
bool ReadJson(const Json& json, int& out) { return ReadNumber(json, out); }
bool ReadJson(const Json& json, int64_t& out) { return ReadNumber(json, out); }
bool ReadJson(const Json& json, double& out) { return json.is_number() && (out = json.get<double>(), true); }
bool ReadJson(const Json& json, std::string& out) {
  return json.is_string() && (out = json.get<std::string>(), true);
}
template <typename T>
bool ReadJson(const Json&, std::vector<T>&) {
  return false;
}

class DeepSpeedFile {
 public:
  DeepSpeedFile(std::string path, const std::vector<std::string_view>& given, TrainConfig& config)
      : path_(std::move(path)), given_(given.begin(), given.end()), config_(config) {}

  Status Apply(const Json& file) {
    Flatten("", file);
    CAIRN_RETURN_IF_ERROR(CheckPaths());
    CAIRN_RETURN_IF_ERROR(CheckSections(file));
    for (const JsonSetting& setting : kSettings) CAIRN_RETURN_IF_ERROR(Take(setting));
    CAIRN_RETURN_IF_ERROR(TakeLossScale());
    CAIRN_RETURN_IF_ERROR(TakeOffload("zero_optimization.offload_optimizer", "offload-optimizer"));
    CAIRN_RETURN_IF_ERROR(TakeOffload("zero_optimization.offload_param", "offload-param"));
    CAIRN_RETURN_IF_ERROR(TakeOptimizer());
    CAIRN_RETURN_IF_ERROR(TakeScheduler());
    if (!harmless_.empty())
      config_.notes.push_back(
          fmt::format("{}: {} have no effect here: they tune DeepSpeed's own implementation", path_,
                      fmt::join(harmless_, ", ")));
    return OkStatus();
  }

 private:
  void Flatten(const std::string& prefix, const Json& object) {
    for (const auto& [key, value] : object.items()) {
      const std::string path = prefix + key;
      if (value.is_object() && std::ranges::find(kSwitchedOff, path) == std::end(kSwitchedOff))
        Flatten(path + ".", value);
      else
        values_[path] = value;
    }
  }

  const Json* Find(std::string_view path) const {
    const auto found = values_.find(path);
    return found == values_.end() || IsAuto(found->second) || found->second.is_null() ? nullptr
                                                                                      : &found->second;
  }

  Status CheckPaths() {
    std::vector<std::string> known;
    for (const JsonSetting& setting : kSettings) known.emplace_back(setting.path);
    for (const JsonSetting& setting : kLossScale) known.emplace_back(setting.path);
    for (const OnlyValue& only : kOnly) known.emplace_back(only.path);
    known.insert(known.end(), std::begin(kOwn), std::end(kOwn));
    known.insert(known.end(), std::begin(kSwitchedOff), std::end(kSwitchedOff));
    for (const auto& [path, value] : values_) {
      if (std::ranges::find(known, path) != known.end()) continue;
      const auto is_below = [&](std::string_view section) { return IsBelow(path, section); };
      if (std::ranges::any_of(kHarmless, is_below)) {
        harmless_.push_back(path);
        continue;
      }
      known.insert(known.end(), std::begin(kHarmless), std::end(kHarmless));
      const std::string nearest = NearestName(known, path);
      return InvalidArgument("{}: unknown key '{}'{}", path_, path,
                             nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest));
    }
    return OkStatus();
  }

  Status CheckSections(const Json& file) const {
    for (const std::string_view section : kSwitchedOff)
      if (const auto found = file.find(section); found != file.end() && IsOn(*found))
        return NotSupported("{}: {} is not supported", path_, section);
    for (const OnlyValue& only : kOnly)
      if (const Json* value = Find(only.path); value && *value != Json::parse(only.value))
        return NotSupported("{}: {} is {}; only {} is supported", path_, only.path, value->dump(),
                            only.value);
    return OkStatus();
  }

  Status Take(const JsonSetting& setting) {
    const Json* value = Find(setting.path);
    if (value) return Fill(setting, *value);
    const auto written = values_.find(setting.path);
    if (written != values_.end() && IsAuto(written->second)) TakeAuto(setting.flag);
    return OkStatus();
  }

  // The sizes that FillAutoSizes knows; every other "auto" leaves the value to the command line.
  void TakeAuto(std::string_view flag) {
    for (const AutoSize& size : kAutoSizes)
      if (size.flag == flag && !IsGiven(flag)) config_.*size.field = kAutoSize;
  }

  bool IsGiven(std::string_view flag) const { return std::ranges::find(given_, flag) != given_.end(); }

  Status Fill(const JsonSetting& setting, const Json& value) {
    const Flag& flag = *FindTrainFlag(setting.flag);
    return std::visit([&](auto field) { return FillField(setting, value, flag, config_.*field); },
                      flag.field);
  }

  template <typename T>
  Status FillField(const JsonSetting& setting, const Json& value, const Flag& flag, T& field) {
    T read{};
    if (!ReadJson(value, read))
      return InvalidArgument("{}: {} is {}, which is not a valid value of --{}", path_, setting.path,
                             value.dump(), setting.flag);
    if (IsGiven(setting.flag) && read != field) {
      if (setting.if_both == IfBoth::kMustAgree)
        return InvalidArgument("{}: {} is {}, but {} is given; they must agree", path_, setting.path,
                               value.dump(), FlagText(flag, config_));
      config_.notes.push_back(
          fmt::format("{} has no effect: as in DeepSpeed, {} takes precedence, and its {} is {}",
                      FlagText(flag, config_), path_, setting.path, value.dump()));
    }
    field = read;
    given_.emplace_back(setting.flag);
    return OkStatus();
  }

  // DeepSpeed's loss scale starts lower than Megatron's by default.
  Status TakeLossScale() {
    if (!config_.fp16) return OkStatus();
    constexpr int kDefaultPower = 16;
    for (const JsonSetting& setting : kLossScale) {
      const Json* value = Find(setting.path);
      if (setting.path != "fp16.initial_scale_power") {
        if (value) CAIRN_RETURN_IF_ERROR(Fill(setting, *value));
        continue;
      }
      if (!value && (IsGiven(setting.flag) || !Find("fp16.enabled"))) continue;
      int power = kDefaultPower;
      if (value && !ReadJson(*value, power))
        return InvalidArgument("{}: {} is {}; it must be a whole number", path_, setting.path, value->dump());
      CAIRN_RETURN_IF_ERROR(Fill(setting, std::exp2(power)));
    }
    return OkStatus();
  }

  Status TakeOffload(const std::string& section, std::string_view flag) {
    const Json* device = Find(section + ".device");
    if (!device) return OkStatus();
    if (*device == "nvme")
      return NotSupported("{}: {}.device is nvme; only none and cpu are supported", path_, section);
    if (*device != "none" && *device != "cpu")
      return InvalidArgument("{}: {}.device is {}; it must be none or cpu", path_, section, device->dump());
    const std::string path = section + ".device";
    CAIRN_RETURN_IF_ERROR(Fill({path, flag}, *device == "cpu"));
    return OkStatus();
  }

  Status TakeOptimizer() {
    const Json* type = Find("optimizer.type");
    if (!type) return OkStatus();
    std::string name = type->is_string() ? type->get<std::string>() : "";
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    if (name != "adam" && name != "adamw" && name != "sgd")
      return NotSupported("{}: optimizer.type is {}; only Adam, AdamW and SGD are supported", path_,
                          type->dump());
    CAIRN_RETURN_IF_ERROR(Fill({"optimizer.type", "optimizer"}, name == "sgd" ? "sgd" : "adam"));
    const JsonSetting rows[] = {{"optimizer.params.lr", "lr"},
                                {"optimizer.params.eps", "adam-eps"},
                                {"optimizer.params.weight_decay", "weight-decay"},
                                {"optimizer.params.momentum", "sgd-momentum"}};
    for (const JsonSetting& row : rows) CAIRN_RETURN_IF_ERROR(Take(row));
    const Json* betas = Find("optimizer.params.betas");
    if (!betas) return OkStatus();
    if (!betas->is_array() || betas->size() != 2)
      return InvalidArgument("{}: optimizer.params.betas is {}; it must be two numbers", path_,
                             betas->dump());
    CAIRN_RETURN_IF_ERROR(Fill({"optimizer.params.betas", "adam-beta1"}, (*betas)[0]));
    return Fill({"optimizer.params.betas", "adam-beta2"}, (*betas)[1]);
  }

  // WarmupLR stays at its highest rate, WarmupDecayLR falls to 0. Both rise by the logarithm of the step
  // unless warmup_type is linear.
  Status TakeScheduler() {
    const Json* type = Find("scheduler.type");
    if (!type) return OkStatus();
    const bool decays = *type == "WarmupDecayLR";
    if (!decays && *type != "WarmupLR")
      return NotSupported("{}: scheduler.type is {}; only WarmupLR and WarmupDecayLR are supported", path_,
                          type->dump());
    CAIRN_RETURN_IF_ERROR(Fill({"scheduler.type", "lr-decay-style"}, decays ? "linear" : "constant"));
    const JsonSetting rows[] = {{"scheduler.params.warmup_min_lr", "lr-warmup-init"},
                                {"scheduler.params.warmup_max_lr", "lr"},
                                {"scheduler.params.warmup_num_steps", "lr-warmup-iters"},
                                {"scheduler.params.warmup_type", "lr-warmup-style"},
                                {"scheduler.params.total_num_steps", "lr-decay-iters"}};
    for (const JsonSetting& row : rows) CAIRN_RETURN_IF_ERROR(Take(row));
    if (!Find("scheduler.params.warmup_type") && !IsGiven("lr-warmup-style")) config_.lr_warmup_style = "log";
    return OkStatus();
  }

  const std::string path_;
  std::vector<std::string> given_;
  TrainConfig& config_;
  std::map<std::string, Json, std::less<>> values_;
  std::vector<std::string> harmless_;
};

}  // namespace

Status ApplyDeepSpeedFile(const std::string& path, const std::vector<std::string_view>& given,
                          TrainConfig& config) {
  CAIRN_ASSIGN_OR_RETURN(const Json file, ReadJsonObject(FileSystem::Posix(), path, kMaxJsonBytes));
  return DeepSpeedFile(path, given, config).Apply(file);
}

void FillAutoSizes(TrainConfig& config) {
  for (const AutoSize& size : kAutoSizes)
    if (config.*size.field == kAutoSize)
      config.*size.field = static_cast<int64_t>(size.size(config.hidden_size));
}

}  // namespace cairn
