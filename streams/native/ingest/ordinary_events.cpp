// Folds ordinary events: the first of a new trajectory, or the next of an open one without gaps.
//
// The rules are in streams/assembly/fold.py, and the state stays in Python. All other events are left to Python
// unchanged: ends, duplicates, gaps, dead letters, late events, and events at a deadline or a limit.

#include "ordinary_events.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "arrival.hpp"
#include "envelope_time.hpp"
#include "open_state.hpp"

namespace headrace {
namespace {

struct Limits {
    long long max_event_bytes, max_trajectory_bytes, max_trajectory_events, max_open, max_open_bytes, record_bytes;
    long long trajectory_bytes;
    long long idle_timeout_ms, idle_step_ms, grace_step_ms;
};

struct OrdinaryEvents {
    PyObject_HEAD
    PyTypeObject* trajectory_type;
    PyObject *stream_ms, *idle_ms, *grace_ms, *look_at, *held_events, *held_bytes, *open, *quiet, *remembered;  // names
    PyObject *ahead, *closed_count, *catch_up_at, *move_to_end;
    uint32_t facts;  // a bit for each ordinary type
    std::vector<std::string>* others;  // further ordinary types, of which only the name is known
    Limits limits;
};

// The fold's fields that ordinary events change, for the duration of one call.
struct Fold {
    Ref open, quiet, remembered, ahead;
    long long closed_count = 0, catch_up_at = 0;  // nothing closes here
    long long stream_ms = 0, idle_ms = 0, grace_ms = 0, look_at = 0, held_events = 0, held_bytes = 0;

