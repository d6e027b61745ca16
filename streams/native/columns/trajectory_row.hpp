// Derives the row of a trajectory from its payload, by the rules of clickhouse/rows.py.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "nested_column.hpp"
#include "payloads/arrays.hpp"
#include "trajectory_fields.hpp"

namespace headrace {

using TrajectoryRow = std::array<Cells, kTrajectoryColumnCount>;

struct RowRules {
    Shape shape;
    TrajectoryFields fields;
    ArrayCodec codec;
    std::vector<std::string> difficulty;  // fields of a task that say how hard it is, the first one first
};

// Derives rows; its memory is reused from one to the next.
class TrajectoryReader {
public:
    explicit TrajectoryReader(const RowRules& rules)
        : rules_(rules), of_(rules.fields), segments_(rules.codec, of_.segment) {}

    // Fills `row` with views into `json`; kDoubt if Python has to decide.
    Outcome read(std::string_view json, TrajectoryRow& row);

private:
    bool add_start(const Payload& start, TrajectoryRow& row) const;
    bool add_task(std::string_view json, TrajectoryRow& row) const;
    bool add_turns(const Payload& trajectory, TrajectoryRow& row) const;
    bool add_tools(const Value& tools, TrajectoryRow& row) const;
    Outcome add_segments(const Payload& trajectory, TrajectoryRow& row);

    const RowRules& rules_;
    const TrajectoryFields& of_;
    Payload payload_;
    SegmentReader segments_;
};

}  // namespace headrace
