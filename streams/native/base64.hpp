// Base64 (RFC 4648) as Python's binascii has it in strict mode.
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

// Appends what `text` stands for; false where it is not base64 in its plainest form.
inline bool decode_base64(std::string_view text, std::string& bytes) {
    if (text.size() % 4) return false;
    const size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
    const size_t digits = text.size() - padding;
    bytes.resize(text.size() / 4 * 3);
    char* out = bytes.data();
    uint32_t bits = 0;
    int wrong = 0;
    for (size_t index = 0; index < digits; ++index) {
        const int value = kBase64Values[static_cast<unsigned char>(text[index])];
        wrong |= value;
        bits = bits << 6 | static_cast<uint32_t>(value & 63);
        if (index % 4 == 3) {
            *out++ = static_cast<char>(bits >> 16);
            *out++ = static_cast<char>(bits >> 8);
            *out++ = static_cast<char>(bits);
        }
    }
    if (padding == 1) {
        *out++ = static_cast<char>(bits >> 10);
        *out++ = static_cast<char>(bits >> 2);
    } else if (padding == 2) {
        *out++ = static_cast<char>(bits >> 4);
    }
    bytes.resize(static_cast<size_t>(out - bytes.data()));
    return wrong >= 0;
}

inline void append_base64(std::string_view bytes, std::string& text) {
    size_t at = text.size();
    text.resize(at + (bytes.size() + 2) / 3 * 4);
    const auto byte = [&](size_t index) {
        return index < bytes.size() ? static_cast<uint32_t>(static_cast<unsigned char>(bytes[index])) : 0u;
    };
    for (size_t index = 0; index < bytes.size(); index += 3) {
        const uint32_t bits = byte(index) << 16 | byte(index + 1) << 8 | byte(index + 2);
        text[at++] = kBase64[bits >> 18];
        text[at++] = kBase64[bits >> 12 & 63];
        text[at++] = index + 1 < bytes.size() ? kBase64[bits >> 6 & 63] : '=';
        text[at++] = index + 2 < bytes.size() ? kBase64[bits & 63] : '=';
    }
}

}  // namespace headrace
