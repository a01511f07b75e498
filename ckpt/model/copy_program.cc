// Regions of different tensors never overlap, and one tensor has few (at most one per rank): each wanted
// region is compared with all stored ones of its tensor. Counting the common elements finds a hole and an
// element that is stored twice.

#include "ckpt/model/copy_program.h"

#include <algorithm>
#include <tuple>

namespace cairn {

Result<CopyProgram> PlanCopies(const TensorTable& tensors, const Regions& there, const Regions& wanted) {
  CopyProgram program;
  std::vector<Region> of_tensor;  // the stored regions of one tensor
  uint32_t tensor = UINT32_MAX;
  size_t first = 0;
  for (size_t to = 0; to < wanted.size(); ++to) {
    const Region want = wanted[to];
    if (want.tensor != tensor) {
      tensor = want.tensor;
      const auto range = there.OfTensor(tensor);
      first = range.first;
      of_tensor.clear();
      for (size_t from = range.first; from < range.second; ++from) of_tensor.push_back(there[from]);
    }
    uint64_t found = 0;
    for (size_t i = 0; i < of_tensor.size(); ++i) {
      const uint64_t elements = CommonElements(of_tensor[i], want);
      if (elements == 0) continue;
      program.copies.push_back({static_cast<uint32_t>(first + i), static_cast<uint32_t>(to), elements});
      found += elements;
    }
    if (found != want.range.size())
      return Corrupt("tensor {} box {}: its pieces hold {} of {} elements; run cairn verify --structure",
                     DisplayName(tensors.tensors[tensor]), ToString(want.box), found, want.range.size());
  }
  return program;
}

void CopyProgram::SortByPlace(const Regions& there) {
  struct Placed {
    uint32_t file;
    uint64_t offset;
    Copy copy;
  };
  std::vector<Placed> placed;
  placed.reserve(copies.size());
  for (const Copy& copy : copies) {
    const Region from = there[copy.from];
    placed.push_back({from.file, from.offset, copy});
  }
  std::ranges::sort(placed, {},
                    [](const Placed& p) { return std::tuple(p.file, p.offset, p.copy.from, p.copy.to); });
  for (size_t i = 0; i < placed.size(); ++i) copies[i] = placed[i].copy;
}

ProgramSize& ProgramSize::operator+=(const ProgramSize& other) {
  const auto add = [](std::vector<uint64_t>& mine, const std::vector<uint64_t>& others) {
    if (mine.size() < others.size()) mine.resize(others.size());
    for (size_t i = 0; i < others.size(); ++i) mine[i] += others[i];
  };
  copies += other.copies;
  bytes += other.bytes;
  add(from_files, other.from_files);
  add(to_files, other.to_files);
  return *this;
}

ProgramSize SizeOf(const CopyProgram& program, const TensorTable& tensors, const Regions& there,
                   const Regions& wanted) {
  ProgramSize size{.copies = program.copies.size()};
  const auto add = [](std::vector<uint64_t>& files, uint32_t file, uint64_t bytes) {
    if (files.size() <= file) files.resize(file + 1);
    files[file] += bytes;
  };
  for (const Copy& copy : program.copies) {
    const Region from = there[copy.from];
    const uint64_t bytes = copy.elements * SizeOf(tensors.tensors[from.tensor].dtype);
    size.bytes += bytes;
    add(size.from_files, from.file, bytes);
    add(size.to_files, wanted[copy.to].file, bytes);
  }
  return size;
}

}  // namespace cairn
