#include "ckpt/run/step_tags.h"

#include <algorithm>
#include <cctype>

#include "ckpt/base/canonical_path.h"
#include "ckpt/io/replace_file.h"
#include "ckpt/model/layout.h"
#include "ckpt/run/deletion.h"
#include "ckpt/step/find_step.h"

namespace cairn {
namespace {

constexpr int kTagsVersion = 1;
constexpr uint64_t kMaxTagsBytes = 1 << 20;
constexpr size_t kMaxTagName = 64;

Result<std::vector<StepTag>> DecodeTags(const std::string& text) {
  const auto root = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) return Corrupt("not the JSON of tags; remove it to go without them");
  if (IntField(root, "version") > kTagsVersion)
    return NotSupported("of version {}; use a newer cairn", IntField(root, "version"));
  std::vector<StepTag> tags;
  const nlohmann::json entries = root.value("tags", nlohmann::json());
  for (const auto& [name, entry] : entries.items()) {
    tags.push_back({name, IntField(entry, "step"), TextField(entry, "manifest")});
    if (!IsTagName(name) || tags.back().manifest.empty())
      return Corrupt("its tag '{}' names no step; remove the file to go without tags", name);
  }
  return tags;
}

std::string TagsPath(const std::string& run_dir) { return JoinPath(run_dir, kTagsName); }

Status WriteTags(FileSystem& fs, const std::string& run_dir, const std::vector<StepTag>& tags) {
  nlohmann::json entries = nlohmann::json::object();
  for (const StepTag& tag : tags) entries[tag.name] = {{"manifest", tag.manifest}, {"step", tag.step}};
  const nlohmann::json root = {{"tags", std::move(entries)}, {"version", kTagsVersion}};
  return ReplaceSmallFile(fs, TagsPath(run_dir), root.dump(1) + "\n");
}

std::string TagList(const std::vector<StepTag>& tags) {
  std::string list;
  for (const StepTag& tag : tags) list += (list.empty() ? "" : ", ") + tag.name;
  return list.empty() ? "no tags" : "the tags " + list;
}

}  // namespace

bool IsTagName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxTagName && std::isalpha(static_cast<unsigned char>(name[0])) &&
         std::ranges::all_of(name, [](unsigned char c) {
           return (c < 128 && std::isalnum(c)) || c == '.' || c == '_' || c == '-';
         });
}

Result<std::vector<StepTag>> ReadTags(FileSystem& fs, const std::string& run_dir) {
  const Result<std::string> text = ReadSmallFile(fs, TagsPath(run_dir), kMaxTagsBytes);
  if (text.status().kind() == StatusKind::kNotFound) return std::vector<StepTag>();
  if (!text.ok()) return text.status();
  Result<std::vector<StepTag>> tags = DecodeTags(*text);
  return tags.ok() ? tags : tags.status().WithContext(TagsPath(run_dir));
}

std::vector<std::string> TagsOf(const std::vector<StepTag>& tags, std::string_view manifest) {
  std::vector<std::string> names;
  for (const StepTag& tag : tags)
    if (tag.manifest == manifest) names.push_back(tag.name);
  return names;
}

Status CheckUntagged(FileSystem& fs, const std::string& step_dir) {
  const std::string run_dir = ParentDir(step_dir);
  CAIRN_ASSIGN_OR_RETURN(const std::vector<StepTag> tags, ReadTags(fs, run_dir));
  if (tags.empty()) return OkStatus();
  Digest digest{};
  CAIRN_RETURN_IF_ERROR(ReadManifest(fs, step_dir, &digest).status());
  const std::vector<std::string> names = TagsOf(tags, ToHex(digest));
  if (names.empty()) return OkStatus();
  return InvalidArgument("{} is kept: it has the tag '{}'; cairn tag {}@{} --remove removes the tag",
                         step_dir, names.front(), run_dir, names.front());
}

std::string PlaceOfTag(FileSystem& fs, const std::string& run_dir, const StepTag& tag) {
  const Result<std::vector<std::string>> names = ListAtOnce(fs, run_dir);
  for (size_t i = 0; names.ok() && i < names->size(); ++i) {
    const std::string& name = (*names)[i];
    const bool superseded = ParseMarkedDirName(name) == "superseded";
    if (ParseStepDirName(superseded ? name.substr(0, name.find('.')) : name) != tag.step) continue;
    Digest digest{};
    if (ReadManifest(fs, JoinPath(run_dir, name), &digest).ok() && ToHex(digest) == tag.manifest)
      return JoinPath(run_dir, name);
  }
  return "";
}

Result<std::string> StepOfTag(FileSystem& fs, const std::string& run_dir, const std::string& name) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<StepTag> tags, ReadTags(fs, run_dir));
  const auto tag = std::ranges::find(tags, name, &StepTag::name);
  if (tag == tags.end()) return NotFound("{}: no tag '{}' in it; it has {}", run_dir, name, TagList(tags));
  std::string place = PlaceOfTag(fs, run_dir, *tag);
  if (!place.empty()) return place;
  return NotFound(
      "{}: step {}, which the tag '{}' names, is gone{}; cairn tag {}@{} --remove removes the tag", run_dir,
      tag->step, name,
      fs.Stat(JoinPath(run_dir, StepDirName(tag->step))).ok() ? ", and its number was saved again" : "",
      run_dir, name);
}

Status AddTag(FileSystem& fs, const std::string& step_dir, const std::string& name, bool dry_run) {
  if (!IsTagName(name))
    return InvalidArgument(
        "'{}' is not a name for a tag: a letter, then letters, digits, '.', '_' and '-', at most {}", name,
        kMaxTagName);
  const std::string path = CanonicalPath(step_dir), run_dir = ParentDir(path);
  const std::optional<int64_t> step = ParseStepDirName(LastName(path));
  if (!step) return InvalidArgument("{}: not a step in a run of Cairn; only these have tags", step_dir);
  CAIRN_ASSIGN_OR_RETURN(const DeletionLock lock, DeletionLock::Take(fs, run_dir));
  Digest digest{};
  CAIRN_RETURN_IF_ERROR(ReadManifest(fs, path, &digest).status());
  CAIRN_ASSIGN_OR_RETURN(std::vector<StepTag> tags, ReadTags(fs, run_dir));
  const StepTag tag{name, *step, ToHex(digest)};
  const auto known = std::ranges::find(tags, name, &StepTag::name);
  if (known != tags.end() && *known == tag) return OkStatus();
  if (known != tags.end())
    return AlreadyExists("{}: step {} has the tag '{}'; remove it first: cairn tag {}@{} --remove", run_dir,
                         known->step, name, run_dir, name);
  tags.push_back(tag);
  return dry_run ? OkStatus() : WriteTags(fs, run_dir, tags);
}

Status RemoveTag(FileSystem& fs, const std::string& run_dir, const std::string& name, bool dry_run) {
  CAIRN_ASSIGN_OR_RETURN(const DeletionLock lock, DeletionLock::Take(fs, run_dir));
  CAIRN_ASSIGN_OR_RETURN(std::vector<StepTag> tags, ReadTags(fs, run_dir));
  const std::string has = TagList(tags);
  if (std::erase_if(tags, [&](const StepTag& tag) { return tag.name == name; }) == 0)
    return NotFound("{}: no tag '{}' in it; it has {}", run_dir, name, has);
  return dry_run ? OkStatus() : WriteTags(fs, run_dir, tags);
}

}  // namespace cairn
