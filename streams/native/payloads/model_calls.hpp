// The token arrays of a ModelCalled, and its validator `_arrays_agree` (schemas/events.py).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "arrays.hpp"
#include "payload.hpp"

namespace headrace {

inline constexpr size_t kTokenBytes = 4;

inline int64_t count_of(std::string_view token_bytes) {
    return static_cast<int64_t>(token_bytes.size() / kTokenBytes);
}

// Fields of a ModelCalled and of its version spans, by index in their shapes.
struct CallArrayFields {
    int prefix_length, prefix_sha256, context_ids, sampled_ids, logprobs, version_spans;
    int start, end;

    // False with Python's error set if the shape lacks one.
    bool find(const Shape& call);
};

// The bytes of the arrays; empty where an array is null.
struct CallArrays {
    std::string context, sampled, logprobs;
    bool has_context = false, has_sampled = false, has_logprobs = false;
};

// Reads the arrays of `call`; kDoubt if one is invalid or they are inconsistent.
Outcome read_call_arrays(const ArrayCodec& codec, const CallArrayFields& fields, const Payload& call,
                         CallArrays& arrays);

}  // namespace headrace
