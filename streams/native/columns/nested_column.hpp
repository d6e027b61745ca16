// A column of Arrow rows that have one value each, or a list of values, or a map.
#pragma once

#include <string_view>
#include <vector>

#include "column.hpp"

namespace headrace {

// The values of one row: one, those of a list, or keys and values of a map in turn.
using Cells = std::vector<Cell>;

class NestedColumn {
public:
    // `form`: a name in kFormNames; `list` and `map` in front of it say of what it is a list, or to what a map of texts.
    explicit NestedColumn(std::string_view form);

    // Whether Arrow can hold `cells` after what is there.
    bool fits(const Cells& cells) const;
    // Appends a row; false with Python's error set, and then the column is unusable.
    bool append(const Cells& cells);
    // As Arrow stores it: length, buffers, and the same of each child. The rows leave the column. Null with Python's
    // error set.
    PyObject* release();

private:
    bool is_nested_;
    std::vector<Column> leaves_;  // the values; of a map keys and values
    Buffer ends_;                 // of a list or a map: where each row ends in the leaves, after a 0
    size_t rows_ = 0, items_ = 0;
};

}  // namespace headrace
