// UTF-8 by table 3-7 of the Unicode standard, as Python decodes it.
#pragma once

#include <string_view>

namespace headrace {

// Length in bytes of the non-ASCII character at the front of `text`; 0 if it is invalid.
constexpr int multibyte_length(std::string_view text) {
    const auto byte = [&](size_t index) { return static_cast<unsigned char>(text[index]); };
    const unsigned char first = byte(0);
    const int length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || text.size() < static_cast<size_t>(length)) return 0;
    const unsigned char lowest = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    const unsigned char highest = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (byte(1) < lowest || byte(1) > highest) return 0;
    for (size_t index = 2; index < static_cast<size_t>(length); ++index) {
        if (byte(index) < 0x80 || byte(index) > 0xBF) return 0;
    }
    return length;
}

constexpr bool is_ascii(std::string_view text) {
    unsigned char seen = 0;
    for (const char c : text) seen |= static_cast<unsigned char>(c);
    return seen < 0x80;
}

constexpr bool is_utf8(std::string_view text) {
    if (is_ascii(text)) return true;
    while (!text.empty()) {
        const int length = static_cast<unsigned char>(text.front()) < 0x80 ? 1 : multibyte_length(text);
        if (length == 0) return false;
        text.remove_prefix(static_cast<size_t>(length));
    }
    return true;
}

static_assert(is_utf8("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80") && !is_utf8("\xC0\x80") && !is_utf8("\xED\xA0\x80"));

}  // namespace headrace
