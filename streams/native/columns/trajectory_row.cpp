#include "trajectory_row.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace headrace {
namespace {

bool is_plain(std::string_view text) { return text.find('\\') == std::string_view::npos; }

// Fills `cell` with a text or a choice; nothing for null.
bool put_text(const Value& value, Cell& cell) {
    if (value.is_null) return true;
    cell.text = value.text;
    return is_plain(value.text);
}

void put_number(int64_t number, Cell& cell) {
    cell.bits = static_cast<uint64_t>(number);
    cell.is_null = false;
}

void put_integer(const Value& value, Cell& cell) {
    if (!value.is_null) put_number(value.number.integer, cell);
}

void put_double(double number, Cell& cell) {
    cell.bits = std::bit_cast<uint64_t>(number);
    cell.is_null = false;
}

bool add_text(const Value& value, Cells& cells) { return put_text(value, cells.emplace_back()); }
void add_number(int64_t number, Cells& cells) { put_number(number, cells.emplace_back()); }

// A text or a number of a task as `str` writes it; empty for anything else. False in doubt.
bool label_of(std::string_view json, std::string_view& label) {
    label = {};
    switch (json.front()) {
        case '"':
            label = json.substr(1, json.size() - 2);
            return is_plain(label);
        case 't': label = "True"; return true;
        case 'f': label = "False"; return true;
        case 'n':
        case '{':
        case '[': return true;
        default: label = json; return true;
    }
}

}  // namespace

bool TrajectoryReader::add_task(std::string_view json, TrajectoryRow& row) const {
    Cell& task = row[kTaskColumn].front();
    if (!put_json(json, task)) return false;
    size_t best = rules_.difficulty.size();
    JsonScanner scanner(json);
    scanner.take('{');
    if (scanner.take('}')) return true;
    do {
        std::string_view name, label;
        if (!scanner.string(name) || !scanner.take(':')) return false;
        const char* begin = scanner.position();
        if (!scanner.value(0)) return false;
        const std::string_view value(begin, static_cast<size_t>(scanner.position() - begin));
        if (name == "source") {
            if (!label_of(value, row[kTaskSourceColumn].front().text)) return false;
        } else if (name == "evaluation") {
            const bool is_false = value == "false" || value == "null" || value == "0" || value == "0.0";
            if (is_false || value == "{}" || value == "[]") continue;
            if (value.front() == '{' || value.front() == '[') return false;
            if (!label_of(value, row[kEvaluationColumn].front().text)) return false;
        }
        const auto found = std::find(rules_.difficulty.begin(), rules_.difficulty.begin() + static_cast<long>(best), name);
        const auto rank = static_cast<size_t>(found - rules_.difficulty.begin());
        if (rank == best) continue;
        if (!label_of(value, label)) return false;
        if (label.empty()) continue;
        best = rank;
        row[kDifficultyColumn].front().text = label;
    } while (scanner.take(','));
    return true;
}

bool TrajectoryReader::add_start(const Payload& start, TrajectoryRow& row) const {
    const std::pair<int, TrajectoryColumn> texts[] = {
        {of_.start.run, kRunColumn}, {of_.start.task_id, kTaskIdColumn}, {of_.start.group_id, kGroupIdColumn},
        {of_.start.agent, kAgentColumn}, {of_.start.harness_version, kHarnessColumn}, {of_.start.role, kRoleColumn},
        {of_.start.purpose, kPurposeColumn}, {of_.start.parent_trajectory_id, kParentColumn},
        {of_.start.tenant, kTenantColumn},
    };
    for (const auto& [field, column] : texts) {
        if (!put_text(start[field], row[column].front())) return false;
    }
    put_integer(start[of_.start.group_size], row[kGroupSizeColumn].front());
    put_number(start[of_.start.consent].flag(), row[kConsentColumn].front());
    return add_task(start[of_.start.task].json, row);
}

bool TrajectoryReader::add_turns(const Payload& trajectory, TrajectoryRow& row) const {
    const auto turns = trajectory[of_.own.turns].all_parts();
    int64_t number = 0, pruned = 0, summaries = 0;
    for (const Payload& turn : turns) {
        const auto removed = static_cast<int64_t>(turn[of_.turn.pruned_ids].texts.size());
        const bool is_summarized = turn[of_.turn.summarized].flag();
        pruned += removed;
        summaries += is_summarized;
        add_number(turn[of_.turn.sampled_tokens].number.integer, row[kTurnSampledColumn]);
        if (!add_text(turn[of_.turn.finish_reason], row[kTurnReasonsColumn])) return false;
        add_number(removed, row[kTurnPrunedColumn]);
        add_number(is_summarized, row[kTurnSummarizedColumn]);
        for (const Payload& call : turn[of_.turn.tools].all_parts()) {
            add_number(number, row[kCallTurnsColumn]);
            const bool are_plain = add_text(call[of_.call.call_id], row[kCallIdsColumn]) &&
                                   add_text(call[of_.call.tool], row[kCallToolsColumn]) &&
                                   add_text(call[of_.call.status], row[kCallStatusesColumn]) &&
                                   add_text(call[of_.call.error_class], row[kCallErrorsColumn]);
            if (!are_plain) return false;
            const Value& latency = call[of_.call.latency_s];
            Cell& seconds = row[kCallSecondsColumn].emplace_back();
            if (!latency.is_null) put_double(latency.number.value, seconds);
        }
        ++number;
    }
    put_number(number, row[kTurnsColumn].front());
    put_number(pruned, row[kPrunedColumn].front());
    put_number(summaries, row[kSummariesColumn].front());
    return true;
}

