// The Python type that appends rows of events to Arrow columns.

#include "event_columns.hpp"

#include <algorithm>
#include <memory>

#include "event_rules.hpp"

namespace headrace {
namespace {

struct Building {
    std::shared_ptr<const EventRules> rules;
    std::vector<Column> columns;
    size_t count = 0;
    EventScratch scratch;

    explicit Building(std::shared_ptr<const EventRules> made) : rules(std::move(made)) {
        columns.reserve(rules->forms.size());
        for (const Form form : rules->forms) columns.emplace_back(form);
    }
};

struct EventColumns {
    PyObject_HEAD
    Building* building;
};

Building*& building_of(PyObject* object) { return reinterpret_cast<EventColumns*>(object)->building; }

// Appends the row of `record`, or nothing.
Outcome take_one(Building& building, PyObject* record) {
    if (!is_arrival(record)) return Outcome::kDoubt;
    const Outcome read = building.rules->read(reinterpret_cast<const Arrival*>(record), building.scratch);
    if (read != Outcome::kDone) return read;
    const auto& cells = building.scratch.cells;
    auto& columns = building.columns;
    for (size_t index = 0; index < cells.size(); ++index) {
        if (!columns[index].fits(cells[index])) return Outcome::kDoubt;
    }
    for (size_t index = 0; index < cells.size(); ++index) {
        if (!columns[index].reserve(cells[index])) return Outcome::kError;
    }
    for (size_t index = 0; index < cells.size(); ++index) columns[index].append(cells[index], building.count);
    ++building.count;
    return Outcome::kDone;
}

// Makes room for the payloads, nearly all of the bytes, so that they are not copied while their column grows.
bool reserve_payloads(Building& building, PyObject* records) {
    size_t bytes = 0;
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(records); ++index) {
        PyObject* record = PyList_GET_ITEM(records, index);
        if (!is_arrival(record)) continue;
        const Piece value = reinterpret_cast<const Arrival*>(record)->value;
        if (value) bytes += static_cast<size_t>(value.length);
    }
    return building.columns[building.rules->own[kPayload]].reserve(std::min<size_t>(bytes, INT32_MAX));
}

PyObject* take(PyObject* object, PyObject* const* arguments, Py_ssize_t count) {
    if (count != 2 || !PyList_Check(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "take(records, start): records must be a list");
        return nullptr;
    }
    PyObject* records = arguments[0];
    Py_ssize_t index = PyLong_AsSsize_t(arguments[1]);
    if (index < 0) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "start must not be negative");
        return nullptr;
    }
    return guarded([&]() -> PyObject* {
        if (index == 0 && !reserve_payloads(*building_of(object), records)) return nullptr;
        while (index < PyList_GET_SIZE(records)) {
            const Ref record = Ref::borrowed(PyList_GET_ITEM(records, index));
            const Outcome taken = take_one(*building_of(object), record.get());
            if (taken == Outcome::kError) return nullptr;
            if (taken == Outcome::kDoubt) break;
            ++index;
        }
        return PyLong_FromSsize_t(index);
    }, static_cast<PyObject*>(nullptr));
}

PyObject* release(PyObject* object, PyObject*) {
    Building& building = *building_of(object);
    building.count = 0;
    Ref all(PyList_New(0));
    for (Column& column : building.columns) {
        const Ref buffers(column.release());
        if (!all || !buffers || PyList_Append(all.get(), buffers.get()) < 0) return nullptr;
    }
    return all.release();
}

PyObject* wrap(PyTypeObject* type, std::shared_ptr<const EventRules> rules) {
    Ref made(type->tp_alloc(type, 0));
    if (made) building_of(made.get()) = new Building(std::move(rules));
    return made.release();
}

PyObject* fresh(PyObject* object, PyObject*) {
    return guarded([&] { return wrap(Py_TYPE(object), building_of(object)->rules); }, static_cast<PyObject*>(nullptr));
}

PyObject* make(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
    static const char* names[] = {"columns", "own", "kinds", "decode_array", "max_array_bytes", "max_logprob", nullptr};
    PyObject *columns, *own, *kinds, *decode;
    long long max_array_bytes;
    double max_logprob;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "$O!OO!OLd", const_cast<char**>(names), &PyList_Type,
                                     &columns, &own, &PyDict_Type, &kinds, &decode, &max_array_bytes, &max_logprob)) {
        return nullptr;
    }
    return guarded([&]() -> PyObject* {
        const auto rules = std::make_shared<EventRules>();
        rules->codec = {{}, {}, Ref::borrowed(decode), 0, max_array_bytes, max_logprob};
        return rules->make(columns, own, kinds) ? wrap(type, rules) : nullptr;
    }, static_cast<PyObject*>(nullptr));
}

void destroy(PyObject* object) {
    delete building_of(object);
    Py_TYPE(object)->tp_free(object);
}

PyObject* get_count(PyObject* object, void*) { return PyLong_FromSize_t(building_of(object)->count); }

PyObject* get_types(PyObject* object, void*) {
    Ref types(PyList_New(0));
    for (int fact = 0; fact < kFacts; ++fact) {
        if (!building_of(object)->rules->kinds[fact].is_read) continue;
        const Ref name(PyUnicode_FromString(kFactNames[fact].data()));
        if (!types || !name || PyList_Append(types.get(), name.get()) < 0) return nullptr;
    }
    return types.release();
}

PyMethodDef kMethods[] = {
    {"take", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(take)), METH_FASTCALL,
     "Append the rows of plain events of `records` from `start` on; returns the index of the first other record."},
    {"release", release, METH_NOARGS, "Arrow's buffers of each column, with which it becomes empty."},
    {"fresh", fresh, METH_NOARGS, "One without rows, for the same tables."},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef kAttributes[] = {
    {"count", get_count, nullptr, "Number of rows.", nullptr},
    {"types", get_types, nullptr, "Event types that it reads.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyTypeObject event_columns_type() {
    PyTypeObject type = type_of<EventColumns>(
        "headrace.streams.native.speedups.EventColumns",
        "Appends the rows of plain events to Arrow columns.", make, destroy);
    type.tp_methods = kMethods;
    type.tp_getset = kAttributes;
    return type;
}

}  // namespace

PyTypeObject EventColumnsType = event_columns_type();

}  // namespace headrace
