// Reads JSON that is already in the form in which it would be written, so that parts of it can be copied unchanged.
//
//     {"query":"where does ada work","limit":3}      taken
//     {"query": "a\u0064a", "limit": 3.00}           doubted: spaces, a needless escape, a float that Python writes 3.0
//
// Doubt is not an error: doubtful input is read by slower and more general code.
#pragma once

#include <cstdint>
#include <string_view>

namespace headrace {

inline constexpr int kMaxNesting = 150;  // MAX_NESTING of assembly/event_decoder.py

inline constexpr double kPlainFloat = 1e10;  // PLAIN_FLOAT of streams/structs.py

struct Number {
    bool is_integer = false;
    int64_t integer = 0;
    double value = 0;
};

// Reads from the front of a text. A function returns false in doubt; then no other function may be called.
class JsonScanner {
public:
    // `is_copied`: whether the text will be written. Of one that is only read, a number may have any form.
    explicit JsonScanner(std::string_view text, bool is_copied = true)
        : at_(text.data()), end_(text.data() + text.size()), is_copied_(is_copied) {}

    // Spaces between the parts of a payload are harmless, because they are not copied.
    void skip_spaces() {
        while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
    }
    bool at_end() const { return at_ == end_; }
    char peek() const { return at_ == end_ ? '\0' : *at_; }
    bool take(char expected) {
        if (peek() != expected) return false;
        ++at_;
        return true;
    }
    const char* position() const { return at_; }
    bool is_copied() const { return is_copied_; }

    // The contents of a string, with its escapes.
    bool string(std::string_view& contents);
    // A float has |value| < 1e10, and no exponent if it is copied: pydantic and msgspec write others in different forms.
    bool number(Number& number);
    bool literal(std::string_view word);
    // Any value, without a space outside strings and without a key twice in one object.
    bool value(int depth);

private:
    bool number_of_any_form(Number& number);
    bool escape();
    bool multibyte();
    bool object(int depth);
    bool array(int depth);

    const char* at_;
    const char* end_;
    bool is_copied_;
};

}  // namespace headrace
