// A payload read by the shape of its model. The shape comes from the pydantic model itself (native/shapes.py), which
// stays the one schema; what is not plainly right is doubted.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "json.hpp"
#include "python.hpp"

namespace headrace {

inline constexpr size_t kMaxFields = 64;

// A known part is one in which a field that the shape does not have is always a doubt. An unknown field is one that this
// module was not built for, or cannot read: a payload that has it is a doubt.
enum class Kind {
    kText, kInteger, kFloat, kFlag, kAny, kObject, kObjects, kTexts, kChoice, kTokens, kPart, kKnownPart, kParts, kUnknown
};

struct Shape;
struct Value;

// The fields of one payload or part of it, in the shape's order: views into the text that was read. Used again for the
// next, so that memory is asked for once.
struct Payload {
    std::vector<const Value*> fields;  // what was read, or the shape's preset
    std::vector<Value> read;

    const Value& operator[](int field) const { return *fields[static_cast<size_t>(field)]; }
};

// What a field holds.
struct Value {
    std::string_view json;  // as it would be written
    std::string_view text;  // contents of a text or a choice
    bool is_null = false;
    Number number;
    std::vector<std::string_view> texts;  // contents of each of several texts
    std::vector<Payload> parts;           // room for parts, of which
    size_t part_count = 0;                // so many are there

    bool flag() const { return json == "true"; }
    std::span<const Payload> all_parts() const { return {parts.data(), part_count}; }
    Payload& next_part() {
        if (part_count == parts.size()) parts.emplace_back();
        return parts[part_count++];
    }
};

struct Field {
    std::string name;
    Kind kind;
    bool nullable;
    bool required;
    std::string default_json;
    // `most` of a text: its longest, in bytes as it stands.
    double least = -std::numeric_limits<double>::infinity(), most = std::numeric_limits<double>::infinity();
    bool above_least = false;
    std::vector<std::string> choices;
    std::unique_ptr<Shape> part;
    Value preset;  // of `default_json`
};

struct Shape {
    std::vector<Field> fields;  // at most kMaxFields

    // Whether there is one: payloads without are left to Python.
    explicit operator bool() const { return !fields.empty(); }
    // Index of a field; negative with Python's error set where there is none.
    int at(const char* name) const;
};

// Fills `payload` from an object; false in doubt. `known_only`: a field that the shape does not have is a doubt too.
bool read_payload(const Shape& shape, std::string_view json, bool known_only, Payload& payload);

// `shape` from a list of (name, kind, nullable, default or None, least, above least, most, choices, part), see
// native/shapes.py; false with Python's error set.
bool make_shape(PyObject* fields, Shape& shape);

}  // namespace headrace
