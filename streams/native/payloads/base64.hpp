// Base64 (RFC 4648), like Python's binascii in strict mode.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace headrace {

inline constexpr std::string_view kBase64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

inline constexpr std::array<int8_t, 256> kBase64Values = [] {
    std::array<int8_t, 256> values{};
    values.fill(-1);
    for (int index = 0; index < 64; ++index) values[static_cast<unsigned char>(kBase64[index])] = int8_t(index);
    return values;
}();

// Appends the decoded bytes of `text`; false if it is not canonical base64.
inline bool decode_base64(std::string_view text, std::string& bytes) {
    if (text.size() % 4) return false;
    const size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
    const size_t digits = text.size() - padding;
    bytes.resize(text.size() / 4 * 3);
    char* out = bytes.data();
    int wrong = 0;
    const auto six = [&](size_t index) {
        const int value = kBase64Values[static_cast<unsigned char>(text[index])];
        wrong |= value;
        return static_cast<uint32_t>(value & 63);
    };
    size_t at = 0;
    for (; at + 4 <= digits; at += 4) {
        const uint32_t bits = six(at) << 18 | six(at + 1) << 12 | six(at + 2) << 6 | six(at + 3);
        *out++ = static_cast<char>(bits >> 16);
        *out++ = static_cast<char>(bits >> 8);
        *out++ = static_cast<char>(bits);
    }
    if (padding) {
        const uint32_t bits = six(at) << 18 | six(at + 1) << 12 | (padding == 1 ? six(at + 2) << 6 : 0);
        *out++ = static_cast<char>(bits >> 16);
        if (padding == 1) *out++ = static_cast<char>(bits >> 8);
    }
    bytes.resize(static_cast<size_t>(out - bytes.data()));
    return wrong >= 0;
}

inline void append_base64(std::string_view bytes, std::string& text) {
    const size_t begin = text.size();
    text.resize(begin + (bytes.size() + 2) / 3 * 4);
    char* out = text.data() + begin;
    const auto byte = [&](size_t index) { return static_cast<uint32_t>(static_cast<unsigned char>(bytes[index])); };
    const auto put = [&](uint32_t bits) {
        for (const int shift : {18, 12, 6, 0}) *out++ = kBase64[bits >> shift & 63];
    };
    size_t at = 0;
    for (; at + 3 <= bytes.size(); at += 3) put(byte(at) << 16 | byte(at + 1) << 8 | byte(at + 2));
    if (at == bytes.size()) return;
    const bool two = at + 2 == bytes.size();
    put(byte(at) << 16 | (two ? byte(at + 1) << 8 : 0));
    out[-1] = '=';
    if (!two) out[-2] = '=';
}

}  // namespace headrace
