// Writes the JSON of a closed trajectory's record from its arrivals, as `conclude` of assembly/assemble.py would.
//
// Only for trajectories without missing, late or unreadable events. If any event is doubted, Python reads the whole
// trajectory again.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "ingest/arrival.hpp"
#include "facts.hpp"
#include "segments.hpp"
#include "turns.hpp"

namespace headrace {

// Data shared by all trajectories; built in trajectory_rules.cpp.
struct TrajectoryRules {
    std::array<Shape, kFacts> shapes;
    ArrayCodec codec;
    Ref sha256;
    SegmentRules segments;
    TurnFields turns;
    int consent, role, run, status, answer, outcome, continuations;
    std::array<Defect, kDefects> defect_order;
    size_t max_record_bytes;

    // Initialised from the models' shapes, the fields of the records, and all defects in order. False with Python's
    // error set if this module was built for others.
    bool find(PyObject* shapes, PyObject* fields, PyObject* defects);
};

inline constexpr std::array<const char*, kDefects> kDefectNames = {
    "no_start",         "no_consent",       "frozen_role",      "redacted",      "no_token_ids",
    "no_logprobs",      "nothing_sampled",  "unknown_version",  "other_run",     "broken_prefix", "truncated_sampling",
    "greedy_sampling",  "altered_sampling", "unknown_sampling", "oversize",
};

// The data of a history in addition to its arrivals.
struct About {
    std::string_view trajectory_id;
    long long duplicates;
    int partition;
    long long first, last, closed_offset;
    std::optional<std::string_view> start_id;
};

// Buffers that are reused from one trajectory to the next.
struct Room {
    std::vector<const Arrival*> arrivals;
    std::vector<Payload> payloads;
    std::string json;
};

// Writes the trajectory of `records`, a dict of arrivals by sequence number, to `room.json`. `traceparent` becomes a
// view of the first valid one in them, or empty.
Outcome write_trajectory(const TrajectoryRules& rules, PyObject* records, const About& about, Room& room,
                         std::string_view& traceparent);

}  // namespace headrace
