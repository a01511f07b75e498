// Decoding limits the depth, checks the version, reads the fields, and then encodes them again: the result
// must be the same bytes. This one comparison checks the digest, and that nothing was added, reordered or out
// of range. The topology and the names of files may still be harmful, so they are validated after it.

#include "ckpt/model/manifest.h"

#include <algorithm>
#include <limits>

#include "ckpt/io/file_system.h"
#include "ckpt/model/layout.h"

namespace cairn {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 64;  // copying and printing recurse and would overflow the stack

int VersionOf(const Manifest& m) {
  if (!m.descent.first_steps.empty()) return 3;
  if (m.descent.origin || !m.descent.branches.empty()) return 4;
  return m.shards.empty() ? 1 : 2;
}

json WithoutDigest(const Manifest& m) {
  json files = json::array();
  for (const ManifestFile& file : m.files)
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"digest", ToHex(file.digest)}});
  json root = {
      {"format", "cairn"},
      {"version", VersionOf(m)},
      {"run", m.run},
      {"step", m.step},
      {"topology", TopologyJson(m.topology)},
      {"model", m.model},
      {"state", m.state},
      {"history", m.history},
      {"files", std::move(files)},
      {"catalog",
       {{"offset", m.catalog_offset}, {"bytes", m.catalog_bytes}, {"digest", ToHex(m.catalog_digest)}}},
  };
  if (!m.shards.empty()) root["shards"] = m.shards;
  root.update(DescentJson(m.descent));
  return root;
}

std::string Dump(const json& value) { return value.dump(1) + "\n"; }

// json::at and get throw; DecodeManifest turns that into one Status.
Digest DigestAt(const json& object) {
  const std::optional<Digest> digest = ParseHex(object.at("digest").get<std::string>());
  if (!digest) throw json::other_error::create(600, "a digest is 32 hex digits", nullptr);
  return *digest;
}

// Fractions are refused: one that is too large for an integer cannot be converted.
template <typename T>
T IntegerOf(const json& value) {
  if (!value.is_number_integer()) throw json::other_error::create(600, "a number is not an integer", nullptr);
  return value.get<T>();
}

// Version 3 lists the first step of each later branch. Such a branch descends from everything before that
// number.
std::vector<EarlierBranch> BranchesFrom(const std::vector<int64_t>& first_steps) {
  std::vector<EarlierBranch> branches(first_steps.size());
  int64_t lowest = std::numeric_limits<int64_t>::max();
  for (size_t i = first_steps.size(); i-- > 0;) {
    lowest = std::min(lowest, first_steps[i]);
    branches[i].last = std::max<int64_t>(lowest, 0) - 1;
  }
  return branches;
}

Topology TopologyFromJson(const json& object) {
  const auto number = [&](const char* key) { return IntegerOf<int>(object.at(key)); };
  Topology topology{number("tp"), number("pp"), number("dp"), number("zero")};
  if (object.contains("virtual_stages")) topology.virtual_stages = number("virtual_stages");
  if (object.contains("ep")) topology.ep = number("ep");
  if (object.contains("etp")) topology.etp = number("etp");
  if (const auto layers = object.find("layers_per_stage"); layers != object.end())
    for (const json& count : *layers) topology.layers_per_stage.push_back(IntegerOf<int>(count));
  return topology;
}

Manifest FromJson(const json& root) {
  Manifest m;
  m.run = root.at("run");
  m.step = IntegerOf<int64_t>(root.at("step"));
  m.descent = DescentAt(root);
  m.topology = TopologyFromJson(root.at("topology"));
  m.state = root.at("state");
  m.history = root.at("history");
  const json& model = root.at("model");
  if (!model.is_object() || !m.state.is_object() || !m.history.is_array())
    throw json::other_error::create(600, "model and state are objects, history is an array", nullptr);
  m.model = Model(model);
  for (const json& file : root.at("files"))
    m.files.push_back({file.at("name"), IntegerOf<uint64_t>(file.at("bytes")), DigestAt(file)});
  m.shards = root.value("shards", std::string());
  const json& catalog = root.at("catalog");
  m.catalog_offset = IntegerOf<uint64_t>(catalog.at("offset"));
  m.catalog_bytes = IntegerOf<uint64_t>(catalog.at("bytes"));
  m.catalog_digest = DigestAt(catalog);
  return m;
}

