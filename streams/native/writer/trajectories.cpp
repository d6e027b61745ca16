#include "trajectories.hpp"

#include <algorithm>

#include "ingest/arrival.hpp"
#include "trace.hpp"
#include "utf8.hpp"

namespace headrace {
namespace {

constexpr size_t kEventsKept = 1024, kBytesKept = 1 << 20;  // buffer sizes kept between trajectories

class Assembly {
public:
    Assembly(const TrajectoryRules& rules, size_t events, std::vector<Payload>& payloads)
        : rules_(rules), events_(events), segments_(rules.segments), turns_(rules.turns), payloads_(payloads) {
        if (payloads_.size() < events) payloads_.resize(events);
    }

    Outcome take(size_t index, const Arrival* arrival);
    Outcome write(const About& about, std::string& json);
    std::string_view traceparent() const { return traceparent_; }

private:
    Outcome fold(Fact fact, const Payload& payload);
    Defects defects() const;
    void write_started(std::string& json) const;
    void write_defects(std::string& json) const;

    const TrajectoryRules& rules_;
    size_t events_;
    SegmentFold segments_;
    TurnFold turns_;
    std::vector<Payload>& payloads_;
    const Payload *started_ = nullptr, *ended_ = nullptr;
    int64_t earliest_ = INT64_MAX, latest_ = INT64_MIN;
    std::string_view traceparent_;
};

Outcome Assembly::take(size_t index, const Arrival* arrival) {
    const Fact fact = arrival->fact;
    if (fact == kFacts || !arrival->value || arrival->time_ms == kNoTime) return Outcome::kDoubt;
    Payload& payload = payloads_[index];
    // A start is copied as a whole, unknown fields included.
    const Shape& shape = rules_.shapes[fact];
    if (!shape || !read_payload(shape, arrival->view(arrival->value), fact == kStarted, payload)) return Outcome::kDoubt;
    earliest_ = std::min(earliest_, arrival->time_ms);
    latest_ = std::max(latest_, arrival->time_ms);
    const std::string_view traceparent = arrival->view(arrival->traceparent);
    if (traceparent_.empty() && is_traceparent(traceparent)) traceparent_ = traceparent;
    return fold(fact, payload);
}

Outcome Assembly::fold(Fact fact, const Payload& payload) {
    switch (fact) {
        case kStarted:
            if (started_ == nullptr) started_ = &payload;
            break;
        case kCalled: {
            int64_t sampled = 0;
            const Outcome outcome = segments_.add(payload, sampled);
            if (outcome != Outcome::kDone) return outcome;
            turns_.called(payload, sampled);
            break;
        }
        case kToolCalled: return turns_.used(payload) ? Outcome::kDone : Outcome::kDoubt;
        case kToolReturned: turns_.returned(payload); break;
        case kSummarized: turns_.summarized(); break;
        case kPruned: turns_.pruned(payload); break;
        case kSubagentStarted: ++turns_.subagents_assigned; break;
        case kSubagentFinished: return turns_.finished(payload) ? Outcome::kDone : Outcome::kDoubt;
        case kSnapshotted: turns_.snapshotted(payload); break;
        case kForked:
        case kRestored: break;
        case kEnded: ended_ = &payload; break;
        case kTicked:
        case kFacts: break;
    }
    return Outcome::kDone;
}

Defects Assembly::defects() const {
    Defects found = segments_.defects;
    if (started_ == nullptr) found.set(kNoStart);
    else if (!(*started_)[rules_.consent].flag()) found.set(kNoConsent);
    if (started_ && (*started_)[rules_.role].text == "frozen") found.set(kFrozenRole);
    if (started_ && segments_.sampled_by_another((*started_)[rules_.run].json)) found.set(kOtherRun);
    if (segments_.sampled_tokens == 0 && !found.test(kNoTokenIds)) found.set(kNothingSampled);
    return found;
}

void Assembly::write_started(std::string& json) const {
    if (started_ == nullptr) {
        json += "null";
        return;
    }
    const auto& fields = rules_.shapes[kStarted].fields;
    for (size_t index = 0; index < fields.size(); ++index) {
        json.append(index ? ",\"" : "{\"").append(fields[index].name).append("\":");
        json.append(started_->fields[index]->json);
    }
    json += '}';
}

void Assembly::write_defects(std::string& json) const {
    const Defects found = defects();
    json += '[';
    bool first = true;
    for (const Defect defect : rules_.defect_order) {
        if (!found.test(defect)) continue;
        json.append(first ? "\"" : ",\"").append(kDefectNames[defect]).append("\"");
        first = false;
    }
    json += ']';
}

Outcome Assembly::write(const About& about, std::string& json) {
    const auto number = [&](const char* name, int64_t value) { json.append(name).append(std::to_string(value)); };
    const auto of_end = [&](int field) { return ended_ ? (*ended_)[field].json : std::string_view("null"); };
    json.append("{\"trajectory_id\":\"").append(about.trajectory_id).append("\",\"started\":");
    write_started(json);
    json += ",\"segments\":";
    if (!segments_.write(json)) return Outcome::kError;
    json += ",\"turns\":";
    turns_.write_turns(json);
    json += ",\"tools\":";
    if (!turns_.write_statistics(json)) return Outcome::kDoubt;
    number(",\"critical_steps\":", turns_.critical_steps());
    number(",\"total_steps\":", turns_.total_steps());
    number(",\"subagents_assigned\":", turns_.subagents_assigned);
    number(",\"subagents_finished\":", turns_.subagents_finished);
    number(",\"sampled_tokens\":", segments_.sampled_tokens);
    json.append(",\"status\":").append(of_end(rules_.status));
    json.append(",\"answer\":").append(of_end(rules_.answer));
    json.append(",\"outcome\":").append(of_end(rules_.outcome));
    json += ",\"missing\":[],\"missing_ranges\":[],\"missing_count\":0,\"unreadable\":[]";
    number(",\"events\":", static_cast<int64_t>(events_));
    number(",\"duplicates\":", about.duplicates);
    json += ",\"defects\":";
    write_defects(json);
    number(",\"first\":{\"partition\":", about.partition);
    number(",\"offset\":", about.first);
    number("},\"last\":{\"partition\":", about.partition);
    number(",\"offset\":", about.last);
    number("},\"closed_offset\":", about.closed_offset);
    json += ",\"start_id\":";
    if (about.start_id) json.append("\"").append(*about.start_id).append("\"");
    else json += "null";
    number(",\"started_ms\":", std::max<int64_t>(0, earliest_));
    number(",\"ended_ms\":", std::max<int64_t>(0, latest_));
    json += ",\"traceparent\":";
    if (traceparent_.empty()) json += "null}";
    else json.append("\"").append(traceparent_).append("\"}");
    return json.size() > rules_.max_record_bytes ? Outcome::kDoubt : Outcome::kDone;
}

// Whether `text` needs no escapes in JSON.
bool is_plain_text(std::string_view text) {
    return std::none_of(text.begin(), text.end(),
                        [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '\\'; });
}

void prefetch(const Arrival* arrival) {
    const char* begin = arrival->bytes;
    const char* end = begin + Py_SIZE(arrival);
    for (const char* at = begin; at < end && at < begin + 1536; at += 64) __builtin_prefetch(at);
}

}  // namespace

Outcome write_trajectory(const TrajectoryRules& rules, PyObject* records, const About& about, Room& room,
                         std::string_view& traceparent) {
    const auto count = static_cast<size_t>(PyDict_GET_SIZE(records));
    if (count == 0 || !is_plain_text(about.trajectory_id)) return Outcome::kDoubt;
    if (about.start_id && !(is_ascii(*about.start_id) && is_plain_text(*about.start_id))) return Outcome::kDoubt;
    if (room.payloads.size() > kEventsKept) room.payloads = {};
    if (room.json.capacity() > kBytesKept) room.json = {};
    room.json.clear();
    Assembly assembly(rules, count, room.payloads);
    size_t bytes = 1024;
    room.arrivals.clear();
    PyObject *place, *object;
    for (Py_ssize_t at = 0; PyDict_Next(records, &at, &place, &object);) {
        if (!is_arrival(object)) return Outcome::kDoubt;
        const auto* arrival = reinterpret_cast<const Arrival*>(object);
        __builtin_prefetch(arrival);
        room.arrivals.push_back(arrival);
    }
    for (size_t index = 0; index < count; ++index) {
        // Most arrived so long ago that they are no longer in any cache.
        if (index + 1 < count) prefetch(room.arrivals[index + 1]);
        bytes += static_cast<size_t>(room.arrivals[index]->size);
        const Outcome taken = assembly.take(index, room.arrivals[index]);
        if (taken != Outcome::kDone) return taken;
    }
    room.json.reserve(bytes);
    traceparent = assembly.traceparent();
    return assembly.write(about, room.json);
}

}  // namespace headrace
