// One column of Arrow rows, appended to in the buffers that Arrow then uses without a copy.
#pragma once

#include <cstdint>
#include <string_view>

#include "python.hpp"

namespace headrace {

// How a column is stored, and in which form a field fills it.
enum class Form {
    kText,     // UTF-8; empty for null
    kJson,     // UTF-8, as json.dumps(value, ensure_ascii=False) writes it; empty for null
    kNarrow,   // 32 bits, unsigned
    kWide,     // 64 bits, not negative
    kNumber,   // a double, or null
    kCount,    // 32 bits, unsigned, or null
    kFlag,     // a bit
    kDouble,   // a double
};

inline constexpr std::string_view kFormNames[] = {"text", "json", "u32", "u64", "number", "count", "flag", "double"};

// The value of a column in a row; initially what a row has in a column that it does not fill.
struct Cell {
    std::string_view text;
    bool compact = false;  // JSON without spaces, to which those of json.dumps are to be added
    uint64_t bits = 0;     // of a number
    bool is_null = true;   // only of a column that may be null
};

// Fills `cell` with the JSON of a value; false if Python would write the value differently.
bool put_json(std::string_view json, Cell& cell);

// A `bytes` object that grows.
class Buffer {
public:
    size_t size() const { return size_; }
    // Makes room for `more` bytes; false with Python's error set, and nothing changed.
    bool reserve(size_t more) { return capacity_ - size_ >= more || grow(more); }
    // The reserved room.
    char* end() { return PyBytes_AS_STRING(bytes_.get()) + size_; }
    void append(const void* data, size_t length);
    void extend(size_t length) { size_ += length; }
    char& back() { return end()[-1]; }
    // The contents, which leave the buffer; null with Python's error set.
    PyObject* release();

private:
    bool grow(size_t more);

    Ref bytes_;
    size_t size_ = 0, capacity_ = 0;
};

class Column {
public:
    explicit Column(Form form) : form_(form) {}

    // Whether Arrow can hold `cell` after what is there.
    bool fits(const Cell& cell) const;
    // Whether Arrow can hold so many more bytes of text.
    bool fits(size_t bytes) const { return data_.size() + bytes <= INT32_MAX; }
    // Makes room for `cell`; false with Python's error set.
    bool reserve(const Cell& cell);
    // Makes room for so many bytes of text.
    bool reserve(size_t bytes) { return data_.reserve(bytes); }
    // Appends `cell`, for which there is room, as the value of row number `row`.
    void append(const Cell& cell, size_t row);
    // Arrow's buffers, which leave the column: a list of bytes, or None where a column has no such buffer. Null with
    // Python's error set.
    PyObject* release();

private:
    bool is_text() const { return form_ == Form::kText || form_ == Form::kJson; }
    bool is_nullable() const { return form_ == Form::kNumber || form_ == Form::kCount; }
    size_t width() const { return form_ == Form::kNarrow || form_ == Form::kCount ? 4 : 8; }

    Form form_;
    Buffer data_;      // the texts, or the numbers
    Buffer ends_;      // of a text column: where each text ends, after a 0
    Buffer validity_;  // of a column that may be null: a bit for each row
};

}  // namespace headrace
