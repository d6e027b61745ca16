#include "turns.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace headrace {
namespace {

constexpr size_t kMostWaiting = 256, kMostTools = 256;  // searched linearly
constexpr int64_t kMostSteps = 1'000'000'000'000;  // of one sub-agent: the sum over 65,536 of them is below 2^63

bool append_float(double value, std::string& json) {
    if (value != 0 && (std::fabs(value) < 1e-3 || std::fabs(value) >= 1e15)) return false;
    char digits[64];
    const auto end = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed).ptr;
    const std::string_view text(digits, static_cast<size_t>(end - digits));
    json += text;
    if (text.find('.') == std::string_view::npos) json += ".0";
    return true;
}

}  // namespace

bool TurnFields::find(const Shape& called, const Shape& used, const Shape& returned, const Shape& pruned,
                      const Shape& finished, const Shape& snapshotted) {
    const struct {
        int* index;
        const Shape& shape;
        const char* name;
    } all[] = {
        {&finish_reason, called, "finish_reason"}, {&messages, called, "messages"},
        {&call_id, used, "call_id"},               {&tool, used, "tool"},
        {&arguments, used, "arguments"},           {&thinking_tokens, used, "thinking_tokens"},
        {&returned_id, returned, "call_id"},       {&returned_tool, returned, "tool"},
        {&status, returned, "status"},             {&error_class, returned, "error_class"},
        {&result, returned, "result"},             {&latency_s, returned, "latency_s"},
        {&pruned_ids, pruned, "pruned_ids"},       {&stage, finished, "stage"},
        {&finished_status, finished, "status"},    {&steps, finished, "steps"},
        {&snapshot_id, snapshotted, "snapshot_id"},
    };
    return std::all_of(std::begin(all), std::end(all),
                       [](const auto& field) {
                           return !field.shape || (*field.index = field.shape.at(field.name)) >= 0;
                       });
}

TurnFold::Turn& TurnFold::turn() { return turns_.empty() ? turns_.emplace_back() : turns_.back(); }

void TurnFold::called(const Payload& fact, int64_t sampled_tokens) {
    ++model_calls_;
    Turn& turn = turns_.emplace_back();
    turn.sampled_tokens = sampled_tokens;
    turn.call = &fact;
}

void TurnFold::use(const Payload* called, const Payload* returned) {
    turn().uses.push_back(uses_.size());
    uses_.push_back({called, returned});
}

bool TurnFold::used(const Payload& fact) {
    use(&fact, nullptr);
    waiting_.push_back(uses_.size() - 1);
    return waiting_.size() <= kMostWaiting;
}

void TurnFold::returned(const Payload& fact) {
    const std::string_view id = fact[fields_.returned_id].json;
    const auto waiting = std::find_if(waiting_.begin(), waiting_.end(), [&](size_t use) {
        return (*uses_[use].called)[fields_.call_id].json == id;
    });
    if (waiting == waiting_.end()) {
        use(nullptr, &fact);
        return;
    }
    uses_[*waiting].returned = &fact;
    waiting_.erase(waiting);
}

void TurnFold::pruned(const Payload& fact) {
    const auto& ids = fact[fields_.pruned_ids].texts;
    auto& pruned_ids = turn().pruned_ids;
    pruned_ids.insert(pruned_ids.end(), ids.begin(), ids.end());
}

void TurnFold::snapshotted(const Payload& fact) {
    if (!turns_.empty()) turns_.back().snapshotted = &fact;
}

bool TurnFold::finished(const Payload& fact) {
    const int64_t steps = fact[fields_.steps].number.integer;
    if (steps > kMostSteps) return false;
    subagents_finished += fact[fields_.finished_status].text == "completed";
    subagent_steps_ += steps;
    int64_t& slowest = slowest_[fact[fields_.stage].number.integer];
    slowest = std::max(slowest, steps);
    return true;
}

int64_t TurnFold::critical_steps() const {
    int64_t steps = model_calls_;
    for (const auto& [stage, slowest] : slowest_) steps += slowest;
    return steps;
}

std::string_view TurnFold::tool_of(const Use& use) const {
    return use.called ? (*use.called)[fields_.tool].json : (*use.returned)[fields_.returned_tool].json;
}

