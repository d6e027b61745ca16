// Folds facts into turns, tool statistics and steps, like `TurnFold` of assembly/turns.py: the same rules and fields.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "payloads/payload.hpp"

namespace headrace {

// Fields by index in their shapes.
struct TurnFields {
    int finish_reason, messages;                               // of a ModelCalled
    int call_id, tool, arguments, thinking_tokens;             // of a ToolCalled
    int returned_id, returned_tool, status, error_class, result, latency_s;  // of a ToolReturned
    int pruned_ids;                                            // of a ContextPruned
    int stage, finished_status, steps;                         // of a SubagentFinished
    int snapshot_id;                                           // of an EnvironmentSnapshotted

    // False with Python's error set if a shape lacks one.
    bool find(const Shape& called, const Shape& used, const Shape& returned, const Shape& pruned,
              const Shape& finished, const Shape& snapshotted);
};

// Payloads must stay in place until everything is written.
class TurnFold {
public:
    explicit TurnFold(const TurnFields& fields) : fields_(fields) {}

    int64_t subagents_assigned = 0, subagents_finished = 0;

    void called(const Payload& fact, int64_t sampled_tokens);
    // False in doubt: too many uses wait for their return.
    bool used(const Payload& fact);
    void returned(const Payload& fact);
    void pruned(const Payload& fact);
    void summarized() { turn().summarized = true; }
    void snapshotted(const Payload& fact);
    // False in doubt: more steps than can be summed.
    bool finished(const Payload& fact);

    int64_t critical_steps() const;
    int64_t total_steps() const { return model_calls_ + subagent_steps_; }
    // `segments`: that of each model call, in order; empty if there are none.
    void write_turns(const std::vector<size_t>& segments, std::string& json) const;
    // False in doubt: too many tools, or seconds that Python would write differently.
    bool write_statistics(std::string& json) const;

private:
    struct Use {
        const Payload* called;
        const Payload* returned;
    };
    struct Turn {
        int64_t sampled_tokens = 0;
        const Payload* call = nullptr;
        std::vector<size_t> uses;  // in uses_
        std::vector<std::string_view> pruned_ids;
        bool summarized = false;
        const Payload* snapshotted = nullptr;
    };
    struct Statistics {
        std::string_view tool;  // JSON
        int64_t calls = 0;
        std::vector<std::pair<std::string_view, int64_t>> errors;
        double seconds = 0;
    };

    Turn& turn();
    void use(const Payload* called, const Payload* returned);
    std::string_view tool_of(const Use& use) const;
    void write_use(const Use& use, std::string& json) const;
    void count(const Use& use, Statistics& statistics) const;

    const TurnFields& fields_;
    int64_t model_calls_ = 0, subagent_steps_ = 0;
    std::vector<Turn> turns_;
    std::vector<Use> uses_;
    std::vector<size_t> waiting_;         // uses without a return, in order
    std::map<int64_t, int64_t> slowest_;  // by stage
};

}  // namespace headrace
