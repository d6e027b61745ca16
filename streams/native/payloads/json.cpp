#include "json.hpp"

#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <vector>

#include "utf8.hpp"

namespace headrace {
namespace {

constexpr double kLeastPlain = 1e-3;  // from here on no writer uses an exponent
constexpr int kMaxDigits = 18;        // of an integer, so that it fits 64 bits
constexpr int kExactDigits = 15;      // a decimal with at most this many digits is the shortest for its double
constexpr size_t kFewKeys = 8;
constexpr size_t kMaxKeys = 256;      // of an object whose keys are compared with one another

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Counts the plain ASCII bytes of eight before the first that is not plain: a control character, a quote, a backslash,
// or part of a longer character. (Of the marks that the subtractions leave, the lowest is always correct.)
int plain_prefix(uint64_t word) {
    static_assert(std::endian::native == std::endian::little);
    constexpr uint64_t kOnes = 0x0101010101010101u, kHighs = 0x8080808080808080u;
    const auto zeros = [](uint64_t x) { return (x - kOnes) & ~x; };
    const uint64_t controls = (word - kOnes * 0x20) & ~word;
    const uint64_t special = (controls | zeros(word ^ (kOnes * '"')) | zeros(word ^ (kOnes * '\\')) | word) & kHighs;
    return std::countr_zero(special) / 8;
}

}  // namespace

bool JsonScanner::string(std::string_view& contents) {
    if (!take('"')) return false;
    const char* begin = at_;
    while (true) {
        while (end_ - at_ >= 8) {
            uint64_t word;
            std::memcpy(&word, at_, sizeof word);
            const int plain = plain_prefix(word);
            at_ += plain;
            if (plain < 8) break;
        }
        if (at_ == end_) return false;
        const auto c = static_cast<unsigned char>(*at_);
        if (c == '"') {
            contents = {begin, static_cast<size_t>(at_ - begin)};
            ++at_;
            return true;
        }
        if (c < 0x20) return false;
        if (c == '\\') {
            if (!escape()) return false;
        } else if (c >= 0x80) {
            if (!multibyte()) return false;
        } else {
            ++at_;
        }
    }
}

// Accepts only escapes that would be written: the short form if there is one, \u00 and lower-case digits for other
// control characters, and none for anything else.
bool JsonScanner::escape() {
    if (end_ - at_ < 2) return false;
    if (std::string_view("\"\\bfnrt").find(at_[1]) != std::string_view::npos) {
        at_ += 2;
        return true;
    }
    if (end_ - at_ < 6 || at_[1] != 'u' || at_[2] != '0' || at_[3] != '0') return false;
    const char high = at_[4], low = at_[5];
    const bool is_control = (high == '0' || high == '1') && (is_digit(low) || (low >= 'a' && low <= 'f'));
    const bool has_short_form = high == '0' && std::string_view("89acd").find(low) != std::string_view::npos;
    if (!is_control || has_short_form) return false;
    at_ += 6;
    return true;
}

bool JsonScanner::multibyte() {
    const int length = multibyte_length({at_, static_cast<size_t>(end_ - at_)});
    at_ += length;
    return length > 0;
}

bool JsonScanner::number_of_any_form(Number& number) {
    const char* begin = at_;
    const bool negative = take('-');
    const char* digits = at_;
    const auto skip_digits = [&] {
        const char* from = at_;
        while (is_digit(peek())) ++at_;
        return at_ - from;
    };
    const auto whole = skip_digits();
    if (whole == 0 || whole > kMaxDigits || (whole > 1 && *digits == '0')) return false;
    number.is_integer = true;
    if (take('.')) {
        number.is_integer = false;
        if (skip_digits() == 0) return false;
    }
    if (take('e') || take('E')) {
        number.is_integer = false;
        if (!take('+')) take('-');
        if (skip_digits() == 0) return false;
    }
    if (number.is_integer) {
        std::from_chars(begin, at_, number.integer);
        number.value = static_cast<double>(number.integer);
        return !negative || number.integer != 0;
    }
    return std::from_chars(begin, at_, number.value).ec == std::errc() && std::fabs(number.value) < kPlainFloat;
}

bool JsonScanner::number(Number& number) {
    if (!is_copied_) return number_of_any_form(number);
    const char* begin = at_;
    const bool negative = take('-');
    const char* digits = at_;
    while (is_digit(peek())) ++at_;
    const auto whole = at_ - digits;
    if (whole == 0 || whole > kMaxDigits || (whole > 1 && *digits == '0')) return false;
    number.is_integer = peek() != '.';
    if (peek() == 'e' || peek() == 'E') return false;
    if (number.is_integer) {
        std::from_chars(begin, at_, number.integer);
        number.value = static_cast<double>(number.integer);
        return !negative || number.integer != 0;  // -0 would be written 0
    }
    ++at_;
    const char* fraction = at_;
    while (is_digit(peek())) ++at_;
    const auto decimals = at_ - fraction;
    if (decimals == 0 || peek() == 'e' || peek() == 'E') return false;
    if (decimals > 1 && at_[-1] == '0') return false;  // 1.50 would be written 1.5
    std::from_chars(begin, at_, number.value);
    const double size = std::fabs(number.value);
    if (size == 0) return !negative && decimals == 1;
    if (size >= kPlainFloat || size < kLeastPlain) return false;
    if (whole + decimals <= kExactDigits) return true;
    char shortest[64];
    const auto written = std::to_chars(shortest, shortest + sizeof shortest, number.value, std::chars_format::fixed);
    return std::string_view(begin, static_cast<size_t>(at_ - begin)) ==
           std::string_view(shortest, static_cast<size_t>(written.ptr - shortest));
}

bool JsonScanner::literal(std::string_view word) {
    if (static_cast<size_t>(end_ - at_) < word.size() || std::memcmp(at_, word.data(), word.size()) != 0) return false;
    at_ += word.size();
    return true;
}

bool JsonScanner::value(int depth) {
    switch (peek()) {
        case '"': {
            std::string_view contents;
            return string(contents);
        }
        case '{': return depth < kMaxNesting && object(depth + 1);
        case '[': return depth < kMaxNesting && array(depth + 1);
        case 't': return literal("true");
        case 'f': return literal("false");
        case 'n': return literal("null");
        default: {
            Number found;
            return number(found);
        }
    }
}

bool JsonScanner::object(int depth) {
    take('{');
    if (take('}')) return true;
    std::vector<std::string_view> keys;
    keys.reserve(kFewKeys);
    do {
        std::string_view key;
        if (!string(key) || !take(':') || !value(depth)) return false;
        for (const std::string_view earlier : keys) {
            if (earlier == key) return false;  // the later would replace the earlier
        }
        if (keys.size() == kMaxKeys) return false;
        keys.push_back(key);
    } while (take(','));
    return take('}');
}

bool JsonScanner::array(int depth) {
    take('[');
    if (take(']')) return true;
    do {
        if (!value(depth)) return false;
    } while (take(','));
    return take(']');
}

}  // namespace headrace
