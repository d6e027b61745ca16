#include "event_rules.hpp"

#include <algorithm>
#include <bit>

namespace headrace {
namespace {

// Index of the column `name` in pairs of name and form; negative with Python's error set.
Py_ssize_t find_column(PyObject* columns, const char* name) {
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(columns); ++index) {
        const char *found, *form;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(columns, index), "ss", &found, &form)) return -1;
        if (std::string_view(found) == name) return index;
    }
    PyErr_Format(PyExc_LookupError, "there is no column %s", name);
    return -1;
}

bool has_arrays(const Shape& shape) {
    return std::any_of(shape.fields.begin(), shape.fields.end(), [](const Field& field) {
        return field.kind == Kind::kTokens || (field.part && has_arrays(*field.part));
    });
}

// Whether a field of this kind can fill a column of this form. Of arrays only `sampled_ids` is counted.
bool can_fill(Form form, Kind kind, bool is_sampled) {
    switch (form) {
        case Form::kText: return kind == Kind::kText || kind == Kind::kChoice;
        case Form::kJson: return kind == Kind::kAny;
        case Form::kNumber: return kind == Kind::kFloat;
        case Form::kCount: return kind == Kind::kInteger || (kind == Kind::kTokens && is_sampled);
        case Form::kNarrow:
        case Form::kWide:
        case Form::kFlag:
        case Form::kDouble: return false;
    }
    return false;
}

// Fills `cell` of a column of this form, which can be filled with a field of this kind; false in doubt. A negative number
// becomes one that no column holds.
bool fill(Form form, Kind kind, const Value& value, int64_t sampled, Cell& cell) {
    if (value.is_null) return true;
    switch (form) {
        case Form::kText:
            cell.text = value.text;
            return value.text.find('\\') == std::string_view::npos;
        case Form::kJson: return value.json == "null" || put_json(value.json, cell);
        case Form::kNumber: cell.bits = std::bit_cast<uint64_t>(value.number.value); break;
        default: cell.bits = static_cast<uint64_t>(kind == Kind::kTokens ? sampled : value.number.integer);
    }
    cell.is_null = false;
    return true;
}

}  // namespace

bool EventRules::make(PyObject* columns, PyObject* own_names, PyObject* event_kinds) {
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(columns); ++index) {
        const char *name, *form;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(columns, index), "ss", &name, &form)) return false;
        const auto* found = std::find(std::begin(kFormNames), std::end(kFormNames), std::string_view(form));
        if (found == std::end(kFormNames)) {
            PyErr_Format(PyExc_LookupError, "it has no columns of the form %s, as %s is", form, name);
            return false;
        }
        forms.push_back(static_cast<Form>(found - kFormNames));
    }
    const Ref names(PySequence_Fast(own_names, "own must be a sequence"));
    if (!names) return false;
    for (Py_ssize_t index = 0; index < PySequence_Fast_GET_SIZE(names.get()); ++index) {
        const char* name = PyUnicode_AsUTF8(PySequence_Fast_GET_ITEM(names.get(), index));
        if (name == nullptr) return false;
        if (index >= kOwn || std::string_view(name) != kOwnNames[index]) {
            PyErr_Format(PyExc_LookupError, "it cannot fill the column %s of every row", name);
            return false;
        }
    }
    for (size_t index = 0; index < kOwn; ++index) {
        const Py_ssize_t column = find_column(columns, kOwnNames[index]);
        if (column < 0) return false;
        own[index] = static_cast<size_t>(column);
    }
    for (int fact = 0; fact < kFacts; ++fact) {
        const Ref name(PyUnicode_FromString(kFactNames[fact].data()));
        PyObject* entry = name ? PyDict_GetItemWithError(event_kinds, name.get()) : nullptr;
        if (PyErr_Occurred()) return false;
        if (entry && !make_kind(Fact(fact), entry, columns)) return false;
    }
    return true;
}