Status CheckVersion(const json& root) {
  if (!root.is_object() || root.value("format", json()) != "cairn")
    return Corrupt("not the manifest of a Cairn checkpoint");
  const json version = root.value("version", json());
  if (!version.is_number_integer()) return Corrupt("no format version");
  if (version < 1 || version > kFormatVersion)
    return NotSupported("format version {}, this program reads versions up to {}; use a newer cairn",
                        version.dump(), kFormatVersion);
  return OkStatus();
}

}  // namespace

uint64_t Manifest::bytes() const {
  uint64_t sum = 0;
  for (const ManifestFile& file : files) sum += file.bytes;
  return sum;
}

std::string Manifest::DirectoryOf(const std::string& step_directory, std::string_view file) const {
  const bool is_shard = file.starts_with("shard-") && file.ends_with(".h5");
  return shards.empty() || !is_shard ? step_directory : JoinPath(step_directory, shards);
}

int64_t IntField(const json& object, const std::string& name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

std::string TextField(const json& object, const std::string& name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

json TopologyJson(const Topology& t) {
  json object = {{"tp", t.tp}, {"pp", t.pp}, {"dp", t.dp}, {"zero", t.zero}};
  if (t.virtual_stages != 1) object["virtual_stages"] = t.virtual_stages;
  if (!t.layers_per_stage.empty()) object["layers_per_stage"] = t.layers_per_stage;
  if (t.ep != 1) object["ep"] = t.ep;
  if (t.etp != 0) object["etp"] = t.etp;
  return object;
}

json DescentJson(const Descent& descent) {
  json object = json::object();
  for (const EarlierBranch& branch : descent.branches)
    object["branches"].push_back({{"run", branch.run}, {"last", branch.last}});
  if (!descent.first_steps.empty()) object["branches"] = descent.first_steps;
  if (const auto& origin = descent.origin)
    object["origin"] = {{"run", origin->run}, {"branch", origin->branch}, {"step", origin->step}};
  return object;
}

Descent DescentAt(const json& object) {
  Descent descent;
  if (const auto branches = object.find("branches"); branches != object.end())
    for (const json& branch : *branches) {
      if (branch.is_object())
        descent.branches.push_back({branch.at("run"), IntegerOf<int64_t>(branch.at("last"))});
      else
        descent.first_steps.push_back(IntegerOf<int64_t>(branch));
    }
  if (!descent.first_steps.empty()) descent.branches = BranchesFrom(descent.first_steps);
  if (const auto origin = object.find("origin"); origin != object.end())
    descent.origin = {origin->at("run"), IntegerOf<int64_t>(origin->at("branch")),
                      IntegerOf<int64_t>(origin->at("step"))};
  return descent;
}

std::string EncodeManifest(const Manifest& manifest) {
  json root = WithoutDigest(manifest);
  root["digest"] = ToHex(DigestOf(Dump(root)));
  return Dump(root);
}

Result<Manifest> DecodeManifest(std::string_view text) {
  bool deep = false;
  const auto shallow = [&](int depth, json::parse_event_t, json&) { return !(deep |= depth > kMaxDepth); };
  const json root = json::parse(text, shallow, /*allow_exceptions=*/false);
  if (deep) return Corrupt("it is nested more than {} levels deep", kMaxDepth);
  if (root.is_discarded()) return Corrupt("not valid JSON; it was damaged or cut short");
  CAIRN_RETURN_IF_ERROR(CheckVersion(root));
  Manifest manifest;
  try {
    manifest = FromJson(root);
    // Encoding the manifest again gives the same bytes only if nothing is damaged, added or out of place.
    if (EncodeManifest(manifest) != text)
      return Corrupt("its bytes do not match its digest; it was damaged or edited");
  } catch (const json::exception& error) {
    return Corrupt("{}", error.what());
  }
  CAIRN_RETURN_IF_ERROR(Validate(manifest.topology));
  for (const ManifestFile& file : manifest.files)
    if (!IsPlainFileName(file.name)) return Corrupt("file name {} leaves the directory", file.name);
  if (manifest.shards.find('\0') != std::string::npos)
    return Corrupt("the path of its shards has a NUL byte");
  return manifest;
}

}  // namespace cairn
