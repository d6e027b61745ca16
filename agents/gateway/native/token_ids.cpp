#include "token_ids.hpp"

#include <charconv>

namespace headrace::gateway {

bool read_ids(std::string_view json, std::vector<int32_t>& ids) {
    if (json.size() < 3 || json.front() != '[' || json.back() != ']') return false;
    ids.reserve(json.size() / 4);
    const char* at = json.data() + 1;
    const char* const end = json.data() + json.size();
    while (true) {
        const char* begin = at;
        int64_t value = 0;
        while (*at >= '0' && *at <= '9' && at - begin < 11) value = 10 * value + (*at++ - '0');
        const auto digits = at - begin;
        if (digits == 0 || digits > 10 || (digits > 1 && *begin == '0') || value > INT32_MAX) return false;
        ids.push_back(static_cast<int32_t>(value));
        if (*at == ']') return at + 1 == end;  // the last character is one, so that nothing beyond is read
        if (*at++ != ',') return false;
    }
}

char* write_ids(const int32_t* ids, size_t count, char* out) {
    *out++ = '[';
    for (size_t index = 0; index < count; ++index) {
        if (index) *out++ = ',';
        out = std::to_chars(out, out + 11, ids[index]).ptr;
    }
    *out++ = ']';
    return out;
}

}  // namespace headrace::gateway