bool EventRules::make_kind(Fact fact, PyObject* entry, PyObject* columns) {
    EventKind& kind = kinds[fact];
    PyObject *fields, *fills;
    int has_trajectory;
    if (!PyTuple_Check(entry)) {
        PyErr_SetString(PyExc_TypeError, "an event type must be a tuple");
        return false;
    }
    if (!PyArg_ParseTuple(entry, "OpO!", &fields, &has_trajectory, &PyList_Type, &fills)) return false;
    if (!make_shape(fields, kind.shape)) return false;
    kind.has_trajectory = has_trajectory;
    if (fact == kCalled && !calls.find(kind.shape)) return false;
    kind.is_read = fact == kCalled || !has_arrays(kind.shape);
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(fills); ++index) {
        const char *field_name, *column_name;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(fills, index), "ss", &field_name, &column_name)) return false;
        const std::string path(field_name);
        const size_t dot = path.find('.');
        const int field = kind.shape.at(path.substr(0, dot).c_str());
        if (field < 0) return false;
        const Field* filling = &kind.shape.fields[static_cast<size_t>(field)];
        int inner = -1;
        if (dot != std::string::npos) {
            if (!filling->part || filling->nullable || filling->kind == Kind::kParts) {
                PyErr_Format(PyExc_LookupError, "it cannot read %s", field_name);
                return false;
            }
            inner = filling->part->at(path.substr(dot + 1).c_str());
            if (inner < 0) return false;
            filling = &filling->part->fields[static_cast<size_t>(inner)];
        }
        const Py_ssize_t column = find_column(columns, column_name);
        if (column < 0) return false;
        const bool is_sampled = fact == kCalled && field == calls.sampled_ids;
        const Form form = forms[static_cast<size_t>(column)];
        if (!can_fill(form, filling->kind, is_sampled)) kind.is_read = false;
        kind.fills.push_back({field, inner, filling->kind, static_cast<size_t>(column)});
    }
    return true;
}

// As `from_headers` of schemas/envelope.py, for the envelopes that an arrival has a time of. A malformed sequence number
// is negative, and so becomes one that no column holds.
bool EventRules::read_own(const Arrival* arrival, bool has_trajectory, std::vector<Cell>& cells) const {
    if (arrival->time_ms == kNoTime || arrival->subject == nullptr) return false;
    bool has_sequence = false;
    each_header(arrival, [&](const RawHeader& header) {
        if (header.name == kSourceHeader) cells[own[kSource]].text = *header.value;
        else if (header.name == kSequenceHeader) has_sequence = true;
    });
    cells[own[kId]].text = arrival->view(arrival->id);
    cells[own[kTime]].bits = static_cast<uint64_t>(arrival->time_ms);
    cells[own[kPartition]].bits = static_cast<uint64_t>(arrival->partition);
    cells[own[kOffset]].bits = static_cast<uint64_t>(arrival->offset);
    cells[own[kLogged]].bits = static_cast<uint64_t>(arrival->timestamp < 0 ? arrival->time_ms : arrival->timestamp);
    cells[own[kType]].text = arrival->view(arrival->kind);
    if (has_trajectory) cells[own[kTrajectory]].text = bytes_view(arrival->subject);
    cells[own[kSequence]].bits = has_sequence ? static_cast<uint64_t>(arrival->sequence) : 0;
    cells[own[kPayload]].text = arrival->view(arrival->value);
    return true;
}

Outcome EventRules::read(const Arrival* arrival, EventScratch& scratch) const {
    if (arrival->fact == kFacts || !arrival->value) return Outcome::kDoubt;
    const EventKind& kind = kinds[arrival->fact];
    scratch.cells.assign(forms.size(), Cell());
    if (!kind.is_read || !read_own(arrival, kind.has_trajectory, scratch.cells)) return Outcome::kDoubt;
    if (!read_payload(kind.shape, arrival->view(arrival->value), false, scratch.payload, false)) return Outcome::kDoubt;
    if (arrival->fact == kCalled) {
        const Outcome outcome = read_call_arrays(codec, calls, scratch.payload, scratch.arrays);
        if (outcome != Outcome::kDone) return outcome;
    }
    for (const auto& [field, inner, field_kind, column] : kind.fills) {
        const int64_t sampled = count_of(scratch.arrays.sampled);
        const Value& outer = scratch.payload[field];
        if (inner >= 0 && outer.all_parts().empty()) return Outcome::kDoubt;
        const Value& value = inner < 0 ? outer : outer.all_parts().front()[inner];
        if (!fill(forms[column], field_kind, value, sampled, scratch.cells[column])) return Outcome::kDoubt;
    }
    return Outcome::kDone;
}

}  // namespace headrace
