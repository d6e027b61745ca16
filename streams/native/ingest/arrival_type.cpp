// The Python type `Arrival`: its attributes, and its construction from another client's record.

#include "arrival.hpp"

namespace headrace {
namespace {

Arrival* self_of(PyObject* object) { return reinterpret_cast<Arrival*>(object); }

PyObject* piece_or_none(PyObject* object, Piece piece) {
    if (!piece) Py_RETURN_NONE;
    return to_bytes(self_of(object)->view(piece));
}

PyObject* get_topic(PyObject* self, void*) { return Py_NewRef(self_of(self)->topic); }
PyObject* get_partition(PyObject* self, void*) { return PyLong_FromLong(self_of(self)->partition); }
PyObject* get_offset(PyObject* self, void*) { return PyLong_FromLongLong(self_of(self)->offset); }
PyObject* get_timestamp(PyObject* self, void*) { return PyLong_FromLongLong(self_of(self)->timestamp); }
PyObject* get_size(PyObject* self, void*) { return PyLong_FromLongLong(self_of(self)->size); }
PyObject* get_key(PyObject* self, void*) { return piece_or_none(self, self_of(self)->key); }
PyObject* get_value(PyObject* self, void*) { return piece_or_none(self, self_of(self)->value); }
PyObject* get_kind(PyObject* self, void*) { return piece_or_none(self, self_of(self)->kind); }

PyObject* get_id(PyObject* self, void*) { return piece_or_none(self, self_of(self)->id); }

PyObject* get_subject(PyObject* self, void*) {
    PyObject* subject = self_of(self)->subject;
    return Py_NewRef(subject ? subject : Py_None);
}

PyObject* get_sequence(PyObject* self, void*) {
    if (self_of(self)->sequence < 0) Py_RETURN_NONE;
    return PyLong_FromLongLong(self_of(self)->sequence);
}

PyObject* get_time_ms(PyObject* self, void*) {
    if (self_of(self)->time_ms == kNoTime) Py_RETURN_NONE;
    return PyLong_FromLongLong(self_of(self)->time_ms);
}

PyObject* get_names_trajectory(PyObject* self, void*) { return PyBool_FromLong(names_trajectory(self_of(self))); }

PyObject* get_headers(PyObject* object, void*) {
    Ref pairs(PyList_New(self_of(object)->header_count));
    if (!pairs) return nullptr;
    Py_ssize_t index = 0;
    bool complete = true;
    each_header(self_of(object), [&](const RawHeader& header) {
        if (!complete) return;
        const Ref name(PyUnicode_DecodeUTF8(header.name.data(), static_cast<Py_ssize_t>(header.name.size()), nullptr));
        const Ref value = header.value ? Ref(to_bytes(*header.value)) : Ref::borrowed(Py_None);
        PyObject* pair = name && value ? PyTuple_Pack(2, name.get(), value.get()) : nullptr;
        complete = pair != nullptr;
        if (complete) PyList_SET_ITEM(pairs.get(), index++, pair);
    });
    return complete ? pairs.release() : nullptr;
}

// Null with Python's error set if `object` is neither bytes nor None.
bool optional_view(PyObject* object, const char* what, std::optional<std::string_view>& view) {
    if (object == Py_None) return true;
    if (!PyBytes_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s must be bytes or None, not %.100s", what, Py_TYPE(object)->tp_name);
        return false;
    }
    view = bytes_view(object);
    return true;
}

bool raw_header(PyObject* pair, RawHeader& header) {
    if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2 || !PyUnicode_Check(PyTuple_GET_ITEM(pair, 0))) {
        PyErr_SetString(PyExc_TypeError, "a header must be a pair of a name and bytes or None");
        return false;
    }
    Py_ssize_t length;
    const char* name = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(pair, 0), &length);
    if (name == nullptr) return false;
    header.name = {name, static_cast<size_t>(length)};
    return optional_view(PyTuple_GET_ITEM(pair, 1), "a header's value", header.value);
}

PyObject* make(PyTypeObject*, PyObject* arguments, PyObject* keywords) {
    static const char* names[] = {"topic", "partition", "offset", "timestamp", "key", "value", "headers", nullptr};
    PyObject *topic, *key, *value, *headers;
    int partition;
    long long offset, timestamp;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "UiLLOOO", const_cast<char**>(names), &topic, &partition,
                                     &offset, &timestamp, &key, &value, &headers)) {
        return nullptr;
    }
    return guarded([&]() -> PyObject* {
        RawRecord record{topic, partition, offset, timestamp, {}, {}, {}};
        if (!optional_view(key, "key", record.key) || !optional_view(value, "value", record.value)) return nullptr;
        const Ref pairs(PySequence_Fast(headers, "headers must be a sequence"));
        if (!pairs) return nullptr;
        for (Py_ssize_t index = 0; index < PySequence_Fast_GET_SIZE(pairs.get()); ++index) {
            if (!raw_header(PySequence_Fast_GET_ITEM(pairs.get(), index), record.headers.emplace_back())) {
                return nullptr;
            }
        }
        return arrival_of(record);
    }, static_cast<PyObject*>(nullptr));
}

void destroy(PyObject* object) {
    Py_DECREF(self_of(object)->topic);
    Py_XDECREF(self_of(object)->subject);
    PyObject_Free(object);
}

PyGetSetDef kAttributes[] = {
    {"topic", get_topic, nullptr, nullptr, nullptr},
    {"partition", get_partition, nullptr, nullptr, nullptr},
    {"offset", get_offset, nullptr, nullptr, nullptr},
    {"timestamp", get_timestamp, nullptr, nullptr, nullptr},
    {"key", get_key, nullptr, nullptr, nullptr},
    {"value", get_value, nullptr, nullptr, nullptr},
    {"headers", get_headers, nullptr, nullptr, nullptr},
    {"id", get_id, nullptr, nullptr, nullptr},
    {"kind", get_kind, nullptr, nullptr, nullptr},
    {"subject", get_subject, nullptr, nullptr, nullptr},
    {"sequence", get_sequence, nullptr, nullptr, nullptr},
    {"size", get_size, nullptr, nullptr, nullptr},
    {"time_ms", get_time_ms, nullptr, nullptr, nullptr},
    {"names_trajectory", get_names_trajectory, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyTypeObject arrival_type() {
    PyTypeObject type = type_of<Arrival>(
        "headrace.streams.native.speedups.Arrival", "A record of `events`, and what its headers say.", make, destroy);
    type.tp_basicsize = offsetof(Arrival, bytes);
    type.tp_itemsize = 1;
    type.tp_getset = kAttributes;
    return type;
}

}  // namespace

PyTypeObject ArrivalType = arrival_type();

}  // namespace headrace
