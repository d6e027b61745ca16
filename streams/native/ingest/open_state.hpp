// An open trajectory's state in one block of memory: `PlainOpenState` of streams/assembly/open_state.py.
#pragma once

#include <cstdint>

#include "python.hpp"

namespace headrace {

// Fields that every event changes are adjacent: with thousands of open trajectories none is in the processor's cache.
struct OpenState {
    PyObject_HEAD
    PyObject* records;     // dict
    PyObject* unreadable;  // dict
    PyObject* end;         // int or None
    int64_t contiguous, size, last, quiet_since, first_ms, last_ms;
    PyObject* trajectory_id;
    PyObject* labels;  // set
    int64_t partition, first, stream_ms_before, closed_before, ended_at, duplicates, runs;
};

extern PyTypeObject OpenStateType;

}  // namespace headrace
