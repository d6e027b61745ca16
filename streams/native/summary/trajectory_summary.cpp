// The Python type that checks a whole trajectory, and takes from it what a reward of its outcome needs.

#include "trajectory_summary.hpp"

#include <memory>

#include "columns/trajectory_fields.hpp"
#include "payloads/arrays.hpp"
#include "payloads/payload.hpp"
#include "payloads/segment_arrays.hpp"

namespace headrace {
namespace {

struct Rules {
    Shape shape;
    TrajectoryFields fields;
    ArrayCodec codec;
};

struct Reading {
    std::unique_ptr<const Rules> rules;
    SegmentReader segments;
    Payload payload;

    explicit Reading(std::unique_ptr<const Rules> made)
        : rules(std::move(made)), segments(rules->codec, rules->fields.segment) {}
};

struct TrajectorySummary {
    PyObject_HEAD
    Reading* reading;
};

Reading*& reading_of(PyObject* object) { return reinterpret_cast<TrajectorySummary*>(object)->reading; }

Ref none() { return Ref::borrowed(Py_None); }

// A text without escapes, or None.
Ref text_or_none(const Value& value) {
    if (value.is_null) return none();
    return Ref(PyUnicode_FromStringAndSize(value.text.data(), static_cast<Py_ssize_t>(value.text.size())));
}

Ref integer_or_none(const Value& value) {
    return value.is_null ? none() : Ref(PyLong_FromLongLong(value.number.integer));
}

Ref defects_of(const Value& value) {
    Ref all(PyTuple_New(static_cast<Py_ssize_t>(value.texts.size())));
    for (size_t index = 0; all && index < value.texts.size(); ++index) {
        const std::string_view text = value.texts[index];
        PyObject* defect = PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
        if (!defect) return Ref();
        PyTuple_SET_ITEM(all.get(), static_cast<Py_ssize_t>(index), defect);
    }
    return all;
}

Ref list_of(const std::vector<int64_t>& numbers) {
    Ref all(PyList_New(static_cast<Py_ssize_t>(numbers.size())));
    for (size_t index = 0; all && index < numbers.size(); ++index) {
        PyObject* number = PyLong_FromLongLong(numbers[index]);
        if (!number) return Ref();
        PyList_SET_ITEM(all.get(), static_cast<Py_ssize_t>(index), number);
    }
    return all;
}

// A tuple of these, of which none may be empty.
template <typename... Items>
PyObject* tuple_of(const Items&... items) {
    return (... && items) ? PyTuple_Pack(sizeof...(items), items.get()...) : nullptr;
}

PyObject* summarize(Reading& reading, std::string_view json) {
    const auto& of = reading.rules->fields.own;
    const Payload& own = reading.payload;
    if (!read_payload(reading.rules->shape, json, false, reading.payload, false)) Py_RETURN_NONE;
    const Value &name = own[of.trajectory_id], &started = own[of.started], &outcome = own[of.outcome];
    if (name.text.find('\\') != std::string_view::npos) Py_RETURN_NONE;
    const Outcome read = reading.segments.read(own[of.segments], started);
    if (read == Outcome::kError) return nullptr;
    if (read == Outcome::kDoubt) Py_RETURN_NONE;
    return tuple_of(
        text_or_none(name), started.is_null ? none() : Ref(to_bytes(started.json)),
        outcome.is_null ? none() : Ref(PyFloat_FromDouble(outcome.number.value)), defects_of(own[of.defects]),
        list_of(reading.segments.versions()), integer_or_none(own[of.sampled_tokens]),
        Ref(PyLong_FromSize_t(own[of.turns].all_parts().size())), text_or_none(own[of.status]),
        integer_or_none(own[of.ended_ms]), integer_or_none(own[of.continuations]));
}

PyObject* read(PyObject* object, PyObject* json) {
    if (!PyBytes_Check(json)) {
        PyErr_SetString(PyExc_TypeError, "a payload must be bytes");
        return nullptr;
    }
    return guarded([&] { return summarize(*reading_of(object), bytes_view(json)); }, static_cast<PyObject*>(nullptr));
}

PyObject* make(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
    static const char* names[] = {"shape", "decode_array", "max_array_bytes", "max_logprob", nullptr};
    PyObject *shape, *decode;
    long long max_array_bytes;
    double max_logprob;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "$OOLd", const_cast<char**>(names), &shape, &decode,
                                     &max_array_bytes, &max_logprob)) {
        return nullptr;
    }
    return guarded([&]() -> PyObject* {
        auto rules = std::make_unique<Rules>();
        rules->codec = {{}, {}, Ref::borrowed(decode), 0, max_array_bytes, max_logprob};
        if (!make_shape(shape, rules->shape) || !rules->fields.find(rules->shape)) return nullptr;
        auto reading = std::make_unique<Reading>(std::move(rules));
        PyObject* made = type->tp_alloc(type, 0);
        if (made) reading_of(made) = reading.release();
        return made;
    }, static_cast<PyObject*>(nullptr));
}

void destroy(PyObject* object) {
    delete reading_of(object);
    Py_TYPE(object)->tp_free(object);
}

PyMethodDef kMethods[] = {
    {"read", read, METH_O, "What a reward needs of the trajectory in these bytes of JSON; None if Python has to read it."},
    {nullptr, nullptr, 0, nullptr},
};

PyTypeObject trajectory_summary_type() {
    PyTypeObject type = type_of<TrajectorySummary>(
        "headrace.streams.native.speedups.TrajectorySummary",
        "Checks trajectories, and takes from them what a reward of the outcome needs.", make, destroy);
    type.tp_methods = kMethods;
    return type;
}

}  // namespace

PyTypeObject TrajectorySummaryType = trajectory_summary_type();

}  // namespace headrace
