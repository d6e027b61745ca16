// Columns of the table `trajectories`, and the fields of a trajectory from which they are derived.
#pragma once

#include <string_view>

#include "payloads/payload.hpp"
#include "payloads/segment_arrays.hpp"

namespace headrace {

// Columns that this module fills, in the order of kTrajectoryColumns.
enum TrajectoryColumn : size_t {
    kTrajectoryIdColumn, kRunColumn, kTaskIdColumn, kGroupIdColumn, kGroupSizeColumn, kAgentColumn, kHarnessColumn,
    kRoleColumn, kPurposeColumn, kEvaluationColumn, kParentColumn, kTenantColumn, kConsentColumn, kTaskColumn,
    kTaskSourceColumn, kDifficultyColumn, kStatusColumn, kOutcomeColumn, kAnswerColumn, kTurnsColumn, kSegmentsColumn,
    kTokensColumn, kSampledColumn, kToolsColumn, kToolErrorsColumn, kToolSecondsColumn, kPrunedColumn,
    kSummariesColumn, kCriticalColumn, kTotalStepsColumn, kAssignedColumn, kFinishedColumn, kEventsColumn,
    kDuplicatesColumn, kMissingColumn, kDefectsColumn, kVersionsColumn, kOldestColumn, kNewestColumn,
    kFirstPartitionColumn, kFirstOffsetColumn, kLastOffsetColumn, kStartedAtColumn, kEndedAtColumn,
    kTurnSampledColumn, kTurnReasonsColumn, kTurnPrunedColumn, kTurnSummarizedColumn, kCallTurnsColumn, kCallIdsColumn,
    kCallToolsColumn, kCallStatusesColumn, kCallErrorsColumn, kCallSecondsColumn, kTrajectoryColumnCount
};

struct ColumnSpec {
    std::string_view name, form;  // as NestedColumn takes it
};

inline constexpr ColumnSpec kTrajectoryColumns[kTrajectoryColumnCount] = {
    {"trajectory_id", "text"}, {"run", "text"}, {"task_id", "text"}, {"group_id", "text"}, {"group_size", "count"},
    {"agent", "text"}, {"harness_version", "text"}, {"role", "text"}, {"purpose", "text"}, {"evaluation", "text"},
    {"parent_trajectory_id", "text"}, {"tenant", "text"}, {"consent", "flag"}, {"task", "json"},
    {"task_source", "text"}, {"difficulty", "text"}, {"status", "text"}, {"outcome", "number"}, {"answer", "json"},
    {"turns", "u32"}, {"segments", "u32"}, {"tokens", "u32"}, {"sampled_tokens", "u32"}, {"tools", "map u32"},
    {"tool_errors", "map u32"}, {"tool_seconds", "double"}, {"pruned", "u32"}, {"summaries", "u32"},
    {"critical_steps", "u32"}, {"total_steps", "u32"}, {"subagents_assigned", "u32"}, {"subagents_finished", "u32"},
    {"events", "u32"}, {"duplicates", "u32"}, {"missing", "u32"}, {"defects", "list text"}, {"versions", "list u32"},
    {"oldest_version", "count"}, {"newest_version", "count"}, {"first_partition", "u32"}, {"first_offset", "u64"},
    {"last_offset", "u64"}, {"started_at", "u64"}, {"ended_at", "u64"}, {"turn_sampled_tokens", "list u32"},
    {"turn_finish_reasons", "list text"}, {"turn_pruned", "list u32"}, {"turn_summarized", "list u32"},
    {"call_turns", "list u32"}, {"call_ids", "list text"}, {"call_tools", "list text"}, {"call_statuses", "list text"},
    {"call_errors", "list text"}, {"call_seconds", "list number"},
};

// The fields of a trajectory that this module was built for, in the form of kFactFields (facts.hpp). Those of its start
// are all known: no column depends on one that is not named in TrajectoryFields.
inline constexpr std::string_view kTrajectoryKnown =
    "trajectory_id started started.* started.role=trainable|frozen started.purpose=train|evaluate "
    "segments segments.token_ids segments.loss_mask segments.logprobs segments.version_spans "
    "segments.version_spans.version segments.version_spans.start segments.version_spans.end segments.version_spans.run "
    "segments.sampling_spans segments.sampling_spans.temperature segments.sampling_spans.start "
    "segments.sampling_spans.end "
    "turns turns.sampled_tokens turns.finish_reason turns.messages turns.tools turns.pruned_ids turns.summarized "
    "turns.snapshot_id turns.segment turns.tools.call_id turns.tools.tool turns.tools.arguments "
    "turns.tools.thinking_tokens turns.tools.status=ok|error "
    "turns.tools.error_class=invalid_arguments|refused|environment|provider|aborted|timeout turns.tools.result "
    "turns.tools.latency_s "
    "tools tools.calls tools.errors tools.seconds critical_steps total_steps subagents_assigned subagents_finished "
    "sampled_tokens status=completed|budget_exhausted|turns_exhausted|aborted|failed|restarted answer outcome "
    "missing missing_ranges missing_ranges.start missing_ranges.end missing_count unreadable events duplicates "
    "defects=conflict|missing_events|no_start|no_end|no_consent|frozen_role|redacted|no_token_ids|no_logprobs|"
    "nothing_sampled|unknown_version|other_run|broken_prefix|truncated_sampling|greedy_sampling|altered_sampling|"
    "unknown_sampling|bad_event|oversize "
    "first first.partition first.offset last last.partition last.offset closed_offset start_id started_ms ended_ms "
    "traceparent continuations";

// Fields by index in the shapes of a trajectory and its parts.
struct TrajectoryFields {
    struct { int trajectory_id, started, segments, turns, tools, critical_steps, total_steps, subagents_assigned,
                 subagents_finished, sampled_tokens, status, answer, outcome, missing, missing_count, events,
                 duplicates, defects, first, last, started_ms, ended_ms, continuations; } own;
    struct { int run, task_id, group_id, group_size, agent, harness_version, role, purpose, parent_trajectory_id,
                 tenant, consent, task; } start;
    SegmentFields segment;
    struct { int sampled_tokens, finish_reason, tools, pruned_ids, summarized; } turn;
    struct { int call_id, tool, status, error_class, latency_s; } call;
    struct { int calls, errors, seconds; } use;
    struct { int partition, offset; } place;

    // False with Python's error set if the shape of a trajectory lacks one.
    bool find(const Shape& trajectory);
};

}  // namespace headrace
