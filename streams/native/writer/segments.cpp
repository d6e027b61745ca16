#include "segments.hpp"

#include <algorithm>

namespace headrace {

bool CallFields::find(const Shape& call) {
    if (!CallArrayFields::find(call)) return false;
    const auto find_in = [](const Shape& shape, int* index, const char* name) { return (*index = shape.at(name)) >= 0; };
    if (!find_in(call, &sampling, "sampling") || !find_in(call, &hidden, "hidden")) return false;
    const auto part = [&](int field) { return call.fields[static_cast<size_t>(field)].part.get(); };
    const Shape *span = part(version_spans), *sampler = part(sampling);
    if (sampler == nullptr) {
        PyErr_SetString(PyExc_TypeError, "sampling must be a part");
        return false;
    }
    return find_in(*span, &version, "version") && find_in(*span, &run, "run") &&
           find_in(*sampler, &temperature, "temperature") && find_in(*sampler, &top_p, "top_p") &&
           find_in(*sampler, &top_k, "top_k") && find_in(*sampler, &min_p, "min_p") &&
           find_in(*sampler, &presence_penalty, "presence_penalty") &&
           find_in(*sampler, &frequency_penalty, "frequency_penalty") &&
           find_in(*sampler, &repetition_penalty, "repetition_penalty") &&
           find_in(*sampler, &min_tokens, "min_tokens") && find_in(*sampler, &altered_by, "altered_by") &&
           find_in(*sampler, &sampled_logprobs, "logprobs");
}

Outcome SegmentFold::add(const Payload& call, int64_t& sampled) {
    CallArrays tokens;
    const Outcome read = read_call_arrays(*rules_.codec, rules_.fields, call, tokens);
    if (read != Outcome::kDone) return read;
    sampled = count_of(tokens.sampled);

    for (const std::string_view name : call[rules_.fields.hidden].texts) {
        if (name == "context_ids" || name == "sampled_ids" || name == "logprobs") defects.set(kRedacted);
    }
    if (!tokens.has_context || !tokens.has_sampled) lose(kNoTokenIds);
    if (sampled) label(call, tokens);
    if (lost_ || !tokens.has_context || !tokens.has_sampled) return Outcome::kDone;
    return append(call, tokens) ? Outcome::kDone : Outcome::kError;
}

void SegmentFold::label(const Payload& call, const CallArrays& tokens) {
    const CallFields& fields = rules_.fields;
    sampled_tokens += count_of(tokens.sampled);
    if (!tokens.has_logprobs) defects.set(kNoLogprobs);
    const auto spans = call[fields.version_spans].all_parts();
    const auto unknown = [&](const Payload& span) { return span[fields.version].is_null; };
    if (spans.empty() || std::any_of(spans.begin(), spans.end(), unknown)) defects.set(kUnknownVersion);
    for (const Payload& span : spans) {
        const Value& run = span[fields.run];
        if (run.is_null) continue;
        if (run_.empty()) run_ = run.json;
        else if (run_ != run.json) several_runs_ = true;
    }
    label_sampling(call[fields.sampling].all_parts().front());
}

// As the properties of Sampling in schemas/events.py.
void SegmentFold::label_sampling(const Payload& sampling) {
    const CallFields& fields = rules_.fields;
    const auto number = [&](int field) { return sampling[field].number.value; };
    if (number(fields.top_p) < 1 || sampling[fields.top_k].number.integer > 0 || number(fields.min_p) > 0) {
        defects.set(kTruncatedSampling);
    }
    if (number(fields.presence_penalty) != 0 || number(fields.frequency_penalty) != 0 ||
        number(fields.repetition_penalty) != 1 || sampling[fields.min_tokens].number.integer > 0 ||
        !sampling[fields.altered_by].texts.empty()) {
        defects.set(kAlteredSampling);
    }
    const Value& temperature = sampling[fields.temperature];
    if (temperature.is_null) {
        defects.set(kUnknownSampling);
        return;
    }
    if (temperature.number.value < rules_.least_temperature) {
        defects.set(kGreedySampling);
        return;
    }
    const Value& logprobs = sampling[fields.sampled_logprobs];
    const bool processed = !logprobs.is_null && logprobs.text == "processed";
    if (temperature.number.value != 1 && !processed) defects.set(kUnknownSampling);
}

bool SegmentFold::append(const Payload& call, const CallArrays& tokens) {
    std::string_view context = tokens.context, forked;
    size_t at = current_;
    const std::string_view current = at == kNoDraft ? std::string_view() : std::string_view(drafts_[at].token_ids);
    if (const int64_t prefix = call[rules_.fields.prefix_length].number.integer) {
        const size_t size = static_cast<size_t>(prefix) * kTokenBytes;
        if (!find_prefix(call, size, at)) return false;
        if (at == kNoDraft) {
            lose(kBrokenPrefix);
            return true;
        }
        if (drafts_[at].token_ids.size() > size) {
            forked = std::string_view(drafts_[at].token_ids).substr(0, size);
            at = kNoDraft;
        }
    } else if (!current.empty() && context.starts_with(current)) {
        context.remove_prefix(current.size());  // the SDK sends whole contexts: the current tokens are the prefix
    } else {
        at = kNoDraft;
    }
    tokens_ += static_cast<size_t>(count_of(forked) + count_of(context) + count_of(tokens.sampled));
    if (tokens_ > rules_.max_tokens) {
        lose(kTooManyTokens);
        return true;
    }
    if (at == kNoDraft) {
        Draft draft;
        draft.token_ids = forked;  // before drafts_ moves what it points into
        draft.loss_mask.assign(forked.size() / kTokenBytes, '\0');
        at = drafts_.size();
        drafts_.push_back(std::move(draft));
    }
    extend(drafts_[at], context, call, tokens);
    unhashed_ends_.emplace_back(at, drafts_[at].token_ids.size());
    current_ = at;
    calls_.push_back(at);
    return true;
}

// Finds a draft that begins with the prefix of `call`, of `size` bytes, as the current one does in most cases;
// kNoDraft if there is none. False with Python's error set.
bool SegmentFold::find_prefix(const Payload& call, size_t size, size_t& draft) {
    const std::string_view sha256 = call[rules_.fields.prefix_sha256].text;
    if (draft != kNoDraft && drafts_[draft].token_ids.size() == size) {
        std::string hex;
        if (!drafts_[draft].hash.find(rules_.sha256, drafts_[draft].token_ids, size, hex)) return false;
        if (sha256 == hex) return true;
    }
    return find_end(size, sha256, draft);
}

// As `_CallEnds.find`.
bool SegmentFold::find_end(size_t size, std::string_view sha256, size_t& draft) {
    for (const auto& [at, end] : unhashed_ends_) {
        std::string hex;
        if (!drafts_[at].end_hash.find(rules_.sha256, drafts_[at].token_ids, end, hex)) return false;
        ends_[{end, std::move(hex)}].push_back(at);
    }
    unhashed_ends_.clear();
    draft = kNoDraft;
    const auto found = ends_.find({size, std::string(sha256)});
    if (found == ends_.end()) return true;
    std::vector<size_t>& drafts = found->second;
    while (drafts.size() > 1 && drafts_[drafts.back()].token_ids.size() > size) drafts.pop_back();
    draft = drafts.back();
    return true;
}

bool PrefixHash::find(PyObject* sha256, std::string_view token_ids, size_t size, std::string& hex) {
    if (!hash_ && !(hash_ = Hash(sha256))) return false;
    if (!hash_.update(token_ids.substr(hashed_, size - hashed_))) return false;
    hashed_ = size;
    return hash_.append_hex(hex);
}

void SegmentFold::extend(Draft& draft, std::string_view context, const Payload& call, const CallArrays& tokens) const {
    const auto sampled = static_cast<size_t>(count_of(tokens.sampled));
    draft.token_ids += context;
    draft.loss_mask.append(context.size() / kTokenBytes, '\0');
    draft.token_ids += tokens.sampled;
    draft.loss_mask.append(sampled, '\1');
    if (sampled == 0) return;
    draft.has_logprobs = draft.has_logprobs && tokens.has_logprobs;
    if (draft.has_logprobs) draft.logprobs += tokens.logprobs;
    const auto spans = call[rules_.fields.version_spans].all_parts();
    draft.has_spans = draft.has_spans && !spans.empty();
    if (draft.has_spans) {
        for (const Payload& span : spans) {
            int64_t start = span[rules_.fields.start].number.integer + draft.sampled;
            const std::string_view version = span[rules_.fields.version].json, run = span[rules_.fields.run].json;
            if (!draft.spans.empty() && draft.spans.back().version == version && draft.spans.back().run == run) {
                start = draft.spans.back().start;  // neighbours become one
                draft.spans.pop_back();
            }
            draft.spans.push_back({version, run, start, span[rules_.fields.end].number.integer + draft.sampled});
        }
    }
    const Payload& sampling = call[rules_.fields.sampling].all_parts().front();
    append_temperature(draft, sampling[rules_.fields.temperature], static_cast<int64_t>(sampled));
    draft.sampled += static_cast<int64_t>(sampled);
}

void SegmentFold::append_temperature(Draft& draft, const Value& temperature, int64_t sampled) const {
    Temperature span{temperature.json, temperature.is_null, temperature.is_null ? 0 : temperature.number.value,
                     draft.sampled, draft.sampled + sampled};
    if (!draft.temperatures.empty()) {  // neighbours become one
        const Temperature& last = draft.temperatures.back();
        if (last.is_null == span.is_null && last.value == span.value) {
            span.start = last.start;
            draft.temperatures.pop_back();
        }
    }
    draft.temperatures.push_back(span);
}

void SegmentFold::lose(Defect why) {
    defects.set(why);
    lost_ = true;
    drafts_.clear();
    current_ = kNoDraft;
    calls_.clear();
    unhashed_ends_.clear();
    ends_.clear();
}

bool SegmentFold::write(std::string& json) const {
    json += '[';
    for (const Draft& draft : drafts_) {
        if (&draft != drafts_.data()) json += ',';
        json += "{\"token_ids\":";
        if (!append_array(*rules_.codec, draft.token_ids, 'i', json)) return false;
        json += ",\"loss_mask\":";
        if (!append_array(*rules_.codec, draft.loss_mask, 'b', json)) return false;
        json += ",\"logprobs\":";
        if (!draft.has_logprobs) json += "null";
        else if (!append_array(*rules_.codec, draft.logprobs, 'f', json)) return false;
        json += ",\"version_spans\":[";
        if (draft.has_spans) {
            for (const Span& span : draft.spans) {
                if (&span != draft.spans.data()) json += ',';
                json.append("{\"version\":").append(span.version);
                json.append(",\"start\":").append(std::to_string(span.start));
                json.append(",\"end\":").append(std::to_string(span.end));
                json.append(",\"run\":").append(span.run).append("}");
            }
        }
        json += "],\"sampling_spans\":[";
        for (const Temperature& span : draft.temperatures) {
            if (&span != draft.temperatures.data()) json += ',';
            json.append("{\"temperature\":").append(span.json);
            json.append(",\"start\":").append(std::to_string(span.start));
            json.append(",\"end\":").append(std::to_string(span.end)).append("}");
        }
        json += "]}";
    }
    json += ']';
    return true;
}

}  // namespace headrace
