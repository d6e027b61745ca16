// A payload read by the shape of its model. The shape comes from the pydantic model itself (assembly/shapes.py), which
// stays the one schema; what is not plainly right is doubted.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "json.hpp"
#include "python.hpp"

namespace headrace {

enum class Kind { kText, kInteger, kFloat, kFlag, kAny, kObject, kObjects, kTexts, kChoice, kTokens, kPart, kParts };

struct Shape;
struct Payload;

// What a field holds.
struct Value {
    std::string_view json;  // as it would be written
    bool is_null = false;
    Number number;
    std::vector<std::string_view> texts;  // contents of a text, of a choice, or of each of several texts
    std::vector<Payload> parts;           // of a part, or of each of several

    std::string_view text() const { return texts.empty() ? std::string_view() : texts.front(); }
    bool flag() const { return json == "true"; }
};

struct Field {
    std::string name;
    Kind kind;
    bool nullable;
    bool required;
    std::string default_json;
    double least = -std::numeric_limits<double>::infinity(), most = std::numeric_limits<double>::infinity();
    bool above_least = false;
    std::vector<std::string> choices;
    std::unique_ptr<Shape> part;
    Value preset;  // of `default_json`
};

struct Shape {
    std::vector<Field> fields;

    // Index of a field; negative with Python's error set where there is none.
    int at(const char* name) const;
};

// The fields of one payload or part of it, in the shape's order. Views into the text that was read.
struct Payload {
    std::vector<Value> values;

    const Value& operator[](int field) const { return values[static_cast<size_t>(field)]; }
};

// Fills `payload` from an object; false in doubt. `known_only`: a field that the shape does not have is a doubt too.
bool read_payload(const Shape& shape, std::string_view json, bool known_only, Payload& payload);

// `shape` from a list of (name, kind, nullable, default or None, least, above least, most, choices, part), see
// assembly/shapes.py; false with Python's error set.
bool make_shape(PyObject* fields, Shape& shape);

}  // namespace headrace
