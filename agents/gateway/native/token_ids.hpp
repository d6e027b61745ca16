// Token ids as JSON: `[1,872,2]`, as msgspec writes it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace headrace::gateway {

// Reads a list of at least one token id without spaces; false for everything else, which Python reads.
bool read_ids(std::string_view json, std::vector<int32_t>& ids);

// Characters that `count` numbers take at most.
constexpr size_t longest_json(size_t count) { return 12 * count + 2; }

// Writes `ids`, and returns one past the last character.
char* write_ids(const int32_t* ids, size_t count, char* out);

}  // namespace headrace::gateway
