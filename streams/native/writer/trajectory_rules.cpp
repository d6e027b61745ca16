#include "trajectories.hpp"

#include <algorithm>

namespace headrace {
namespace {

// The written fields, part by part. A module that was built before a model gained a field must not write without it.
constexpr const char* kWritten[] = {
    "trajectory_id", "started", "segments", "turns", "tools", "critical_steps", "total_steps", "subagents_assigned",
    "subagents_finished", "sampled_tokens", "status", "answer", "outcome", "missing", "missing_ranges",
    "missing_count", "unreadable", "events", "duplicates", "defects", "first", "last", "closed_offset", "start_id",
    "started_ms", "ended_ms", "traceparent", "continuations",
    "start", "end",
    "token_ids", "loss_mask", "logprobs", "version_spans", "sampling_spans",
    "version", "start", "end", "run",
    "temperature", "start", "end",
    "sampled_tokens", "finish_reason", "messages", "tools", "pruned_ids", "summarized", "snapshot_id", "segment",
    "call_id", "tool", "arguments", "thinking_tokens", "status", "error_class", "result", "latency_s",
    "calls", "errors", "seconds",
    "partition", "offset",
};

// Defects that never occur in a trajectory written by this module.
constexpr std::string_view kFoundElsewhere[] = {"conflict", "missing_events", "no_end", "bad_event"};

bool find_shapes(PyObject* shapes, TrajectoryRules& rules) {
    for (int fact = 0; fact < kFacts; ++fact) {
        const Ref name(PyUnicode_FromString(kFactNames[fact].data()));
        PyObject* fields = name ? PyDict_GetItemWithError(shapes, name.get()) : nullptr;
        if (fields == nullptr) {
            if (PyErr_Occurred()) return false;
            continue;  // such events are left to Python
        }
        if (!make_shape(fields, rules.shapes[fact])) return false;
    }
    for (const Field& field : rules.shapes[kStarted].fields) {
        if (field.kind == Kind::kPart || field.kind == Kind::kParts || field.kind == Kind::kTokens) {
            PyErr_Format(PyExc_TypeError, "%s of a start cannot be copied unchanged", field.name.c_str());
            return false;
        }
    }
    const Shape &started = rules.shapes[kStarted], &ended = rules.shapes[kEnded];
    const bool found_start = !started || ((rules.consent = started.at("consent")) >= 0 &&
                                          (rules.role = started.at("role")) >= 0 &&
                                          (rules.run = started.at("run")) >= 0);
    const bool found_end = !ended || ((rules.status = ended.at("status")) >= 0 &&
                                      (rules.answer = ended.at("answer")) >= 0 &&
                                      (rules.outcome = ended.at("outcome")) >= 0 &&
                                      (rules.continuations = ended.at("continuations")) >= 0);
    return found_start && found_end &&
           (!rules.shapes[kCalled] || rules.segments.fields.find(rules.shapes[kCalled])) &&
           rules.turns.find(rules.shapes[kCalled], rules.shapes[kToolCalled], rules.shapes[kToolReturned],
                            rules.shapes[kPruned], rules.shapes[kSubagentFinished], rules.shapes[kSnapshotted]);
}

// The order in which defects are listed, from all defect names in order.
bool find_order(PyObject* names, TrajectoryRules& rules) {
    size_t found = 0;
    const Ref sequence(PySequence_Fast(names, "defects must be a sequence"));
    if (!sequence) return false;
    for (Py_ssize_t index = 0; index < PySequence_Fast_GET_SIZE(sequence.get()); ++index) {
        const char* name = PyUnicode_AsUTF8(PySequence_Fast_GET_ITEM(sequence.get(), index));
        if (name == nullptr) return false;
        bool known = std::find(std::begin(kFoundElsewhere), std::end(kFoundElsewhere), name) != std::end(kFoundElsewhere);
        for (int defect = 0; defect < kDefects; ++defect) {
            if (std::string_view(name) != kDefectNames[defect]) continue;
            rules.defect_order.at(found++) = Defect(defect);
            known = true;
        }
        if (!known) {
            PyErr_Format(PyExc_LookupError, "it does not know when a trajectory has the defect %s", name);
            return false;
        }
    }
    if (found != kDefects) PyErr_SetString(PyExc_LookupError, "a defect that can be found here has no name there");
    return found == kDefects;
}

bool are_written(PyObject* names) {
    const Ref sequence(PySequence_Fast(names, "fields must be a sequence"));
    if (!sequence) return false;
    const auto count = static_cast<size_t>(PySequence_Fast_GET_SIZE(sequence.get()));
    for (size_t index = 0; index < count; ++index) {
        const char* name = PyUnicode_AsUTF8(PySequence_Fast_GET_ITEM(sequence.get(), static_cast<Py_ssize_t>(index)));
        if (name == nullptr) return false;
        if (index >= std::size(kWritten) || std::string_view(name) != kWritten[index]) {
            PyErr_Format(PyExc_LookupError, "trajectories have other fields than it was built for, the first of them %s",
                         name);
            return false;
        }
    }
    if (count < std::size(kWritten)) {
        PyErr_Format(PyExc_LookupError, "trajectories have no field %s any more", kWritten[count]);
        return false;
    }
    return true;
}

}  // namespace

bool TrajectoryRules::find(PyObject* shapes, PyObject* fields, PyObject* defects) {
    return are_written(fields) && find_shapes(shapes, *this) && find_order(defects, *this);
}

}  // namespace headrace
