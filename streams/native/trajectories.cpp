// A closed trajectory's arrivals → the JSON of its record, as `conclude` of assembly/assemble.py would write it.
//
// Only where nothing is missing, late or unreadable; and whatever is doubted in any of its events, Python reads again
// from the start.

#include "trajectories.hpp"

#include <algorithm>
#include <array>

#include "arrival.hpp"
#include "segments.hpp"
#include "turns.hpp"

namespace headrace {
namespace {

constexpr size_t kRoom = 1024;  // events whose room is kept from one trajectory to the next

constexpr const char* kDefectNames[kDefects] = {
    "no_start",        "no_consent",    "frozen_role",        "redacted", "no_token_ids", "no_logprobs", "nothing_sampled",
    "unknown_version", "broken_prefix", "truncated_sampling", "oversize",
};
// What is written, part by part. A module that was built before a model gained a field must not go on without it.
constexpr const char* kWritten[] = {
    "trajectory_id", "started", "segments", "turns", "tools", "critical_steps", "total_steps", "subagents_assigned",
    "subagents_finished", "sampled_tokens", "status", "answer", "outcome", "missing", "unreadable", "events",
    "duplicates", "defects", "first", "last", "started_ms", "ended_ms", "traceparent",
    "token_ids", "loss_mask", "logprobs", "version_spans",
    "version", "start", "end",
    "sampled_tokens", "finish_reason", "messages", "tools", "pruned_ids", "summarized",
    "call_id", "tool", "arguments", "status", "error_class", "result", "latency_s",
    "calls", "errors", "seconds",
    "partition", "offset",
};

struct Rules {
    std::array<Shape, kFacts> shapes;
    ArrayCodec codec;
    Ref sha256;
    SegmentRules segments;
    TurnFields turns;
    int consent, role, status, answer, outcome;
    std::array<Defect, kDefects> defect_order;
    size_t max_record_bytes;
    std::vector<Payload> payloads;  // room that one trajectory after the other uses
};

struct TrajectoryWriter {
    PyObject_HEAD
    Rules* rules;
};

// What a history knows beside its arrivals.
struct About {
    std::string_view trajectory_id;
    long long duplicates;
    int partition;
    long long first, last;
};

class Assembly {
public:
    Assembly(const Rules& rules, size_t events, std::vector<Payload>& payloads)
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

