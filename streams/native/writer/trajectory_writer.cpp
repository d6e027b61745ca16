// The Python type that writes the record of a closed trajectory.

#include "trajectory_writer.hpp"

#include "derived_record.hpp"
#include "trajectories.hpp"

namespace headrace {
namespace {

struct Writing {
    TrajectoryRules trajectory;
    RecordRules record;
    Room room;
};

struct TrajectoryWriter {
    PyObject_HEAD
    Writing* writing;
};

Writing*& writing_of(PyObject* object) { return reinterpret_cast<TrajectoryWriter*>(object)->writing; }

// A tuple (key, value, headers) or None.
PyObject* write_record(Writing& writing, PyObject* records, const About& about, long long time_ms) {
    std::string_view traceparent;
    switch (write_trajectory(writing.trajectory, records, about, writing.room, traceparent)) {
        case Outcome::kDone: break;
        case Outcome::kDoubt: Py_RETURN_NONE;
        case Outcome::kError: return nullptr;
    }
    Ref key, headers;
    switch (writing.record.write(about.trajectory_id, about.partition, about.first, time_ms, traceparent, key,
                                 headers)) {
        case Outcome::kDone: break;
        case Outcome::kDoubt: Py_RETURN_NONE;
        case Outcome::kError: return nullptr;
    }
    const Ref value(to_bytes(writing.room.json));
    return value ? PyTuple_Pack(3, key.get(), value.get(), headers.get()) : nullptr;
}

PyObject* write(PyObject* object, PyObject* const* arguments, Py_ssize_t count) {
    if (count != 9 || !PyDict_Check(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "write(records, trajectory_id, duplicates, partition, first, last, time_ms, "
                                         "closed_offset, start_id): records must be a dict");
        return nullptr;
    }
    Py_ssize_t id_length;
    const char* id = PyUnicode_AsUTF8AndSize(arguments[1], &id_length);
    if (id == nullptr) return nullptr;
    long long numbers[6];
    for (int index = 0; index < 6; ++index) {
        numbers[index] = PyLong_AsLongLong(arguments[index + 2]);
        if (numbers[index] == -1 && PyErr_Occurred()) return nullptr;
    }
    const auto [duplicates, partition, first, last, time_ms, closed_offset] = numbers;
    About about{{id, static_cast<size_t>(id_length)}, duplicates, static_cast<int>(partition), first, last,
                closed_offset, {}};
    if (PyObject* start_id = arguments[8]; PyBytes_Check(start_id)) {
        about.start_id = bytes_view(start_id);
    } else if (start_id != Py_None) {
        PyErr_SetString(PyExc_TypeError, "start_id must be bytes or None");
        return nullptr;
    }
    return guarded([&] { return write_record(*writing_of(object), arguments[0], about, time_ms); },
                   static_cast<PyObject*>(nullptr));
}

PyObject* make(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
    static const char* names[] = {"shapes", "fields", "defects", "array_type", "encode_array", "decode_array",
                                  "compress_from", "max_array_bytes", "sha1", "sha256", "max_tokens",
                                  "least_temperature", "max_logprob", "max_record_bytes", "id_prefix", "headers", nullptr};
    PyObject *shapes, *fields, *defects, *array_type, *encode, *decode, *sha1, *sha256, *id_prefix, *headers;
    Py_ssize_t max_tokens, max_record_bytes;
    long long compress_from, max_array_bytes;
    double least_temperature, max_logprob;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "$O!OOOOOLLOOnddnSO", const_cast<char**>(names), &PyDict_Type,
                                     &shapes, &fields, &defects, &array_type, &encode, &decode, &compress_from,
                                     &max_array_bytes, &sha1, &sha256, &max_tokens, &least_temperature, &max_logprob, &max_record_bytes, &id_prefix,
                                     &headers)) {
        return nullptr;
    }
    Ref made(type->tp_alloc(type, 0));
    if (!made) return nullptr;
    const bool complete = guarded([&] {
        auto* writing = writing_of(made.get()) = new Writing();
        TrajectoryRules& rules = writing->trajectory;
        rules.codec = {Ref::borrowed(array_type), Ref::borrowed(encode), Ref::borrowed(decode), compress_from,
                       max_array_bytes, max_logprob};
        rules.sha256 = Ref::borrowed(sha256);
        rules.segments = {&rules.codec, {}, sha256, static_cast<size_t>(max_tokens), least_temperature};
        rules.max_record_bytes = static_cast<size_t>(max_record_bytes);
        return rules.find(shapes, fields, defects) && writing->record.make(headers, id_prefix, sha1, sha256);
    }, false);
    return complete ? made.release() : nullptr;
}

void destroy(PyObject* object) {
    delete writing_of(object);
    Py_TYPE(object)->tp_free(object);
}

PyMethodDef kMethods[] = {
    {"write", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(write)), METH_FASTCALL,
     "Key, value and headers of the record of the trajectory with these `records`, or None in doubt."},
    {nullptr, nullptr, 0, nullptr},
};

PyTypeObject trajectory_writer_type() {
    PyTypeObject type = type_of<TrajectoryWriter>(
        "headrace.streams.native.speedups.TrajectoryWriter",
        "Writes trajectories in which nothing is doubtful.", make, destroy);
    type.tp_methods = kMethods;
    return type;
}

}  // namespace

PyTypeObject TrajectoryWriterType = trajectory_writer_type();

}  // namespace headrace
