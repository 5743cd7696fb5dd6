// SPDX-License-Identifier: Apache-2.0
//
// The format is the System V ABI's.
#include "base/elf_section.h"

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <vector>

#include "base/files.h"
#include "base/status.h"

namespace capstan {
namespace {

constexpr uint64_t kMostSection = 1 << 22;

absl::Status CutOff() {
  return absl::FailedPreconditionError("it is a damaged shared library");
}

// What `size` bytes at `offset` of a file are; nullopt if it ends before.
absl::optional<std::string> BytesAt(std::ifstream& file, uint64_t offset,
                                    uint64_t size) {
  std::string bytes(size, '\0');
  file.clear();
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(&bytes[0], static_cast<std::streamsize>(size));
  if (static_cast<uint64_t>(file.gcount()) != size) return absl::nullopt;
  return bytes;
}

// The headers of all sections, each of which lies within the file.
absl::StatusOr<std::vector<Elf64_Shdr>> SectionsOf(std::ifstream& file,
                                                   const Elf64_Ehdr& header) {
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  const absl::optional<std::string> bytes =
      BytesAt(file, header.e_shoff, sections.size() * sizeof(Elf64_Shdr));
  if (!bytes.has_value() || header.e_shstrndx >= sections.size()) {
    return CutOff();
  }
  std::memcpy(sections.data(), bytes->data(), bytes->size());
  file.clear();
  file.seekg(0, std::ios::end);
  const auto end = static_cast<uint64_t>(file.tellg());
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type == SHT_NULL || section.sh_type == SHT_NOBITS) continue;
    if (section.sh_offset > end || section.sh_size > end - section.sh_offset) {
      return CutOff();
    }
  }
  return sections;
}

}  // namespace

absl::StatusOr<absl::optional<std::string>> ReadElfSection(
    const std::string& path, absl::string_view name) {
  std::ifstream file;
  if (IsRegularFile(path)) file.open(path, std::ios::binary);
  Elf64_Ehdr header = {};
  if (file.is_open())
    file.read(reinterpret_cast<char*>(&header), sizeof(header));
  if (!file || !file.is_open() ||
      std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_shentsize != sizeof(Elf64_Shdr)) {
    return absl::FailedPreconditionError("it is not a 64-bit shared library");
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<Elf64_Shdr> sections,
                           SectionsOf(file, header));
  const Elf64_Shdr& strings = sections[header.e_shstrndx];
  if (strings.sh_size > kMostSection) return CutOff();
  const absl::optional<std::string> names =
      BytesAt(file, strings.sh_offset, strings.sh_size);
  if (!names.has_value()) return CutOff();
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_name >= names->size() || section.sh_size > kMostSection ||
        name != names->c_str() + section.sh_name) {
      continue;
    }
    absl::optional<std::string> bytes =
        BytesAt(file, section.sh_offset, section.sh_size);
    if (!bytes.has_value()) return CutOff();
    return bytes;
  }
  return absl::optional<std::string>();
}

absl::StatusOr<std::string> ReadElfSoname(const std::string& path) {
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<std::string> entries,
                           ReadElfSection(path, ".dynamic"));
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<std::string> strings,
                           ReadElfSection(path, ".dynstr"));
  if (!entries.has_value()) return CutOff();
  for (size_t at = 0; at + sizeof(Elf64_Dyn) <= entries->size();
       at += sizeof(Elf64_Dyn)) {
    Elf64_Dyn entry;
    std::memcpy(&entry, entries->data() + at, sizeof(entry));
    if (entry.d_tag == DT_SONAME && strings.has_value() &&
        entry.d_un.d_val < strings->size()) {
      return std::string(strings->c_str() + entry.d_un.d_val);
    }
  }
  return std::string();
}

}  // namespace capstan