    const Rules& rules_;
    size_t events_;
    SegmentFold segments_;
    TurnFold turns_;
    std::vector<Payload>& payloads_;
    const Payload *started_ = nullptr, *ended_ = nullptr;
    int64_t earliest_ = INT64_MAX, latest_ = INT64_MIN;
    std::string_view traceparent_;
};

// One of version 00 that names a trace and a span.
bool is_traceparent(std::string_view text) {
    constexpr std::string_view kForm = "00-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx";
    if (text.size() != kForm.size()) return false;
    for (size_t index = 0; index < kForm.size(); ++index) {
        const char c = text[index];
        const bool is_hex = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
        if (kForm[index] == 'x' ? !is_hex : c != kForm[index]) return false;
    }
    const auto some = [&](size_t at, size_t length) { return text.substr(at, length).find_first_not_of('0') < length; };
    return some(3, 32) && some(36, 16);
}

Outcome Assembly::take(size_t index, const Arrival* arrival) {
    const Fact fact = arrival->fact;
    if (fact == kFacts || !arrival->value || arrival->time_ms == kNoTime) return Outcome::kDoubt;
    Payload& payload = payloads_[index];
    // A start goes on as a whole, unknown fields included.
    const Shape& shape = rules_.shapes[fact];
    if (!read_payload(shape, arrival->view(arrival->value), fact == kStarted, payload)) return Outcome::kDoubt;
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
    json += ",\"missing\":[],\"unreadable\":[]";
    number(",\"events\":", static_cast<int64_t>(events_));
    number(",\"duplicates\":", about.duplicates);
    json += ",\"defects\":";
    write_defects(json);
    number(",\"first\":{\"partition\":", about.partition);
    number(",\"offset\":", about.first);
    number("},\"last\":{\"partition\":", about.partition);
    number(",\"offset\":", about.last);
    number("},\"started_ms\":", std::max<int64_t>(0, earliest_));
    number(",\"ended_ms\":", std::max<int64_t>(0, latest_));
    json += ",\"traceparent\":";
    if (traceparent_.empty()) json += "null}";
    else json.append("\"").append(traceparent_).append("\"}");
    return json.size() > rules_.max_record_bytes ? Outcome::kDoubt : Outcome::kDone;
}

// Whether `text` stands in JSON as it is.
bool is_plain_text(std::string_view text) {
    return std::none_of(text.begin(), text.end(),
                        [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '\\'; });
}

Outcome assemble(Rules& rules, PyObject* records, const About& about, std::string& json,
                 std::string& traceparent) {
    const auto count = static_cast<size_t>(PyTuple_GET_SIZE(records));
    if (count == 0 || !is_plain_text(about.trajectory_id)) return Outcome::kDoubt;
    if (rules.payloads.size() > kRoom) rules.payloads = {};
    Assembly assembly(rules, count, rules.payloads);
    size_t bytes = 1024;
    for (size_t index = 0; index < count; ++index) {
        PyObject* pair = PyTuple_GET_ITEM(records, static_cast<Py_ssize_t>(index));
        PyObject* object = PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2 ? PyTuple_GET_ITEM(pair, 1) : Py_None;
        if (!is_arrival(object)) return Outcome::kDoubt;
        const auto* arrival = reinterpret_cast<const Arrival*>(object);
        bytes += static_cast<size_t>(arrival->size);
        const Outcome taken = assembly.take(index, arrival);
        if (taken != Outcome::kDone) return taken;
    }
    json.reserve(bytes);
    traceparent = assembly.traceparent();
    return assembly.write(about, json);
}

PyObject* write(PyObject* object, PyObject* arguments, PyObject* keywords) {
    static const char* names[] = {"records", "trajectory_id", "duplicates", "partition", "first", "last", nullptr};
    PyObject* records;
    const char* id;
    Py_ssize_t id_length;
    About about;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!s#LiLL", const_cast<char**>(names), &PyTuple_Type,
                                     &records, &id, &id_length, &about.duplicates, &about.partition, &about.first,
                                     &about.last)) {
        return nullptr;
    }
    about.trajectory_id = {id, static_cast<size_t>(id_length)};
    Rules& rules = *reinterpret_cast<TrajectoryWriter*>(object)->rules;
    return guarded([&]() -> PyObject* {
        std::string json, traceparent;
        switch (assemble(rules, records, about, json, traceparent)) {
            case Outcome::kDone: break;
            case Outcome::kDoubt: Py_RETURN_NONE;
            case Outcome::kError: return nullptr;
        }
        const char* trace = traceparent.empty() ? nullptr : traceparent.c_str();
        return Py_BuildValue("(y#z)", json.data(), static_cast<Py_ssize_t>(json.size()), trace);
    }, static_cast<PyObject*>(nullptr));
}

bool find_shapes(PyObject* shapes, Rules& rules) {
    for (int fact = 0; fact < kFacts; ++fact) {
        const Ref name(PyUnicode_FromString(kFactNames[fact].data()));
        PyObject* fields = name ? PyDict_GetItemWithError(shapes, name.get()) : nullptr;
        if (fields == nullptr) {
            if (!PyErr_Occurred()) PyErr_Format(PyExc_LookupError, "there is no shape of %s", kFactNames[fact].data());
            return false;
        }
        if (!make_shape(fields, rules.shapes[fact])) return false;
    }
    for (const Field& field : rules.shapes[kStarted].fields) {
        if (field.kind == Kind::kPart || field.kind == Kind::kParts || field.kind == Kind::kTokens) {
            PyErr_Format(PyExc_TypeError, "%s of a start cannot go on as it came", field.name.c_str());
            return false;
        }
    }
    const Shape &started = rules.shapes[kStarted], &ended = rules.shapes[kEnded];
    return (rules.consent = started.at("consent")) >= 0 && (rules.role = started.at("role")) >= 0 &&
           (rules.status = ended.at("status")) >= 0 && (rules.answer = ended.at("answer")) >= 0 &&
           (rules.outcome = ended.at("outcome")) >= 0 && rules.segments.fields.find(rules.shapes[kCalled]) &&
           rules.turns.find(rules.shapes[kCalled], rules.shapes[kToolCalled], rules.shapes[kToolReturned],
                            rules.shapes[kPruned], rules.shapes[kSubagentFinished]);
}

