#include "model_calls.hpp"

#include <utility>

namespace headrace {
namespace {

bool spans_tile(const CallArrayFields& fields, const Payload& call, int64_t sampled) {
    const auto spans = call[fields.version_spans].all_parts();
    int64_t position = 0;
    for (const Payload& span : spans) {
        const int64_t end = span[fields.end].number.integer;
        if (span[fields.start].number.integer != position || end <= position) return false;
        position = end;
    }
    return spans.empty() || position == sampled;
}

}  // namespace

bool CallArrayFields::find(const Shape& call) {
    const std::pair<int*, const char*> own[] = {
        {&prefix_length, "prefix_length"}, {&prefix_sha256, "prefix_sha256"}, {&context_ids, "context_ids"},
        {&sampled_ids, "sampled_ids"},     {&logprobs, "logprobs"},           {&version_spans, "version_spans"},
    };
    for (const auto& [index, name] : own) {
        if ((*index = call.at(name)) < 0) return false;
    }
    const Shape* span = call.fields[static_cast<size_t>(version_spans)].part.get();
    if (span == nullptr) {
        PyErr_SetString(PyExc_TypeError, "version_spans must be parts");
        return false;
    }
    return (start = span->at("start")) >= 0 && (end = span->at("end")) >= 0;
}

Outcome read_call_arrays(const ArrayCodec& codec, const CallArrayFields& fields, const Payload& call,
                         CallArrays& arrays) {
    const auto read = [&](int field, char typecode, bool& there, std::string& bytes) {
        bytes.clear();
        there = !call[field].is_null;
        return there ? read_array(codec, call[field].text, typecode, kTokenBytes, bytes) : Outcome::kDone;
    };
    Outcome outcome = read(fields.context_ids, 'i', arrays.has_context, arrays.context);
    if (outcome == Outcome::kDone) outcome = read(fields.sampled_ids, 'i', arrays.has_sampled, arrays.sampled);
    if (outcome == Outcome::kDone) outcome = read(fields.logprobs, 'f', arrays.has_logprobs, arrays.logprobs);
    if (outcome != Outcome::kDone) return outcome;
    const int64_t sampled = count_of(arrays.sampled);
    const bool named = call[fields.prefix_length].number.integer == 0 || !call[fields.prefix_sha256].is_null;
    const bool paired = !arrays.has_logprobs || count_of(arrays.logprobs) == sampled;
    const bool agree = named && paired && spans_tile(fields, call, sampled);
    return agree && are_logprobs(arrays.logprobs, codec.max_logprob) ? Outcome::kDone : Outcome::kDoubt;
}

}  // namespace headrace
