// A closed trajectory's arrivals → the JSON of its record, as `conclude` of assembly/assemble.py would write it.
//
// Only where nothing is missing, late or unreadable; and whatever is doubted in any of its events, Python reads again
// from the start.
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

// What is the same for every trajectory; made in trajectory_rules.cpp.
struct TrajectoryRules {
    std::array<Shape, kFacts> shapes;
    ArrayCodec codec;
    Ref sha256;
    SegmentRules segments;
    TurnFields turns;
    int consent, role, run, status, answer, outcome;
    std::array<Defect, kDefects> defect_order;
    size_t max_record_bytes;

    // From the models' shapes, the fields of the records, and all defects in order. False with Python's error set
    // where this module was built for others.
    bool find(PyObject* shapes, PyObject* fields, PyObject* defects);
};

inline constexpr std::array<const char*, kDefects> kDefectNames = {
    "no_start",         "no_consent",       "frozen_role",      "redacted",      "no_token_ids",
    "no_logprobs",      "nothing_sampled",  "unknown_version",  "other_run",     "broken_prefix", "truncated_sampling",
    "greedy_sampling",  "altered_sampling", "unknown_sampling", "oversize",
};

// What a history knows beside its arrivals.
struct About {
    std::string_view trajectory_id;
    long long duplicates;
    int partition;
    long long first, last, closed_offset;
    std::optional<std::string_view> start_id;
};

// Room that one trajectory after the other uses.
struct Room {
    std::vector<const Arrival*> arrivals;
    std::vector<Payload> payloads;
    std::string json;
};

// Writes to `room.json` what `records`, a dict of arrivals by sequence number, add up to; `traceparent` becomes a view
// of the first in them that is one, or empty.
Outcome write_trajectory(const TrajectoryRules& rules, PyObject* records, const About& about, Room& room,
                         std::string_view& traceparent);

}  // namespace headrace