// The order in which defects are named, from all of their names in order.
bool find_order(PyObject* names, Rules& rules) {
    size_t found = 0;
    const Ref sequence(PySequence_Fast(names, "defects must be a sequence"));
    if (!sequence) return false;
    for (Py_ssize_t index = 0; index < PySequence_Fast_GET_SIZE(sequence.get()); ++index) {
        const char* name = PyUnicode_AsUTF8(PySequence_Fast_GET_ITEM(sequence.get(), index));
        if (name == nullptr) return false;
        for (int defect = 0; defect < kDefects; ++defect) {
            if (std::string_view(name) == kDefectNames[defect]) rules.defect_order.at(found++) = Defect(defect);
        }
    }
    if (found != kDefects) PyErr_SetString(PyExc_LookupError, "a defect that can be found here has no name there");
    return found == kDefects;
}

bool are_written(PyObject* names) {
    const Ref sequence(PySequence_Fast(names, "fields must be a sequence"));
    if (!sequence) return false;
    const auto count = static_cast<size_t>(PySequence_Fast_GET_SIZE(sequence.get()));
    bool same = count == std::size(kWritten);
    for (size_t index = 0; same && index < count; ++index) {
        const char* name = PyUnicode_AsUTF8(PySequence_Fast_GET_ITEM(sequence.get(), static_cast<Py_ssize_t>(index)));
        if (name == nullptr) return false;
        same = std::string_view(name) == kWritten[index];
    }
    if (!same) {
        PyErr_SetString(PyExc_LookupError, "trajectories have other fields than this module was built for: "
                                           "`make native`, or add what is new to streams/native/trajectories.cpp");
    }
    return same;
}

PyObject* make(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
    static const char* names[] = {"shapes", "fields", "defects", "array_type", "encode_array", "decode_array", "compress_from",
                                  "max_array_bytes", "sha256", "max_tokens", "max_record_bytes", nullptr};
    PyObject *shapes, *fields, *defects, *array_type, *encode, *decode, *sha256;
    Py_ssize_t max_tokens, max_record_bytes;
    long long compress_from, max_array_bytes;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "$O!OOOOOLLOnn", const_cast<char**>(names), &PyDict_Type,
                                     &shapes, &fields, &defects, &array_type, &encode, &decode, &compress_from,
                                     &max_array_bytes, &sha256, &max_tokens, &max_record_bytes)) {
        return nullptr;
    }
    Ref made(type->tp_alloc(type, 0));
    if (!made) return nullptr;
    const bool complete = guarded([&] {
        auto* rules = reinterpret_cast<TrajectoryWriter*>(made.get())->rules = new Rules();
        rules->codec = {Ref::borrowed(array_type), Ref::borrowed(encode), Ref::borrowed(decode), compress_from,
                        max_array_bytes};
        rules->sha256 = Ref::borrowed(sha256);
        rules->segments = {&rules->codec, {}, sha256, static_cast<size_t>(max_tokens)};
        rules->max_record_bytes = static_cast<size_t>(max_record_bytes);
        return are_written(fields) && find_shapes(shapes, *rules) && find_order(defects, *rules);
    }, false);
    return complete ? made.release() : nullptr;
}

void destroy(PyObject* object) {
    delete reinterpret_cast<TrajectoryWriter*>(object)->rules;
    Py_TYPE(object)->tp_free(object);
}

PyMethodDef kMethods[] = {
    {"write", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(write)), METH_VARARGS | METH_KEYWORDS,
     "JSON and traceparent of the trajectory that `records` add up to, or None in doubt."},
    {nullptr, nullptr, 0, nullptr},
};

PyTypeObject trajectory_writer_type() {
    PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
    type.tp_name = "headrace.streams.native.speedups.TrajectoryWriter";
    type.tp_doc = "Writes trajectories in which nothing is doubtful.";
    type.tp_basicsize = sizeof(TrajectoryWriter);
    type.tp_flags = Py_TPFLAGS_DEFAULT;
    type.tp_dealloc = destroy;
    type.tp_methods = kMethods;
    type.tp_new = make;
    return type;
}

}  // namespace

PyTypeObject TrajectoryWriterType = trajectory_writer_type();

}  // namespace headrace
