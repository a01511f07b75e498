// Parity over the shards of a group of ranks, stored beside each shard, to rebuild lost ones.
//
// The shards of K members are cut into blocks. A stripe takes one position of every member: M of them,
// another M in each stripe, hold parity of the K - M data blocks of the others (as RAID 5 and 6 rotate it,
// and SCR's XOR scheme over nodes). So each member stores a share M / (K - M) of its own size, and whichever
// M members are lost with all their files, every stripe keeps K - M blocks, which give the others
// (erasure.h).
//
// FORMAT.md, "Parity". The caller reads the members' files, which are on other nodes.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/base/byte_codec.h"
#include "ckpt/codec/erasure.h"
#include "ckpt/step/shard_plan.h"

namespace cairn {

// The value of --redundancy: in each group of `group` ranks, any `parity` may lose their files.
struct Redundancy {
  int group = 0;  // 0: none
  int parity = 0;
};
// "" (none), "xor:K" or "rs:K,M". Errors: InvalidArgument that says what is wrong with it.
Result<Redundancy> ParseRedundancy(std::string_view text);

class ParityGroup {
 public:
  struct Member {
    std::string shard;   // plain file name
    uint64_t bytes = 0;  // a multiple of kPageBytes, as shards are
    bool operator==(const Member&) const = default;
  };

  // `parity`: M. Errors: those of ErasureCode::Make.
  static Result<ParityGroup> Make(StepIdentity identity, std::vector<Member> members, int parity);
  // Members and parity, as they are in the header of a parity file. Errors: Corrupt.
  void EncodeMembers(ByteWriter& out) const;
  static Result<ParityGroup> DecodeMembers(StepIdentity identity, ByteReader& in);

  const StepIdentity& identity() const { return identity_; }
  const std::vector<Member>& members() const { return members_; }
  int size() const { return static_cast<int>(members_.size()); }
  const ErasureCode& code() const { return code_; }
  uint64_t block_bytes() const { return block_bytes_; }  // a multiple of kPageBytes, at most 1 MiB
  uint64_t stripes() const { return cycles_ * members_.size(); }
  uint64_t parity_blocks() const { return cycles_ * code_.parity(); }  // of each member
  uint64_t header_bytes() const;                                       // of each parity file
  uint64_t parity_file_bytes() const { return header_bytes() + parity_blocks() * block_bytes_; }

  // The block of a member in a stripe.
  struct Place {
    bool parity;
    int code_block;  // its number in the code
    uint64_t index;  // among the member's blocks of this kind
  };
  Place At(uint64_t stripe, int member) const;

 private:
  ParityGroup(StepIdentity identity, std::vector<Member> members, ErasureCode code);

  StepIdentity identity_;
  std::vector<Member> members_;
  ErasureCode code_;
  uint64_t block_bytes_ = 0;
  uint64_t cycles_ = 0;  // of K stripes, after which the places repeat
};

// A parity file without its blocks.
struct ParityHeader {
  ParityGroup group;
  int member;
  std::vector<Digest> digests;  // of the blocks
};

// Bytes of a member's shard or parity file.
struct MemberRead {
  int member;
  bool parity;
  uint64_t offset;
  std::span<std::byte> out;
};
struct MemberFiles {
  // Whether the file exists and is good.
  std::function<bool(int member, bool parity)> has;
  // Does all reads; at most one per member.
  std::function<Status(std::span<const MemberRead>)> read;
};

// True if the existing files give every block of the group.
bool CanRebuild(const ParityGroup& group, const MemberFiles& files);

// Creates and syncs a member's parity file, or its shard, from the files of the others. Takes memory for a
// few stripes. `spare`: a file that nobody needs, which gets this name too and is overwritten. Errors:
// Corrupt if too much is lost; those of the disk and of `files`.
Status WriteParity(FileSystem& fs, const std::string& path, const ParityGroup& group, int member,
                   const MemberFiles& files, const std::string& spare = "");
Status RebuildShard(FileSystem& fs, const std::string& path, const ParityGroup& group, int member,
                    const MemberFiles& files);

// Errors: Corrupt naming the file and offset, NotSupported (version); those of the disk.
Result<ParityHeader> ReadParityHeader(FileSystem& fs, const std::string& path);
// Checks every block of a file against its header.
Status VerifyParity(FileSystem& fs, const std::string& path, const ParityHeader& header);

}  // namespace cairn
