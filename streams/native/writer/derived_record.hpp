// Key and headers of a trajectory's record, as built by `trajectory_record` of assembly/trajectory_record.py.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "payloads/arrays.hpp"
#include "python.hpp"

namespace headrace {

class RecordRules {
public:
    // `headers`: template headers, in order; `id_prefix`: the prefix of every id's hash input. False with
    // Python's error set.
    bool make(PyObject* headers, PyObject* id_prefix, PyObject* sha1, PyObject* sha256);

    // Builds `key` and `headers`. `traceparent`: the trace to continue, or empty.
    Outcome write(std::string_view trajectory_id, int32_t partition, int64_t offset, int64_t time_ms,
                  std::string_view traceparent, Ref& key, Ref& headers) const;

private:
    enum Varying { kSame, kId, kTime, kSubject, kTrace };
    struct Header {
        Varying varying;
        Ref pair;  // the finished pair if it is the same in every record
    };

    bool append_id(std::string_view trajectory_id, int32_t partition, int64_t offset, std::string& id) const;
    bool append_trace(std::string_view traceparent, std::string_view id, std::string& trace) const;

    std::vector<Header> headers_;
    std::string id_prefix_;
    Ref sha1_, sha256_;
};

}  // namespace headrace
