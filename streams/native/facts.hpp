// The types of the topic `events`; shapes for all of them come from Python, which so holds the names to its models.
#pragma once

#include <cstdint>
#include <string_view>

namespace headrace {

enum Fact : int8_t {
    kStarted, kCalled, kToolCalled, kToolReturned, kSummarized, kPruned, kSubagentStarted, kSubagentFinished, kEnded,
    kTicked, kFacts  // their number, and a type that is not known here
};

inline constexpr std::string_view kFactNames[kFacts] = {
    "headrace.trajectory.started.v1", "headrace.model.called.v1",       "headrace.tool.called.v1",
    "headrace.tool.returned.v1",      "headrace.context.summarized.v1", "headrace.context.pruned.v1",
    "headrace.subagent.started.v1",   "headrace.subagent.finished.v1",  "headrace.trajectory.ended.v1",
    "headrace.clock.ticked.v1",
};

inline Fact fact_of(std::string_view name) {
    for (int fact = 0; fact < kFacts; ++fact) {
        if (name == kFactNames[fact]) return static_cast<Fact>(fact);
    }
    return kFacts;
}

}  // namespace headrace
