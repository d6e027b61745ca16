// `Arrival` of streams/assembly/arrival.py, an event in memory, as one block.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "facts.hpp"
#include "python.hpp"

namespace headrace {

// As in schemas/envelope.py; tests/streams/native compare the two.
inline constexpr std::string_view kSourceHeader = "ce_source", kSequenceHeader = "ce_sequence";

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

// Calls `use` with each header, in order.
template <typename Use>
void each_header(const Arrival* arrival, Use&& use) {
    const char* at = arrival->bytes + arrival->headers.at;
    for (uint32_t index = 0; index < arrival->header_count; ++index) {
        int32_t lengths[2];
        std::memcpy(lengths, at, sizeof lengths);
        at += sizeof lengths;
        RawHeader header{{at, static_cast<size_t>(lengths[0])}, std::nullopt};
        at += lengths[0];
        if (lengths[1] >= 0) {
            header.value = std::string_view(at, static_cast<size_t>(lengths[1]));
            at += lengths[1];
        }
        use(header);
    }
}

// Whether the subject is a valid trajectory id.
bool names_trajectory(const Arrival* arrival);

}  // namespace headrace
