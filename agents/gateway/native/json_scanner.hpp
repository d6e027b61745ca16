// Reads JSON from its front. Whatever is unusual is refused, and so left to Python's decoder: escaped surrogates,
// numbers of more digits than a double tells apart, deep nesting. What is accepted is valid JSON.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

namespace headrace::gateway {

class JsonScanner {
public:
    // `text` must be valid UTF-8.
    explicit JsonScanner(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

    bool at_end() {
        skip_space();
        return at_ == end_;
    }

    bool take(char expected) {
        skip_space();
        if (at_ == end_ || *at_ != expected) return false;
        ++at_;
        return true;
    }

    bool take_null() { return take_word("null"); }

    // Takes `text` if it is next, exactly so, and something that ends a value follows; else takes nothing.
    bool take_word(std::string_view text) {
        skip_space();
        if (static_cast<size_t>(end_ - at_) < text.size() || std::string_view(at_, text.size()) != text) return false;
        const char* after = at_ + text.size();
        if (after != end_ && *after != ',' && *after != '}' && *after != ']' && !is_space(*after)) return false;
        at_ = after;
        return true;
    }

    // Reads a name without escapes, and the colon after it.
    bool name(std::string_view& found) {
        skip_space();
        if (at_ == end_ || *at_ != '"') return false;
        const char* begin = ++at_;
        while (at_ != end_ && is_plain(*at_)) ++at_;
        if (at_ == end_ || *at_ != '"') return false;
        found = {begin, static_cast<size_t>(at_ - begin)};
        ++at_;
        return take(':');
    }

    // Appends the text of a string to `found`.
    bool string(std::string& found) {
        skip_space();
        if (at_ == end_ || *at_ != '"') return false;
        ++at_;
        while (true) {
            const char* begin = at_;
            while (at_ != end_ && is_plain(*at_)) ++at_;
            found.append(begin, at_);
            if (at_ == end_) return false;
            if (*at_ == '"') {
                ++at_;
                return true;
            }
            if (*at_ != '\\' || !escape(found)) return false;
        }
    }

    // A whole number from 0 to 2³¹ − 1.
    bool id(int32_t& found) {
        skip_space();
        int64_t value = 0;
        const char* begin = at_;
        while (at_ != end_ && is_digit(*at_) && at_ - begin < 11) value = 10 * value + (*at_++ - '0');
        const auto digits = at_ - begin;
        if (digits == 0 || digits > 10 || (digits > 1 && *begin == '0') || value > INT32_MAX || !ends_number()) {
            return false;
        }
        found = static_cast<int32_t>(value);
        return true;
    }

    bool number(double& found) {
        skip_space();
        const char* begin = at_;
        if (!skip_number() || !ends_number()) return false;
        if (at_ - begin > kLongestNumber) return false;
        const auto [end, error] = std::from_chars(begin, at_, found);
        return error == std::errc() && end == at_ && !(found == 0 && *begin == '-');
    }

    // Skips a value, and returns it as it is written.
    bool raw_value(std::string_view& found) {
        skip_space();
        const char* begin = at_;
        if (!skip_value()) return false;
        found = {begin, static_cast<size_t>(at_ - begin)};
        return true;
    }

    bool skip_value(int depth = 0) {
        skip_space();
        if (at_ == end_ || depth > kDeepest) return false;
        switch (*at_) {
            case '"':
                scratch_.clear();
                return string(scratch_);
            case '[':
                ++at_;
                if (take(']')) return true;
                while (skip_value(depth + 1)) {
                    if (take(']')) return true;
                    if (!take(',')) return false;
                }
                return false;
            case '{': {
                ++at_;
                if (take('}')) return true;
                std::string_view ignored;
                while (name(ignored) && skip_value(depth + 1)) {
                    if (take('}')) return true;
                    if (!take(',')) return false;
                }
                return false;
            }
            case 't': return take_word("true");
            case 'f': return take_word("false");
            case 'n': return take_word("null");
            default: return skip_number() && ends_number();
        }
    }

private:
    static constexpr int kDeepest = 32;
    static constexpr int kLongestNumber = 40;

    static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
    static bool is_digit(char c) { return c >= '0' && c <= '9'; }
    static bool is_plain(char c) { return c != '"' && c != '\\' && static_cast<unsigned char>(c) >= 0x20; }

    void skip_space() {
        while (at_ != end_ && is_space(*at_)) ++at_;
    }

    bool ends_number() const { return at_ == end_ || *at_ == ',' || *at_ == ']' || *at_ == '}' || is_space(*at_); }

    bool skip_digits() {
        const char* begin = at_;
        while (at_ != end_ && is_digit(*at_)) ++at_;
        return at_ != begin;
    }

    bool skip_number() {
        if (at_ != end_ && *at_ == '-') ++at_;
        const char* begin = at_;
        if (!skip_digits() || (*begin == '0' && at_ - begin > 1)) return false;
        if (at_ != end_ && *at_ == '.') {
            ++at_;
            if (!skip_digits()) return false;
        }
        if (at_ != end_ && (*at_ == 'e' || *at_ == 'E')) {
            ++at_;
            if (at_ != end_ && (*at_ == '+' || *at_ == '-')) ++at_;
            if (!skip_digits()) return false;
        }
        return true;
    }

    bool escape(std::string& found) {
        ++at_;
        if (at_ == end_) return false;
        switch (*at_++) {
            case '"': found += '"'; return true;
            case '\\': found += '\\'; return true;
            case '/': found += '/'; return true;
            case 'b': found += '\b'; return true;
            case 'f': found += '\f'; return true;
            case 'n': found += '\n'; return true;
            case 'r': found += '\r'; return true;
            case 't': found += '\t'; return true;
            case 'u': break;
            default: return false;
        }
        unsigned value = 0;
        if (end_ - at_ < 4) return false;
        for (const char* digits = at_; digits != at_ + 4; ++digits) {
            const char c = *digits;
            const int digit = is_digit(c)              ? c - '0'
                              : c >= 'a' && c <= 'f' ? c - 'a' + 10
                              : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                     : -1;
            if (digit < 0) return false;
            value = 16 * value + static_cast<unsigned>(digit);
        }
        at_ += 4;
        if (value >= 0xD800 && value <= 0xDFFF) return false;
        if (value < 0x80) {
            found += static_cast<char>(value);
        } else if (value < 0x800) {
            found += static_cast<char>(0xC0 | value >> 6);
            found += static_cast<char>(0x80 | (value & 0x3F));
        } else {
            found += static_cast<char>(0xE0 | value >> 12);
            found += static_cast<char>(0x80 | (value >> 6 & 0x3F));
            found += static_cast<char>(0x80 | (value & 0x3F));
        }
        return true;
    }

    const char* at_;
    const char* end_;
    std::string scratch_;
};

}  // namespace headrace::gateway
