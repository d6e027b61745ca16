// Folds model calls into segments, like `SegmentFold` of assembly/segments.py: the same rules over the same fields.
#pragma once

#include <bitset>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hashing.hpp"
#include "payloads/model_calls.hpp"

namespace headrace {

// The values of records.Defect that follow from the content of events.
enum Defect {
    kNoStart, kNoConsent, kFrozenRole, kRedacted, kNoTokenIds, kNoLogprobs, kNothingSampled, kUnknownVersion,
    kOtherRun, kBrokenPrefix, kTruncatedSampling, kGreedySampling, kAlteredSampling, kUnknownSampling, kTooManyTokens, kDefects
};
using Defects = std::bitset<kDefects>;

// Fields of a ModelCalled and of its parts, by index in their shapes.
struct CallFields : CallArrayFields {
    int sampling, hidden;
    int version, run;
    int temperature, top_p, top_k, min_p;
    int presence_penalty, frequency_penalty, repetition_penalty, min_tokens, altered_by, sampled_logprobs;

    // False with Python's error set if the shape lacks one.
    bool find(const Shape& call);
};

struct SegmentRules {
    const ArrayCodec* codec;
    CallFields fields;
    PyObject* sha256;  // hashlib.sha256
    size_t max_tokens;
    double least_temperature;
};

// Hashes of prefixes of one growing array, in ascending length: each byte is hashed once.
class PrefixHash {
public:
    // The hash of the first `size` bytes of `token_ids`, in hex; false with Python's error set.
    bool find(PyObject* sha256, std::string_view token_ids, size_t size, std::string& hex);

private:
    Hash hash_;
    size_t hashed_ = 0;
};

class SegmentFold {
public:
    explicit SegmentFold(const SegmentRules& rules) : rules_(rules) {}

    Defects defects;
    int64_t sampled_tokens = 0;

    // Whether an engine named a training run other than `run`, a text as JSON.
    bool sampled_by_another(std::string_view run) const { return several_runs_ || (!run_.empty() && run_ != run); }
    // Folds the next model call; kDoubt if its arrays are inconsistent.
    Outcome add(const Payload& call, int64_t& sampled);
    // The segment of each model call, in order; empty if there are no segments.
    const std::vector<size_t>& segments_of_calls() const { return calls_; }
    // Appends the list of segments; false with Python's error set.
    bool write(std::string& json) const;

private:
    struct Span {
        std::string_view version, run;  // JSON
        int64_t start, end;
    };
    struct Temperature {
        std::string_view json;
        bool is_null;
        double value;
        int64_t start, end;
    };
    struct Draft {
        std::string token_ids, loss_mask, logprobs;  // bytes of the arrays
        bool has_logprobs = true, has_spans = true;
        std::vector<Span> spans;
        std::vector<Temperature> temperatures;
        int64_t sampled = 0;
        PrefixHash hash, end_hash;  // of all tokens; of those at the end of a call
    };
    static constexpr size_t kNoDraft = SIZE_MAX;

    void label(const Payload& call, const CallArrays& tokens);
    void label_sampling(const Payload& sampling);
    void append_temperature(Draft& draft, const Value& temperature, int64_t sampled) const;
    bool append(const Payload& call, const CallArrays& tokens);
    bool find_prefix(const Payload& call, size_t size, size_t& draft);
    bool find_end(size_t size, std::string_view sha256, size_t& draft);
    void extend(Draft& draft, std::string_view context, const Payload& call, const CallArrays& tokens) const;
    void lose(Defect why);

    const SegmentRules& rules_;
    size_t tokens_ = 0;
    std::string_view run_;  // JSON: the first run that an engine named, or empty
    bool several_runs_ = false;
    std::vector<Draft> drafts_;
    size_t current_ = kNoDraft;  // the draft of the previous call
    std::vector<size_t> calls_;  // the draft of each call
    // Calls' ends as draft and size: those not hashed yet, and drafts by size and hash of their tokens.
    std::vector<std::pair<size_t, size_t>> unhashed_ends_;
    std::map<std::pair<size_t, std::string>, std::vector<size_t>> ends_;
    bool lost_ = false;
};

}  // namespace headrace
