// What fills the columns of an event's row, as Python states it: this room knows no column but those that every event
// fills from its envelope and position.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "column.hpp"
#include "ingest/arrival.hpp"
#include "payloads/model_calls.hpp"

namespace headrace {

// Columns that every row fills, in the order of EVENT_COLUMNS (clickhouse/rows.py).
enum Own { kId, kTime, kSource, kPartition, kOffset, kLogged, kType, kTrajectory, kSequence, kPayload, kOwn };
inline constexpr const char* kOwnNames[kOwn] = {"id_sent",   "time", "source",        "partition", "offset",
                                                "logged_at", "type", "trajectory_id", "seq",       "payload"};

// A field that fills a column, or a field of a part.
struct Fill {
    int field;
    int inner;  // of the part's shape; negative: the field itself
    Kind kind;
    size_t column;
};

struct EventKind {
    Shape shape;
    bool has_trajectory = true;  // whether the subject is one
    std::vector<Fill> fills;
    bool is_read = false;  // whether all of this can be read here; other types are left to Python
};

// Memory that is reused from one event to the next.
struct EventScratch {
    Payload payload;
    CallArrays arrays;
    std::vector<Cell> cells;
};

struct EventRules {
    std::vector<Form> forms;  // of each column
    std::array<size_t, kOwn> own;
    std::array<EventKind, kFacts> kinds;
    CallArrayFields calls;
    ArrayCodec codec;

    // `columns`: (name, form) of each column; `own`: names of those that every row fills; `kinds`: for each event type
    // its shape, whether its subject is a trajectory, and (field, column) pairs; a part's field is `part.field`. False with Python's error set.
    bool make(PyObject* columns, PyObject* own, PyObject* kinds);

    // Fills `scratch.cells` with the row of `arrival`, as views into it; kDoubt if Python has to decide.
    Outcome read(const Arrival* arrival, EventScratch& scratch) const;

private:
    bool make_kind(Fact fact, PyObject* entry, PyObject* columns);
    bool read_own(const Arrival* arrival, bool has_trajectory, std::vector<Cell>& cells) const;
};

}  // namespace headrace
