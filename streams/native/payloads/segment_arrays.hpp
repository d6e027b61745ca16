// The arrays of a trajectory's segments, and the policy versions that sampled them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "payload.hpp"

namespace headrace {

// Fields by index in the shapes of a segment and its spans, and of the start that the trajectory has.
struct SegmentFields {
    int token_ids, loss_mask, logprobs, version_spans, sampling_spans;
    struct { int version, end, run; } span;
    int sampling_end;
    int start_run;
};

// Checks segments as `Segment._axes_agree` does; its memory is reused from one trajectory to the next.
class SegmentReader {
public:
    SegmentReader(const ArrayCodec& codec, const SegmentFields& fields) : codec_(codec), of_(fields) {}

    // Sets tokens() and versions() for a trajectory with these `segments` and this `started`; kDoubt if Python has to.
    Outcome read(const Value& segments, const Value& started);

    int64_t tokens() const { return tokens_; }
    // Versions of the trajectory's run that sampled it, ascending, as `Trajectory.versions`.
    const std::vector<int64_t>& versions() const { return versions_; }

private:
    Outcome read_one(const Payload& segment);

    const ArrayCodec& codec_;
    const SegmentFields& of_;
    std::string token_ids_, mask_, logprobs_;
    std::vector<int64_t> versions_;
    int64_t tokens_ = 0;
};

}  // namespace headrace
