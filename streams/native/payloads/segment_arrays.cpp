#include "segment_arrays.hpp"

#include <algorithm>

namespace headrace {

// The arrays of a segment, in the reader's memory; kDoubt if they disagree.
Outcome SegmentReader::read_one(const Payload& segment) {
    const Value& logprobs = segment[of_.logprobs];
    Outcome outcome = read_array(codec_, segment[of_.token_ids].text, 'i', sizeof(int32_t), token_ids_);
    if (outcome == Outcome::kDone) outcome = read_array(codec_, segment[of_.loss_mask].text, 'b', 1, mask_);
    if (outcome == Outcome::kDone && !logprobs.is_null) {
        outcome = read_array(codec_, logprobs.text, 'f', sizeof(float), logprobs_);
    }
    if (outcome != Outcome::kDone) return outcome;
    if (!std::all_of(mask_.begin(), mask_.end(), [](char bit) { return bit == 0 || bit == 1; })) return Outcome::kDoubt;
    const auto sampled = static_cast<size_t>(std::count(mask_.begin(), mask_.end(), 1));
    const auto ends_there = [&](int spans, int end) {
        const auto all = segment[spans].all_parts();
        return all.empty() || all.back()[end].number.integer == static_cast<int64_t>(sampled);
    };
    const bool agree = mask_.size() * sizeof(int32_t) == token_ids_.size() &&
                       (logprobs.is_null || logprobs_.size() == sampled * sizeof(float)) &&
                       ends_there(of_.version_spans, of_.span.end) && ends_there(of_.sampling_spans, of_.sampling_end);
    const bool are_valid = logprobs.is_null || are_logprobs(logprobs_, codec_.max_logprob);
    return agree && are_valid ? Outcome::kDone : Outcome::kDoubt;
}

Outcome SegmentReader::read(const Value& segments, const Value& started) {
    versions_.clear();
    tokens_ = 0;
    for (const Payload& segment : segments.all_parts()) {
        const Outcome outcome = read_one(segment);
        if (outcome != Outcome::kDone) return outcome;
        tokens_ += static_cast<int64_t>(mask_.size());
        for (const Payload& span : segment[of_.version_spans].all_parts()) {
            const Value& run = span[of_.span.run];
            const bool is_foreign =
                !run.is_null && !started.is_null && run.text != started.all_parts().front()[of_.start_run].text;
            const Value& version = span[of_.span.version];
            if (!is_foreign && !version.is_null) versions_.push_back(version.number.integer);
        }
    }
    std::sort(versions_.begin(), versions_.end());
    versions_.erase(std::unique(versions_.begin(), versions_.end()), versions_.end());
    return Outcome::kDone;
}

}  // namespace headrace
