// The file is flattened to paths such as zero_optimization.stage. A path fills a flag, has no effect, or is
// unknown. Settings that stand for several flags or depend on others (fp16, offload, optimizer, scheduler)
// have separate functions. The values that "auto" stands for are those of transformers'
// integrations/deepspeed.py.
//
// deepspeed.json lists the paths, after DeepSpeed's runtime/config.py, runtime/constants.py,
// runtime/zero/config.py, runtime/precision_config.py and runtime/lr_schedules.py, versions 0.3 to 0.19.
// Groups of a path and its flag: `settings`, `loss_scale` (only under fp16), `optimizer`, `scheduler`. Lists:
// `file_counts`, for which the file wins over a flag; `own`, which have functions here; `harmless`, which
// only tune DeepSpeed's implementation or its log, a section with all below it. What changes a training and
// is not supported: `only` has the one value that is accepted, `switched_off` the sections that must be off,
// with any content.
#include "runtime/config/deepspeed_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "ckpt/base/nearest_name.h"
#include "ckpt/io/strict_json.h"
#include "config_texts.h"

namespace cairn {
namespace {

using Json = nlohmann::json;

// A group of deepspeed.json, in its order.
const nlohmann::ordered_json& Known(const char* group) {
  static const auto kKnown = nlohmann::ordered_json::parse(kDeepspeedText);
  return kKnown.at(group);
}

std::vector<std::string> PathsOf(std::initializer_list<const char*> groups) {
  std::vector<std::string> paths;
  for (const char* group : groups)
    for (const auto& [path, value] : Known(group).items())
      paths.push_back(Known(group).is_array() ? value.get<std::string>() : path);
  return paths;
}

bool IsAmong(const std::string& path, const char* group) {
  return std::ranges::any_of(Known(group), [&](const auto& each) { return each == path; });
}

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
    CAIRN_RETURN_IF_ERROR(TakeAll("settings"));
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
      if (value.is_object() && !IsAmong(path, "switched_off"))
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
    std::vector<std::string> known =
        PathsOf({"settings", "loss_scale", "only", "own", "optimizer", "scheduler", "switched_off"});
    const std::vector<std::string> harmless = PathsOf({"harmless"});
    for (const auto& [path, value] : values_) {
      if (std::ranges::find(known, path) != known.end()) continue;
      const auto is_below = [&](std::string_view section) { return IsBelow(path, section); };
      if (std::ranges::any_of(harmless, is_below)) {
        harmless_.push_back(path);
        continue;
      }
      known.insert(known.end(), harmless.begin(), harmless.end());
      const std::string nearest = NearestName(known, path);
      return InvalidArgument("{}: unknown key '{}'{}", path_, path,
                             nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest));
    }
    return OkStatus();
  }

  Status CheckSections(const Json& file) const {
    for (const std::string& section : PathsOf({"switched_off"}))
      if (const auto found = file.find(section); found != file.end() && IsOn(*found))
        return NotSupported("{}: {} is not supported", path_, section);
    for (const auto& [path, only] : Known("only").items())
      if (const Json* value = Find(path); value && *value != Json(only))
        return NotSupported("{}: {} is {}; only {} is supported", path_, path, value->dump(), only.dump());
    return OkStatus();
  }

  Status TakeAll(const char* group) {
    for (const auto& [path, flag] : Known(group).items())
      CAIRN_RETURN_IF_ERROR(Take(path, flag.get<std::string>()));
    return OkStatus();
  }

  Status Take(const std::string& path, const std::string& flag) {
    const Json* value = Find(path);
    if (value) return Fill(path, flag, *value);
    const auto written = values_.find(path);
    if (written != values_.end() && IsAuto(written->second)) TakeAuto(flag);
    return OkStatus();
  }

  // The sizes that FillAutoSizes knows; every other "auto" leaves the value to the command line.
  void TakeAuto(std::string_view flag) {
    for (const AutoSize& size : kAutoSizes)
      if (size.flag == flag && !IsGiven(flag)) config_.*size.field = kAutoSize;
  }

  bool IsGiven(std::string_view flag) const { return std::ranges::find(given_, flag) != given_.end(); }

  Status Fill(const std::string& path, const std::string& flag, const Json& value) {
    return std::visit(
        [&](auto field) { return FillField(path, *FindTrainFlag(flag), value, config_.*field); },
        FindTrainFlag(flag)->field);
  }

  template <typename T>
  Status FillField(const std::string& path, const Flag& flag, const Json& value, T& field) {
    T read{};
    if (!ReadJson(value, read))
      return InvalidArgument("{}: {} is {}, which is not a valid value of --{}", path_, path, value.dump(),
                             flag.name);
    if (IsGiven(flag.name) && read != field) {
      if (!IsAmong(path, "file_counts"))
        return InvalidArgument("{}: {} is {}, but {} is given; they must agree", path_, path, value.dump(),
                               FlagText(flag, config_));
      config_.notes.push_back(
          fmt::format("{} has no effect: as in DeepSpeed, {} takes precedence, and its {} is {}",
                      FlagText(flag, config_), path_, path, value.dump()));
    }
    field = read;
    given_.push_back(flag.name);
    return OkStatus();
  }

  // DeepSpeed's loss scale starts lower than Megatron's by default.
  Status TakeLossScale() {
    if (!config_.fp16) return OkStatus();
    constexpr int kDefaultPower = 16;
    for (const auto& [path, flag] : Known("loss_scale").items()) {
      const Json* value = Find(path);
      if (path != "fp16.initial_scale_power") {
        if (value) CAIRN_RETURN_IF_ERROR(Fill(path, flag.get<std::string>(), *value));
        continue;
      }
      if (!value && (IsGiven(flag.get<std::string>()) || !Find("fp16.enabled"))) continue;
      int power = kDefaultPower;
      if (value && !ReadJson(*value, power))
        return InvalidArgument("{}: {} is {}; it must be a whole number", path_, path, value->dump());
      CAIRN_RETURN_IF_ERROR(Fill(path, flag.get<std::string>(), std::exp2(power)));
    }
    return OkStatus();
  }

  Status TakeOffload(const std::string& section, const std::string& flag) {
    const Json* device = Find(section + ".device");
    if (!device) return OkStatus();
    if (*device == "nvme")
      return NotSupported("{}: {}.device is nvme; only none and cpu are supported", path_, section);
    if (*device != "none" && *device != "cpu")
      return InvalidArgument("{}: {}.device is {}; it must be none or cpu", path_, section, device->dump());
    return Fill(section + ".device", flag, *device == "cpu");
  }

  Status TakeOptimizer() {
    const Json* type = Find("optimizer.type");
    if (!type) return OkStatus();
    std::string name = type->is_string() ? type->get<std::string>() : "";
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    if (name != "adam" && name != "adamw" && name != "sgd")
      return NotSupported("{}: optimizer.type is {}; only Adam, AdamW and SGD are supported", path_,
                          type->dump());
    CAIRN_RETURN_IF_ERROR(Fill("optimizer.type", "optimizer", name == "sgd" ? "sgd" : "adam"));
    CAIRN_RETURN_IF_ERROR(TakeAll("optimizer"));
    const Json* betas = Find("optimizer.params.betas");
    if (!betas) return OkStatus();
    if (!betas->is_array() || betas->size() != 2)
      return InvalidArgument("{}: optimizer.params.betas is {}; it must be two numbers", path_,
                             betas->dump());
    CAIRN_RETURN_IF_ERROR(Fill("optimizer.params.betas", "adam-beta1", (*betas)[0]));
    return Fill("optimizer.params.betas", "adam-beta2", (*betas)[1]);
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
    CAIRN_RETURN_IF_ERROR(Fill("scheduler.type", "lr-decay-style", decays ? "linear" : "constant"));
    CAIRN_RETURN_IF_ERROR(TakeAll("scheduler"));
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
