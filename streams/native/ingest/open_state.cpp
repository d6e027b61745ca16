#include "open_state.hpp"

#include <structmember.h>

namespace headrace {
namespace {

OpenState* self_of(PyObject* object) { return reinterpret_cast<OpenState*>(object); }

PyObject* make(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
    PyObject* trajectory_id;
    long long partition, first, stream_ms_before, first_ms, last_ms, closed_before;
    if (keywords != nullptr && PyDict_GET_SIZE(keywords) != 0) {
        PyErr_SetString(PyExc_TypeError, "an open trajectory is made of what stands in its place, without names");
        return nullptr;
    }
    if (!PyArg_ParseTuple(arguments, "ULLLLLL", &trajectory_id, &partition, &first, &stream_ms_before, &first_ms,
                          &last_ms, &closed_before)) {
        return nullptr;
    }
    Ref made(type->tp_alloc(type, 0));  // zeroed
    if (!made) return nullptr;
    OpenState* self = self_of(made.get());
    self->trajectory_id = Py_NewRef(trajectory_id);
    self->partition = partition;
    self->first = first;
    self->stream_ms_before = stream_ms_before;
    self->first_ms = first_ms;
    self->last_ms = last_ms;
    self->closed_before = closed_before;
    self->end = Py_NewRef(Py_None);
    self->records = PyDict_New();
    self->unreadable = PyDict_New();
    self->labels = PySet_New(nullptr);
    return self->records && self->unreadable && self->labels ? made.release() : nullptr;
}

void destroy(PyObject* object) {
    OpenState* self = self_of(object);
    for (PyObject* owned : {self->records, self->unreadable, self->end, self->trajectory_id, self->labels}) {
        Py_XDECREF(owned);
    }
    Py_TYPE(object)->tp_free(object);
}

PyMemberDef kMembers[] = {
    {"trajectory_id", T_OBJECT_EX, offsetof(OpenState, trajectory_id), READONLY, nullptr},
    {"partition", T_LONGLONG, offsetof(OpenState, partition), READONLY, nullptr},
    {"first", T_LONGLONG, offsetof(OpenState, first), READONLY, nullptr},
    {"stream_ms_before", T_LONGLONG, offsetof(OpenState, stream_ms_before), READONLY, nullptr},
    {"first_ms", T_LONGLONG, offsetof(OpenState, first_ms), 0, nullptr},
    {"last_ms", T_LONGLONG, offsetof(OpenState, last_ms), 0, nullptr},
    {"closed_before", T_LONGLONG, offsetof(OpenState, closed_before), READONLY, nullptr},
    {"last", T_LONGLONG, offsetof(OpenState, last), 0, nullptr},
    {"quiet_since", T_LONGLONG, offsetof(OpenState, quiet_since), 0, nullptr},
    {"records", T_OBJECT_EX, offsetof(OpenState, records), READONLY, nullptr},
    {"unreadable", T_OBJECT_EX, offsetof(OpenState, unreadable), READONLY, nullptr},
    {"labels", T_OBJECT_EX, offsetof(OpenState, labels), READONLY, nullptr},
    {"contiguous", T_LONGLONG, offsetof(OpenState, contiguous), 0, nullptr},
    {"runs", T_LONGLONG, offsetof(OpenState, runs), 0, nullptr},
    {"end", T_OBJECT, offsetof(OpenState, end), 0, nullptr},
    {"ended_at", T_LONGLONG, offsetof(OpenState, ended_at), 0, nullptr},
    {"duplicates", T_LONGLONG, offsetof(OpenState, duplicates), 0, nullptr},
    {"size", T_LONGLONG, offsetof(OpenState, size), 0, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyTypeObject open_state_type() {
    PyTypeObject type = type_of<OpenState>(
        "headrace.streams.native.speedups.OpenState",
        "What is held of an open trajectory. It never is in a cycle, so nothing looks for one.", make, destroy);
    type.tp_flags |= Py_TPFLAGS_BASETYPE;
    type.tp_members = kMembers;
    return type;
}

}  // namespace

PyTypeObject OpenStateType = open_state_type();

}  // namespace headrace
