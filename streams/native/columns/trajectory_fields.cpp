#include "trajectory_fields.hpp"

#include <initializer_list>
#include <utility>

namespace headrace {
namespace {

using Named = std::initializer_list<std::pair<int*, const char*>>;

bool find_all(const Shape& shape, Named names) {
    for (const auto& [index, name] : names) {
        if ((*index = shape.at(name)) < 0) return false;
    }
    return true;
}

// The shape of the parts in the field with this index; null with Python's error set.
const Shape* part_of(const Shape& shape, int field) {
    const Field& found = shape.fields[static_cast<size_t>(field)];
    if (!found.part) PyErr_Format(PyExc_LookupError, "it cannot read the field %s", found.name.c_str());
    return found.part.get();
}

}  // namespace

bool TrajectoryFields::find(const Shape& shape) {
    const bool is_found = find_all(shape, {
        {&own.trajectory_id, "trajectory_id"}, {&own.started, "started"}, {&own.segments, "segments"},
        {&own.turns, "turns"}, {&own.tools, "tools"}, {&own.critical_steps, "critical_steps"},
        {&own.total_steps, "total_steps"}, {&own.subagents_assigned, "subagents_assigned"},
        {&own.subagents_finished, "subagents_finished"}, {&own.sampled_tokens, "sampled_tokens"},
        {&own.status, "status"}, {&own.answer, "answer"}, {&own.outcome, "outcome"}, {&own.missing, "missing"},
        {&own.missing_count, "missing_count"}, {&own.events, "events"}, {&own.duplicates, "duplicates"},
        {&own.defects, "defects"}, {&own.first, "first"}, {&own.last, "last"}, {&own.started_ms, "started_ms"},
        {&own.ended_ms, "ended_ms"}, {&own.continuations, "continuations"},
    });
    if (!is_found) return false;
    const Shape *started = part_of(shape, own.started), *segments = part_of(shape, own.segments);
    const Shape *turns = part_of(shape, own.turns), *tools = part_of(shape, own.tools);
    const Shape *first = part_of(shape, own.first), *last = part_of(shape, own.last);
    if (!started || !segments || !turns || !tools || !first || !last) return false;
    const bool are_found =
        find_all(*started, {
            {&start.run, "run"}, {&start.task_id, "task_id"}, {&start.group_id, "group_id"},
            {&start.group_size, "group_size"}, {&start.agent, "agent"}, {&start.harness_version, "harness_version"},
            {&start.role, "role"}, {&start.purpose, "purpose"}, {&start.parent_trajectory_id, "parent_trajectory_id"},
            {&start.tenant, "tenant"}, {&start.consent, "consent"}, {&start.task, "task"},
        }) &&
        find_all(*segments, {
            {&segment.token_ids, "token_ids"}, {&segment.loss_mask, "loss_mask"}, {&segment.logprobs, "logprobs"},
            {&segment.version_spans, "version_spans"}, {&segment.sampling_spans, "sampling_spans"},
        }) &&
        find_all(*turns, {
            {&turn.sampled_tokens, "sampled_tokens"}, {&turn.finish_reason, "finish_reason"}, {&turn.tools, "tools"},
            {&turn.pruned_ids, "pruned_ids"}, {&turn.summarized, "summarized"},
        }) &&
        find_all(*tools, {{&use.calls, "calls"}, {&use.errors, "errors"}, {&use.seconds, "seconds"}}) &&
        find_all(*first, {{&place.partition, "partition"}, {&place.offset, "offset"}}) &&
        find_all(*last, {{&place.partition, "partition"}, {&place.offset, "offset"}});
    if (!are_found) return false;
    segment.start_run = start.run;
    const Shape* spans = part_of(*segments, segment.version_spans);
    const Shape* sampling = part_of(*segments, segment.sampling_spans);
    const Shape* calls = part_of(*turns, turn.tools);
    return spans && sampling && calls &&
           find_all(*spans, {
               {&segment.span.version, "version"}, {&segment.span.end, "end"}, {&segment.span.run, "run"},
           }) &&
           find_all(*sampling, {{&segment.sampling_end, "end"}}) &&
           find_all(*calls, {
               {&call.call_id, "call_id"}, {&call.tool, "tool"}, {&call.status, "status"},
               {&call.error_class, "error_class"}, {&call.latency_s, "latency_s"},
           });
}

}  // namespace headrace