void TurnFold::write_use(const Use& use, std::string& json) const {
    const auto [called, returned] = use;
    const auto of_return = [&](int field) { return returned ? (*returned)[field].json : std::string_view("null"); };
    json.append("{\"call_id\":").append(called ? (*called)[fields_.call_id].json : of_return(fields_.returned_id));
    json.append(",\"tool\":").append(tool_of(use));
    json.append(",\"arguments\":").append(called ? (*called)[fields_.arguments].json : "{}");
    json.append(",\"thinking_tokens\":").append(called ? (*called)[fields_.thinking_tokens].json : "null");
    json.append(",\"status\":").append(of_return(fields_.status));
    json.append(",\"error_class\":").append(of_return(fields_.error_class));
    json.append(",\"result\":").append(of_return(fields_.result));
    json.append(",\"latency_s\":").append(of_return(fields_.latency_s)).append("}");
}

void TurnFold::write_turns(const std::vector<size_t>& segments, std::string& json) const {
    json += '[';
    size_t call = 0;
    for (const Turn& turn : turns_) {
        if (&turn != turns_.data()) json += ',';
        const auto of_call = [&](int field) { return turn.call ? (*turn.call)[field].json : std::string_view("null"); };
        json.append("{\"sampled_tokens\":").append(std::to_string(turn.sampled_tokens));
        json.append(",\"finish_reason\":").append(of_call(fields_.finish_reason));
        json.append(",\"messages\":").append(of_call(fields_.messages));
        json += ",\"tools\":[";
        for (const size_t& use : turn.uses) {
            if (&use != turn.uses.data()) json += ',';
            write_use(uses_[use], json);
        }
        json += "],\"pruned_ids\":[";
        for (const std::string_view& id : turn.pruned_ids) {
            if (&id != turn.pruned_ids.data()) json += ',';
            json.append("\"").append(id).append("\"");
        }
        json.append("],\"summarized\":").append(turn.summarized ? "true" : "false");
        json.append(",\"snapshot_id\":");
        json.append(turn.snapshotted ? (*turn.snapshotted)[fields_.snapshot_id].json : "null").append(",\"segment\":");
        const bool has_segment = turn.call && call < segments.size();
        json.append(has_segment ? std::to_string(segments[call]) : "null").append("}");
        call += turn.call != nullptr;
    }
    json += ']';
}

void TurnFold::count(const Use& use, Statistics& statistics) const {
    ++statistics.calls;
    if (use.returned == nullptr) return;
    const Payload& returned = *use.returned;
    if (returned[fields_.status].text == "error") {
        const Value& error_class = returned[fields_.error_class];
        const std::string_view kind = error_class.is_null ? "unclassified" : error_class.text;
        auto& errors = statistics.errors;
        const auto found = std::find_if(errors.begin(), errors.end(), [&](auto& entry) { return entry.first == kind; });
        if (found == errors.end()) errors.emplace_back(kind, 1);
        else ++found->second;
    }
    const Value& latency = returned[fields_.latency_s];
    if (!latency.is_null) statistics.seconds += latency.number.value;
}

bool TurnFold::write_statistics(std::string& json) const {
    std::vector<Statistics> all;  // in order of first use, turn by turn
    for (const Turn& turn : turns_) {
        for (const size_t use : turn.uses) {
            const std::string_view tool = tool_of(uses_[use]);
            auto found = std::find_if(all.begin(), all.end(), [&](const Statistics& one) { return one.tool == tool; });
            if (found == all.end()) {
                if (all.size() == kMostTools) return false;
                found = all.insert(all.end(), Statistics{tool, 0, {}, 0});
            }
            count(uses_[use], *found);
        }
    }
    json += '{';
    for (const Statistics& statistics : all) {
        if (&statistics != all.data()) json += ',';
        json.append(statistics.tool).append(":{\"calls\":").append(std::to_string(statistics.calls));
        json += ",\"errors\":{";
        for (const auto& error : statistics.errors) {
            if (&error != statistics.errors.data()) json += ',';
            json.append("\"").append(error.first).append("\":").append(std::to_string(error.second));
        }
        json += "},\"seconds\":";
        if (!append_float(statistics.seconds, json)) return false;
        json += '}';
    }
    json += '}';
    return true;
}

}  // namespace headrace
