// The event types that this module was built for, and their fields. Python compares them with its models
// (native/shapes.py) and handles everything else itself.
#pragma once

#include <cstdint>
#include <string_view>

namespace headrace {

enum Fact : int8_t {
    kStarted, kCalled, kToolCalled, kToolReturned, kSummarized, kPruned, kSubagentStarted, kSubagentFinished,
    kSnapshotted, kForked, kRestored, kEnded, kTicked, kFacts  // the number of types, also used for an unknown type
};

inline constexpr std::string_view kFactNames[kFacts] = {
    "headrace.trajectory.started.v1", "headrace.model.called.v1",       "headrace.tool.called.v1",
    "headrace.tool.returned.v1",      "headrace.context.summarized.v1", "headrace.context.pruned.v1",
    "headrace.subagent.started.v1",   "headrace.subagent.finished.v1",  "headrace.environment.snapshotted.v1",
    "headrace.environment.forked.v1", "headrace.environment.restored.v1", "headrace.trajectory.ended.v1",
    "headrace.clock.ticked.v1",
};

// Fields by type; fields of parts are prefixed with the part's name, and values of enums follow the field's name.
// `*`: the payload is copied as a whole, with any fields. Add a field or a value here only once all rules that use it are
// implemented in C++.
inline constexpr std::string_view kFactFields[kFacts] = {
    "* role=trainable|frozen purpose=train|evaluate",
    "model prefix_length prefix_sha256 context_ids sampled_ids logprobs version_spans sampling finish_reason messages "
    "hidden latency_s usage call_id choice delivered masked "
    "version_spans.version version_spans.start version_spans.end version_spans.run "
    "sampling.temperature sampling.top_p sampling.top_k sampling.min_p sampling.max_tokens sampling.seed "
    "sampling.presence_penalty sampling.frequency_penalty sampling.repetition_penalty sampling.min_tokens "
    "sampling.altered_by sampling.logprobs=processed|raw usage.prompt_tokens usage.completion_tokens",
    "call_id tool arguments thinking_tokens masked",
    "call_id tool status=ok|error error_class=invalid_arguments|refused|environment|provider|aborted|timeout result "
    "latency_s masked "
    "stream stream.items stream.kept stream.first_item_s stream.seconds stream.complete",
    "summary tokens_before tokens_after chain_index summary_tokens masked",
    "pruned_ids tokens_before tokens_after masked",
    "name sub_trajectory_id stage masked",
    "name sub_trajectory_id stage status=completed|budget_exhausted|turns_exhausted|aborted|failed|restarted steps "
    "masked",
    "snapshot_id parent_id kind=files|memory sha256 provider ms masked",
    "snapshot_id parent_id kind=files|memory sha256 provider forks ms masked",
    "snapshot_id parent_id kind=files|memory sha256 provider source_trajectory_id ms masked",
    "status=completed|budget_exhausted|turns_exhausted|aborted|failed|restarted answer outcome error masked "
    "continuations "
    "stream stream.items stream.kept stream.first_item_s stream.seconds stream.complete",
    "unix_ms",
};

inline Fact fact_of(std::string_view name) {
    for (int fact = 0; fact < kFacts; ++fact) {
        if (name == kFactNames[fact]) return static_cast<Fact>(fact);
    }
    return kFacts;
}

}  // namespace headrace
