// Reads a payload by the shape of its model. The shape is generated from the pydantic model (native/shapes.py), which
// remains the only schema; anything that is not plainly valid is doubted.
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

// In a known part, a field that the shape lacks is always a doubt. An unknown field is one that this module was not
// built for, or cannot read: a payload with such a field is a doubt.
enum class Kind {
    kText, kInteger, kFloat, kFlag, kAny, kObject, kObjects, kTexts, kChoice, kTokens, kPart, kKnownPart, kParts,
    kIntegers, kChoices, kPartMap, kIntegerMap, kUnknown
};

struct Shape;
struct Value;

// The fields of one payload or part, in the shape's order: views into the input. Reused for the next payload, so that
// memory is allocated once.
struct Payload {
    std::vector<const Value*> fields;  // the value read, or the shape's preset
    std::vector<Value> read;

    const Value& operator[](int field) const { return *fields[static_cast<size_t>(field)]; }
};

// The value of a field.
struct Value {
    std::string_view json;  // as it would be written
    std::string_view text;  // contents of a text or a choice
    bool is_null = false;
    Number number;
    std::vector<std::string_view> texts;  // contents of each of several texts or choices, or the keys of a map
    std::vector<int64_t> integers;        // several integers, or those of a map
    std::vector<Payload> parts;           // storage for parts, those of a map too, of which
    size_t part_count = 0;                // this many are in use

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
    // `most` of a text, and of the keys of a map of parts: the maximum length in raw bytes.
    double least = -std::numeric_limits<double>::infinity(), most = std::numeric_limits<double>::infinity();
    bool above_least = false;
    std::vector<std::string> choices;
    std::unique_ptr<Shape> part;
    Value preset;  // of `default_json`
};

struct Shape {
    std::vector<Field> fields;  // at most kMaxFields

    // Whether there is a shape; payloads without one are left to Python.
    explicit operator bool() const { return !fields.empty(); }
    // Index of a field; negative with Python's error set if there is none.
    int at(const char* name) const;
};

// Fills `payload` from an object; false in doubt. `known_only`: a field that the shape lacks is also a doubt.
// `is_copied`: whether JSON of it will be written (JsonScanner).
bool read_payload(const Shape& shape, std::string_view json, bool known_only, Payload& payload, bool is_copied = true);

// `shape` from a list of (name, kind, nullable, default or None, least, above least, most, choices, part), see
// native/shapes.py; false with Python's error set.
bool make_shape(PyObject* fields, Shape& shape);

}  // namespace headrace