bool TrajectoryReader::add_tools(const Value& tools, TrajectoryRow& row) const {
    using Counts = std::vector<std::pair<std::string_view, int64_t>>;
    Counts calls, errors;
    double seconds = 0;
    const auto uses = tools.all_parts();
    for (size_t index = 0; index < uses.size(); ++index) {
        const Payload& use = uses[index];
        seconds += use[of_.use.seconds].number.value;
        calls.emplace_back(tools.texts[index], use[of_.use.calls].number.integer);
        const Value& failed = use[of_.use.errors];
        for (size_t kind = 0; kind < failed.texts.size(); ++kind) {
            const std::string_view name = failed.texts[kind];
            if (failed.integers[kind] < 0 || failed.integers[kind] > UINT32_MAX) return false;
            const auto found = std::find_if(errors.begin(), errors.end(), [&](auto& each) { return each.first == name; });
            if (found == errors.end()) errors.emplace_back(name, failed.integers[kind]);
            else found->second += failed.integers[kind];
        }
    }
    for (auto& [counts, column] : {std::pair<Counts&, Cells&>(calls, row[kToolsColumn]), {errors, row[kToolErrorsColumn]}}) {
        std::sort(counts.begin(), counts.end());  // by bytes of UTF-8, which is Python's order of texts
        for (const auto& [name, count] : counts) {
            if (!is_plain(name)) return false;
            column.emplace_back().text = name;
            add_number(count, column);
        }
    }
    put_double(seconds, row[kToolSecondsColumn].front());
    return true;
}

Outcome TrajectoryReader::add_segments(const Payload& trajectory, TrajectoryRow& row) {
    const Value& segments = trajectory[of_.own.segments];
    const Outcome outcome = segments_.read(segments, trajectory[of_.own.started]);
    if (outcome != Outcome::kDone) return outcome;
    put_number(static_cast<int64_t>(segments.all_parts().size()), row[kSegmentsColumn].front());
    put_number(segments_.tokens(), row[kTokensColumn].front());
    const std::vector<int64_t>& versions = segments_.versions();
    for (const int64_t version : versions) add_number(version, row[kVersionsColumn]);
    if (!versions.empty()) {
        put_number(versions.front(), row[kOldestColumn].front());
        put_number(versions.back(), row[kNewestColumn].front());
    }
    return Outcome::kDone;
}

Outcome TrajectoryReader::read(std::string_view json, TrajectoryRow& row) {
    for (size_t column = 0; column < row.size(); ++column) {
        const bool is_nested = kTrajectoryColumns[column].form.find(' ') != std::string_view::npos;
        row[column].assign(is_nested ? 0 : 1, Cell());
    }
    if (!read_payload(rules_.shape, json, false, payload_, false)) return Outcome::kDoubt;
    const Payload& own = payload_;
    const std::pair<int, TrajectoryColumn> numbers[] = {
        {of_.own.sampled_tokens, kSampledColumn}, {of_.own.critical_steps, kCriticalColumn},
        {of_.own.total_steps, kTotalStepsColumn}, {of_.own.subagents_assigned, kAssignedColumn},
        {of_.own.subagents_finished, kFinishedColumn}, {of_.own.events, kEventsColumn},
        {of_.own.duplicates, kDuplicatesColumn}, {of_.own.started_ms, kStartedAtColumn},
        {of_.own.ended_ms, kEndedAtColumn},
    };
    for (const auto& [field, column] : numbers) put_integer(own[field], row[column].front());
    const auto missing = static_cast<int64_t>(own[of_.own.missing].integers.size());
    put_number(std::max(own[of_.own.missing_count].number.integer, missing), row[kMissingColumn].front());
    const Value &outcome = own[of_.own.outcome], &answer = own[of_.own.answer], &started = own[of_.own.started];
    if (!outcome.is_null) put_double(outcome.number.value, row[kOutcomeColumn].front());
    const Payload &first = own[of_.own.first].all_parts().front(), &last = own[of_.own.last].all_parts().front();
    put_integer(first[of_.place.partition], row[kFirstPartitionColumn].front());
    put_integer(first[of_.place.offset], row[kFirstOffsetColumn].front());
    put_integer(last[of_.place.offset], row[kLastOffsetColumn].front());
    for (const std::string_view defect : own[of_.own.defects].texts) row[kDefectsColumn].emplace_back().text = defect;
    const bool are_plain =
        put_text(own[of_.own.trajectory_id], row[kTrajectoryIdColumn].front()) &&
        put_text(own[of_.own.status], row[kStatusColumn].front()) &&
        (answer.is_null || answer.json == "null" || put_json(answer.json, row[kAnswerColumn].front())) &&
        (started.is_null || add_start(started.all_parts().front(), row)) && add_turns(own, row) &&
        add_tools(own[of_.own.tools], row);
    return are_plain ? add_segments(own, row) : Outcome::kDoubt;
}

}  // namespace headrace
