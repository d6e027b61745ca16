// `Arrival` of streams/assembly/arrival.py, an event in memory, as one block.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "facts.hpp"
#include "python.hpp"

namespace headrace {

struct RawHeader {
    std::string_view name;
    std::optional<std::string_view> value;
};

// A record from a client; all members are borrowed.
struct RawRecord {
    PyObject* topic;
    int32_t partition;
    int64_t offset;
    int64_t timestamp;
    std::optional<std::string_view> key;
    std::optional<std::string_view> value;
    std::vector<RawHeader> headers;
};

// Position of a part in an arrival's bytes; a negative length means that it is missing.
struct Piece {
    uint32_t at = 0;
    int32_t length = -1;
    explicit operator bool() const { return length >= 0; }
};

inline constexpr int64_t kNoTime = INT64_MIN;

struct Arrival {
    PyObject_VAR_HEAD
    PyObject* topic;
    PyObject* subject;  // bytes, or null
    int64_t offset;
    int64_t timestamp;
    int64_t sequence;  // negative: none
    int64_t time_ms;   // kNoTime: none
    int64_t size;
    int32_t partition;
    Fact fact;
    uint32_t header_count;
    Piece key, value, headers, kind, id, traceparent;
    char bytes[1];

    std::string_view view(Piece piece) const {
        return piece ? std::string_view(bytes + piece.at, static_cast<size_t>(piece.length)) : std::string_view();
    }
};

extern PyTypeObject ArrivalType;

inline bool is_arrival(PyObject* object) { return Py_TYPE(object) == &ArrivalType; }

// Parses `record`; null with Python's error set if out of memory.
PyObject* arrival_of(const RawRecord& record);

// Whether the subject is a valid trajectory id.
bool names_trajectory(const Arrival* arrival);

}  // namespace headrace