    // The fold's clocks after a record with this timestamp.
    struct Clocks {
        long long stream_ms, idle_ms, grace_ms;
    };
    Clocks after(const Limits& limits, long long timestamp) const {
        const long long gap = std::max<long long>(0, timestamp - stream_ms);
        return {stream_ms + gap, idle_ms + std::min(gap, limits.idle_step_ms),
                grace_ms + std::min(gap, limits.grace_step_ms)};
    }
};

bool get_number(PyObject* object, PyObject* name, long long& number) {
    const Ref value(PyObject_GetAttr(object, name));
    if (!value) return false;
    number = PyLong_AsLongLong(value.get());
    return number != -1 || !PyErr_Occurred();
}

bool set_number(PyObject* object, PyObject* name, long long number) {
    const Ref value(PyLong_FromLongLong(number));
    return value && PyObject_SetAttr(object, name, value.get()) == 0;
}

bool load(const OrdinaryEvents* self, PyObject* object, Fold& fold) {
    fold.open = Ref(PyObject_GetAttr(object, self->open));
    fold.quiet = Ref(PyObject_GetAttr(object, self->quiet));
    fold.remembered = Ref(PyObject_GetAttr(object, self->remembered));
    fold.ahead = Ref(PyObject_GetAttr(object, self->ahead));
    if (!fold.open || !fold.quiet || !fold.remembered || !fold.ahead) return false;
    if (!PyDict_Check(fold.open.get()) || !PyDict_Check(fold.remembered.get()) || !PyDict_Check(fold.ahead.get())) {
        PyErr_SetString(PyExc_TypeError, "a fold keeps its trajectories in dicts");
        return false;
    }
    return get_number(object, self->stream_ms, fold.stream_ms) && get_number(object, self->idle_ms, fold.idle_ms) &&
           get_number(object, self->grace_ms, fold.grace_ms) && get_number(object, self->look_at, fold.look_at) &&
           get_number(object, self->held_events, fold.held_events) &&
           get_number(object, self->closed_count, fold.closed_count) &&
           get_number(object, self->catch_up_at, fold.catch_up_at) && get_number(object, self->held_bytes, fold.held_bytes);
}

bool store(const OrdinaryEvents* self, PyObject* object, const Fold& fold) {
    return set_number(object, self->stream_ms, fold.stream_ms) && set_number(object, self->idle_ms, fold.idle_ms) &&
           set_number(object, self->grace_ms, fold.grace_ms) && set_number(object, self->look_at, fold.look_at) &&
           set_number(object, self->held_events, fold.held_events) &&
           set_number(object, self->held_bytes, fold.held_bytes);
}

// Whether a payload begins and ends like a JSON object; others are checked by Python.
bool is_like_an_object(std::string_view value) {
    return !value.empty() && value.front() == '{' && value.back() == '}';
}

bool is_ordinary(const OrdinaryEvents* self, const Arrival* arrival) {
    if (arrival->fact != kFacts) return self->facts >> arrival->fact & 1;
    const std::string_view kind = arrival->view(arrival->kind);
    return std::find(self->others->begin(), self->others->end(), kind) != self->others->end();
}

bool is_plain(const OrdinaryEvents* self, const Arrival* arrival) {
    if (arrival->subject == nullptr || arrival->sequence < 0 || !arrival->value) return false;
    if (arrival->timestamp < 0 || arrival->timestamp >= kMaxTime) return false;
    if (arrival->time_ms == kNoTime || !is_like_an_object(arrival->view(arrival->value))) return false;
    if (arrival->sequence >= self->limits.max_trajectory_events) return false;
    if (arrival->size > self->limits.max_event_bytes) return false;
    return is_ordinary(self, arrival);
}

enum class Took { kYes, kNo, kFailed };

bool has_room(const OrdinaryEvents* self, const Fold& fold, long long size, long long added) {
    return size <= self->limits.max_trajectory_bytes && fold.held_bytes + added <= self->limits.max_open_bytes;
}

void hold(Fold& fold, const Fold::Clocks& now, long long added) {
    fold.stream_ms = now.stream_ms;
    fold.idle_ms = now.idle_ms;
    fold.grace_ms = now.grace_ms;
    fold.held_events += 1;
    fold.held_bytes += added;
}

// Folds the first event of a new trajectory.
Took start(const OrdinaryEvents* self, Fold& fold, const Arrival* arrival, PyObject* object) {
    const std::string_view id = bytes_view(arrival->subject);
    const auto id_bytes = static_cast<long long>(id.size());
    const long long base = self->limits.trajectory_bytes + 2 * id_bytes;
    const long long added = base + self->limits.record_bytes + arrival->size + id_bytes;
    if (arrival->sequence != 0 || !has_room(self, fold, added, added)) return Took::kNo;
    if (PyDict_GET_SIZE(fold.open.get()) >= self->limits.max_open || !names_trajectory(arrival)) return Took::kNo;
    const int known = PyDict_Contains(fold.remembered.get(), arrival->subject);
    if (known) return known < 0 ? Took::kFailed : Took::kNo;
    const int written = PyDict_Contains(fold.ahead.get(), arrival->subject);
    if (written) return written < 0 ? Took::kFailed : Took::kNo;

    const Fold::Clocks now = fold.after(self->limits, arrival->timestamp);
    const Ref made(PyObject_CallFunction(reinterpret_cast<PyObject*>(self->trajectory_type), "s#iLLLLL", id.data(),
                                         static_cast<Py_ssize_t>(id.size()), arrival->partition,
                                         static_cast<long long>(arrival->offset), fold.stream_ms,
                                         static_cast<long long>(arrival->timestamp),
                                         static_cast<long long>(arrival->timestamp), fold.closed_count));
    const Ref place(PyLong_FromLong(0));
    if (!made || !place) return Took::kFailed;
    auto* trajectory = reinterpret_cast<OpenState*>(made.get());
    trajectory->last = arrival->offset;
    trajectory->quiet_since = now.idle_ms;
    trajectory->contiguous = trajectory->runs = 1;
    trajectory->size = added;
    if (PyDict_SetItem(trajectory->records, place.get(), object) < 0 ||
        PyObject_SetItem(fold.open.get(), arrival->subject, made.get()) < 0 ||
        PyObject_SetItem(fold.quiet.get(), arrival->subject, made.get()) < 0) {
        return Took::kFailed;
    }
    fold.look_at = std::min(fold.look_at, now.stream_ms + self->limits.idle_timeout_ms);
    hold(fold, now, added);
    return Took::kYes;
}

// Folds the next event of a trajectory without gaps.
Took go_on(const OrdinaryEvents* self, Fold& fold, const Arrival* arrival, PyObject* object, OpenState* trajectory) {
    const bool whole = trajectory->end == Py_None && trajectory->contiguous == arrival->sequence &&
                       PyDict_GET_SIZE(trajectory->records) == arrival->sequence &&
                       PyDict_GET_SIZE(trajectory->unreadable) == 0;
    const auto id_bytes = static_cast<long long>(PyBytes_GET_SIZE(arrival->subject));
    const long long added = self->limits.record_bytes + arrival->size + id_bytes;
    if (!whole || !has_room(self, fold, trajectory->size + added, added)) return Took::kNo;

    const Fold::Clocks now = fold.after(self->limits, arrival->timestamp);
    const Ref place(PyLong_FromLongLong(arrival->sequence));
    const Ref moved(PyObject_CallMethodOneArg(fold.quiet.get(), self->move_to_end, arrival->subject));
    if (!place || !moved || PyDict_SetItem(trajectory->records, place.get(), object) < 0) return Took::kFailed;
    trajectory->last = arrival->offset;
    trajectory->quiet_since = now.idle_ms;
    trajectory->contiguous += 1;
    trajectory->runs = 1;
    trajectory->size += added;
    trajectory->first_ms = std::min(trajectory->first_ms, arrival->timestamp);
    trajectory->last_ms = std::max(trajectory->last_ms, arrival->timestamp);
    hold(fold, now, added);
    return Took::kYes;
}

Took take_one(const OrdinaryEvents* self, Fold& fold, PyObject* object) {
    if (!is_arrival(object)) return Took::kNo;
    const auto* arrival = reinterpret_cast<const Arrival*>(object);
    if (arrival->offset >= fold.catch_up_at) return Took::kNo;
    if (arrival->timestamp > fold.stream_ms && arrival->timestamp >= fold.look_at) return Took::kNo;  // closes something
    if (!is_plain(self, arrival)) return Took::kNo;
    PyObject* found = PyDict_GetItemWithError(fold.open.get(), arrival->subject);
    if (found == nullptr) return PyErr_Occurred() ? Took::kFailed : start(self, fold, arrival, object);
    if (Py_TYPE(found) != self->trajectory_type) return Took::kNo;
    return go_on(self, fold, arrival, object, reinterpret_cast<OpenState*>(found));
}

PyObject* take(PyObject* object, PyObject* const* arguments, Py_ssize_t count) {
    const auto* self = reinterpret_cast<const OrdinaryEvents*>(object);
    if (count != 3 || !PyList_Check(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "take(fold, records, start): records must be a list");
        return nullptr;
    }
    PyObject *state = arguments[0], *records = arguments[1];
    Py_ssize_t index = PyLong_AsSsize_t(arguments[2]);
    if (index == -1 && PyErr_Occurred()) return nullptr;
    Fold fold;
    if (!load(self, state, fold)) return nullptr;
    const Py_ssize_t begin = index;
    Took took = Took::kYes;
    while (index < PyList_GET_SIZE(records)) {
        took = take_one(self, fold, PyList_GET_ITEM(records, index));
        if (took != Took::kYes) break;
        ++index;
    }
    if (took == Took::kFailed) return nullptr;
    if (index > begin && !store(self, state, fold)) return nullptr;
    return PyLong_FromSsize_t(index);
}

bool find_facts(OrdinaryEvents* self, PyObject* kinds) {
    const Ref sequence(PySequence_Fast(kinds, "kinds must be a sequence"));
    if (!sequence) return false;
    for (Py_ssize_t index = 0; index < PySequence_Fast_GET_SIZE(sequence.get()); ++index) {
        PyObject* kind = PySequence_Fast_GET_ITEM(sequence.get(), index);
        if (!PyBytes_Check(kind)) {
            PyErr_SetString(PyExc_TypeError, "a kind must be bytes");
            return false;
        }
        const Fact fact = fact_of(bytes_view(kind));
        if (fact != kFacts) self->facts |= 1u << fact;
        else self->others->emplace_back(bytes_view(kind));
    }
    return true;
}

void destroy(PyObject* object) {
    auto* self = reinterpret_cast<OrdinaryEvents*>(object);
    for (PyObject* owned : {self->stream_ms, self->idle_ms, self->grace_ms, self->look_at, self->held_events,
                            self->held_bytes, self->open, self->quiet, self->remembered, self->ahead,
                            self->closed_count, self->catch_up_at, self->move_to_end,
                            reinterpret_cast<PyObject*>(self->trajectory_type)}) {
        Py_XDECREF(owned);
    }
    delete self->others;
    Py_TYPE(object)->tp_free(object);
}

PyObject* make(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
    static const char* names[] = {"trajectory", "kinds", "record_bytes", "trajectory_bytes", "max_event_bytes", "max_trajectory_bytes",
                                  "max_trajectory_events", "max_open", "max_open_bytes", "idle_timeout_ms",
                                  "idle_step_ms", "grace_step_ms", nullptr};
    PyObject *trajectory, *kinds;
    Limits limits;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!O$LLLLLLLLLL", const_cast<char**>(names), &PyType_Type,
                                     &trajectory, &kinds, &limits.record_bytes, &limits.trajectory_bytes,
                                     &limits.max_event_bytes,
                                     &limits.max_trajectory_bytes, &limits.max_trajectory_events, &limits.max_open,
                                     &limits.max_open_bytes, &limits.idle_timeout_ms, &limits.idle_step_ms,
                                     &limits.grace_step_ms)) {
        return nullptr;
    }
    if (!PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(trajectory), &OpenStateType)) {
        PyErr_SetString(PyExc_TypeError, "open trajectories must be OpenStates");
        return nullptr;
    }
    Ref made(type->tp_alloc(type, 0));
    if (!made) return nullptr;
    auto* self = reinterpret_cast<OrdinaryEvents*>(made.get());
    self->limits = limits;
    self->trajectory_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(trajectory));
    self->stream_ms = PyUnicode_InternFromString("stream_ms");
    self->idle_ms = PyUnicode_InternFromString("idle_ms");
    self->grace_ms = PyUnicode_InternFromString("grace_ms");
    self->look_at = PyUnicode_InternFromString("_look_at");
    self->held_events = PyUnicode_InternFromString("held_events");
    self->held_bytes = PyUnicode_InternFromString("held_bytes");
    self->open = PyUnicode_InternFromString("_open");
    self->quiet = PyUnicode_InternFromString("_quiet");
    self->remembered = PyUnicode_InternFromString("_remembered");
    self->ahead = PyUnicode_InternFromString("_ahead");
    self->catch_up_at = PyUnicode_InternFromString("_catch_up_at");
    self->closed_count = PyUnicode_InternFromString("closed_count");
    self->move_to_end = PyUnicode_InternFromString("move_to_end");
    if (PyErr_Occurred()) return nullptr;
    const bool complete = guarded([&] {
        self->others = new std::vector<std::string>();
        return find_facts(self, kinds);
    }, false);
    return complete ? made.release() : nullptr;
}

PyMethodDef kMethods[] = {
    {"take", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(take)), METH_FASTCALL,
     "Fold ordinary events of `records` from `start` on; returns the index of the first that is not."},
    {nullptr, nullptr, 0, nullptr},
};

PyTypeObject ordinary_events_type() {
    PyTypeObject type = type_of<OrdinaryEvents>(
        "headrace.streams.native.speedups.OrdinaryEvents",
        "Folds what is ordinary, and leaves the rest.", make, destroy);
    type.tp_methods = kMethods;
    return type;
}

}  // namespace

PyTypeObject OrdinaryEventsType = ordinary_events_type();

}  // namespace headrace
