// The Python type that appends rows of trajectories to Arrow columns.

#include "trajectory_columns.hpp"

#include <memory>

#include "trajectory_row.hpp"

namespace headrace {
namespace {

struct Building {
    std::shared_ptr<const RowRules> rules;
    TrajectoryReader reader;
    TrajectoryRow row;
    std::vector<NestedColumn> columns;
    size_t count = 0;

    explicit Building(std::shared_ptr<const RowRules> made) : rules(std::move(made)), reader(*rules) {
        columns.reserve(kTrajectoryColumnCount);
        for (const ColumnSpec& column : kTrajectoryColumns) columns.emplace_back(column.form);
    }

    // Appends the row of the trajectory in `json`, or nothing.
    Outcome take(std::string_view json) {
        const Outcome read = reader.read(json, row);
        if (read != Outcome::kDone) return read;
        for (size_t index = 0; index < columns.size(); ++index) {
            if (!columns[index].fits(row[index])) return Outcome::kDoubt;
        }
        for (size_t index = 0; index < columns.size(); ++index) {
            if (!columns[index].append(row[index])) return Outcome::kError;
        }
        ++count;
        return Outcome::kDone;
    }
};

struct TrajectoryColumns {
    PyObject_HEAD
    Building* building;
};

Building*& building_of(PyObject* object) { return reinterpret_cast<TrajectoryColumns*>(object)->building; }

PyObject* take(PyObject* object, PyObject* json) {
    if (!PyBytes_Check(json)) {
        PyErr_SetString(PyExc_TypeError, "a payload must be bytes");
        return nullptr;
    }
    return guarded([&]() -> PyObject* {
        const Outcome taken = building_of(object)->take(bytes_view(json));
        return taken == Outcome::kError ? nullptr : PyBool_FromLong(taken == Outcome::kDone);
    }, static_cast<PyObject*>(nullptr));
}

PyObject* release(PyObject* object, PyObject*) {
    Building& building = *building_of(object);
    building.count = 0;
    Ref all(PyDict_New());
    for (size_t index = 0; index < building.columns.size(); ++index) {
        const Ref array(building.columns[index].release());
        const char* name = kTrajectoryColumns[index].name.data();
        if (!all || !array || PyDict_SetItemString(all.get(), name, array.get()) < 0) return nullptr;
    }
    return all.release();
}

PyObject* wrap(PyTypeObject* type, std::shared_ptr<const RowRules> rules) {
    auto building = std::make_unique<Building>(std::move(rules));
    PyObject* made = type->tp_alloc(type, 0);
    if (made) building_of(made) = building.release();
    return made;
}

PyObject* fresh(PyObject* object, PyObject*) {
    return guarded([&] { return wrap(Py_TYPE(object), building_of(object)->rules); }, static_cast<PyObject*>(nullptr));
}

bool make_names(PyObject* names, std::vector<std::string>& found) {
    const Ref sequence(PySequence_Fast(names, "difficulty must be a sequence"));
    if (!sequence) return false;
    for (Py_ssize_t index = 0; index < PySequence_Fast_GET_SIZE(sequence.get()); ++index) {
        const char* name = PyUnicode_AsUTF8(PySequence_Fast_GET_ITEM(sequence.get(), index));
        if (name == nullptr) return false;
        found.emplace_back(name);
    }
    return true;
}

PyObject* make(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
    static const char* names[] = {"shape", "difficulty", "decode_array", "max_array_bytes", "max_logprob", nullptr};
    PyObject *shape, *difficulty, *decode;
    long long max_array_bytes;
    double max_logprob;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "$OOOLd", const_cast<char**>(names), &shape, &difficulty,
                                     &decode, &max_array_bytes, &max_logprob)) {
        return nullptr;
    }
    return guarded([&]() -> PyObject* {
        const auto rules = std::make_shared<RowRules>();
        rules->codec = {{}, {}, Ref::borrowed(decode), 0, max_array_bytes, max_logprob};
        const bool is_made = make_shape(shape, rules->shape) && rules->fields.find(rules->shape) &&
                             make_names(difficulty, rules->difficulty);
        return is_made ? wrap(type, rules) : nullptr;
    }, static_cast<PyObject*>(nullptr));
}

void destroy(PyObject* object) {
    delete building_of(object);
    Py_TYPE(object)->tp_free(object);
}

PyObject* get_count(PyObject* object, void*) { return PyLong_FromSize_t(building_of(object)->count); }

PyMethodDef kMethods[] = {
    {"take", take, METH_O, "Append the row of the trajectory in these bytes of JSON; False if that is left to Python."},
    {"release", release, METH_NOARGS, "Arrow's arrays by column, with which it becomes empty."},
    {"fresh", fresh, METH_NOARGS, "One without rows."},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef kAttributes[] = {
    {"count", get_count, nullptr, "Number of rows.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyTypeObject trajectory_columns_type() {
    PyTypeObject type = type_of<TrajectoryColumns>(
        "headrace.streams.native.speedups.TrajectoryColumns",
        "Appends the rows of plain trajectories to Arrow columns.", make, destroy);
    type.tp_methods = kMethods;
    type.tp_getset = kAttributes;
    return type;
}

}  // namespace

PyTypeObject TrajectoryColumnsType = trajectory_columns_type();

PyObject* trajectory_columns() {
    Ref forms(PyDict_New());
    for (const ColumnSpec& column : kTrajectoryColumns) {
        const Ref form(PyUnicode_FromString(column.form.data()));
        if (!forms || !form || PyDict_SetItemString(forms.get(), column.name.data(), form.get()) < 0) return nullptr;
    }
    return forms.release();
}

}  // namespace headrace
