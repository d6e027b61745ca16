#include "payload.hpp"

#include <algorithm>
#include <cmath>

namespace headrace {
namespace {

constexpr std::string_view kKinds[] = {"text",  "integer", "float",  "flag",   "any",  "object",
                                       "objects", "texts", "choice", "tokens", "part", "known_part", "parts",
                                       "integers", "choices", "part_map", "integer_map", "unknown"};

bool read_object(const Shape& shape, JsonScanner& scanner, bool known_only, int depth, Payload& payload);

bool in_bounds(const Field& field, double number) {
    return number <= field.most && (field.above_least ? number > field.least : number >= field.least);
}

// Elements of a list, each read by `read`.
template <typename Read>
bool read_list(JsonScanner& scanner, Read&& read) {
    if (!scanner.take('[')) return false;
    if (scanner.take(']')) return true;
    do {
        if (!read()) return false;
    } while (scanner.take(','));
    return scanner.take(']');
}

// Elements of a map, each read by `read`; `names` gets their names, of which none is twice there.
template <typename Read>
bool read_map(JsonScanner& scanner, double longest, std::vector<std::string_view>& names, Read&& read) {
    if (!scanner.take('{')) return false;
    if (scanner.take('}')) return true;
    do {
        std::string_view name;
        if (!scanner.string(name) || static_cast<double>(name.size()) > longest || !scanner.take(':')) return false;
        if (names.size() == kMaxFields || std::find(names.begin(), names.end(), name) != names.end()) return false;
        names.push_back(name);
        if (!read()) return false;
    } while (scanner.take(','));
    return scanner.take('}');
}

bool read_integer(const Field& field, JsonScanner& scanner, Number& number) {
    return scanner.number(number) && number.is_integer && in_bounds(field, number.value);
}

bool read_choice(const Field& field, JsonScanner& scanner, std::string_view& text) {
    return scanner.string(text) && std::find(field.choices.begin(), field.choices.end(), text) != field.choices.end();
}

bool read_kind(const Field& field, JsonScanner& scanner, bool known_only, int depth, Value& value) {
    switch (field.kind) {
        case Kind::kText: return scanner.string(value.text) && static_cast<double>(value.text.size()) <= field.most;
        case Kind::kTokens: return scanner.string(value.text);
        case Kind::kInteger: return read_integer(field, scanner, value.number);
        case Kind::kFloat:
            return scanner.number(value.number) && (!value.number.is_integer || !scanner.is_copied()) &&
                   std::fabs(value.number.value) < kPlainFloat && in_bounds(field, value.number.value);
        case Kind::kFlag: return scanner.literal("true") || scanner.literal("false");
        case Kind::kAny: return scanner.value(depth);
        case Kind::kObject: return scanner.peek() == '{' && scanner.value(depth);
        case Kind::kObjects:
            return read_list(scanner, [&] { return scanner.peek() == '{' && scanner.value(depth + 1); });
        case Kind::kTexts: return read_list(scanner, [&] { return scanner.string(value.texts.emplace_back()); });
        case Kind::kChoice: return read_choice(field, scanner, value.text);
        case Kind::kChoices:
            return read_list(scanner, [&] { return read_choice(field, scanner, value.texts.emplace_back()); });
        case Kind::kIntegers:
            return read_list(scanner, [&] {
                if (!read_integer(field, scanner, value.number)) return false;
                value.integers.push_back(value.number.integer);
                return true;
            });
        case Kind::kIntegerMap:
            return read_map(scanner, std::numeric_limits<double>::infinity(), value.texts, [&] {
                if (!read_integer(field, scanner, value.number)) return false;
                value.integers.push_back(value.number.integer);
                return true;
            });
        case Kind::kPartMap:
            return read_map(scanner, field.most, value.texts, [&] {
                return read_object(*field.part, scanner, known_only, depth + 1, value.next_part());
            });
        case Kind::kPart: return read_object(*field.part, scanner, known_only, depth, value.next_part());
        case Kind::kKnownPart: return read_object(*field.part, scanner, true, depth, value.next_part());
        case Kind::kParts:
            return read_list(scanner, [&] {
                return read_object(*field.part, scanner, known_only, depth + 1, value.next_part());
            });
        case Kind::kUnknown: return false;
    }
    return false;
}

bool read_field(const Field& field, JsonScanner& scanner, bool known_only, int depth, Value& value) {
    const char* begin = scanner.position();
    value.texts.clear();
    value.integers.clear();
    value.part_count = 0;
    value.is_null = field.nullable && scanner.peek() == 'n';
    const bool read = value.is_null ? scanner.literal("null") : read_kind(field, scanner, known_only, depth, value);
    value.json = {begin, static_cast<size_t>(scanner.position() - begin)};
    return read;
}

// Index of the field `name`, searched from `next` on, as most fields are in the model's order; or the field count.
size_t find_field(const Shape& shape, std::string_view name, size_t next) {
    const size_t count = shape.fields.size();
    for (size_t index = next; index < count; ++index) {
        if (shape.fields[index].name == name) return index;
    }
    for (size_t index = 0; index < next; ++index) {
        if (shape.fields[index].name == name) return index;
    }
    return count;
}

bool read_object(const Shape& shape, JsonScanner& scanner, bool known_only, int depth, Payload& payload) {
    const size_t count = shape.fields.size();
    if (payload.read.size() < count) payload.read.resize(count);
    payload.fields.assign(count, nullptr);
    std::vector<std::string_view> unknown;
    if (depth >= kMaxNesting || !scanner.take('{')) return false;
    scanner.skip_spaces();
    size_t next = 0;
    for (bool more = !scanner.take('}'); more;) {
        std::string_view name;
        scanner.skip_spaces();
        if (!scanner.string(name)) return false;
        scanner.skip_spaces();
        if (!scanner.take(':')) return false;
        scanner.skip_spaces();
        const size_t index = find_field(shape, name, next);
        if (index < count) {
            if (payload.fields[index]) return false;  // duplicate: the later would replace the earlier
            Value& value = payload.read[index];
            payload.fields[index] = &value;
            if (!read_field(shape.fields[index], scanner, known_only, depth + 1, value)) return false;
            next = index + 1;
        } else {
            if (known_only || std::find(unknown.begin(), unknown.end(), name) != unknown.end()) return false;
            if (unknown.size() == kMaxFields) return false;
            unknown.push_back(name);
            if (!scanner.value(depth + 1)) return false;
        }
        scanner.skip_spaces();
        more = scanner.take(',');
        if (!more && !scanner.take('}')) return false;
    }
    for (size_t index = 0; index < count; ++index) {
        if (payload.fields[index]) continue;
        if (shape.fields[index].required) return false;
        payload.fields[index] = &shape.fields[index].preset;
    }
    return true;
}

bool text_of(PyObject* object, std::string& text) {
    Py_ssize_t length;
    const char* found = PyUnicode_AsUTF8AndSize(object, &length);
    if (found == nullptr) return false;
    text.assign(found, static_cast<size_t>(length));
    return true;
}

bool make_choices(PyObject* names, std::vector<std::string>& choices) {
    const Ref sequence(PySequence_Fast(names, "choices must be a sequence"));
    if (!sequence) return false;
    for (Py_ssize_t index = 0; index < PySequence_Fast_GET_SIZE(sequence.get()); ++index) {
        if (!text_of(PySequence_Fast_GET_ITEM(sequence.get(), index), choices.emplace_back())) return false;
    }
    return true;
}

bool make_field(PyObject* entry, Field& field) {
    PyObject *name, *kind, *preset, *choices, *part;
    int nullable, above_least;
    if (!PyTuple_Check(entry)) {
        PyErr_SetString(PyExc_TypeError, "a field must be a tuple");
        return false;
    }
    if (!PyArg_ParseTuple(entry, "UUpOdpdOO", &name, &kind, &nullable, &preset, &field.least, &above_least,
                          &field.most, &choices, &part)) {
        return false;
    }
    std::string kind_name;
    if (!text_of(name, field.name) || !text_of(kind, kind_name) || !make_choices(choices, field.choices)) return false;
    const auto* found = std::find(std::begin(kKinds), std::end(kKinds), kind_name);
    if (found == std::end(kKinds)) {
        PyErr_Format(PyExc_ValueError, "there is no kind %s", kind_name.c_str());
        return false;
    }
    field.kind = static_cast<Kind>(found - kKinds);
    field.nullable = nullable;
    field.above_least = above_least;
    field.required = preset == Py_None;
    if (part != Py_None) {
        field.part = std::make_unique<Shape>();
        if (!make_shape(part, *field.part)) return false;
    }
    return field.required || text_of(preset, field.default_json);
}

}  // namespace

int Shape::at(const char* name) const {
    for (size_t index = 0; index < fields.size(); ++index) {
        if (fields[index].name == name) return static_cast<int>(index);
    }
    PyErr_Format(PyExc_LookupError, "there is no field %s", name);
    return -1;
}

bool read_payload(const Shape& shape, std::string_view json, bool known_only, Payload& payload, bool is_copied) {
    JsonScanner scanner(json, is_copied);
    scanner.skip_spaces();
    if (!read_object(shape, scanner, known_only, 0, payload)) return false;
    scanner.skip_spaces();
    return scanner.at_end();
}

bool make_shape(PyObject* fields, Shape& shape) {
    const Ref sequence(PySequence_Fast(fields, "a shape must be a sequence of fields"));
    if (!sequence) return false;
    for (Py_ssize_t index = 0; index < PySequence_Fast_GET_SIZE(sequence.get()); ++index) {
        if (!make_field(PySequence_Fast_GET_ITEM(sequence.get(), index), shape.fields.emplace_back())) return false;
    }
    if (shape.fields.size() > kMaxFields) {
        PyErr_Format(PyExc_ValueError, "more than %zu fields", kMaxFields);
        return false;
    }
    // Done last, because a preset's views point into its field, which must not move afterwards.
    for (Field& field : shape.fields) {
        if (field.required || field.kind == Kind::kUnknown) continue;
        JsonScanner scanner(field.default_json);
        if (!read_field(field, scanner, true, 0, field.preset) || !scanner.at_end()) {
            PyErr_Format(PyExc_ValueError, "default of %s: %s", field.name.c_str(), field.default_json.c_str());
            return false;
        }
    }
    return true;
}

}  // namespace headrace
