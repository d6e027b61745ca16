// The plain lines of an engine's stream, which are all but a few of each answer:
//
//   data: {"request_id":"r","choices":[{"index":0,"text":" look","token_ids":[312],"logprobs":{"content":[…]},…}]}
//
// A line is plain if it is one event with one choice, in the form that vLLM writes, and contradicts nothing. Of a line
// that ends its choice, what the end says is left to Python. Every other line is left to Python (generate_stream.py), which has the rules and the errors.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::gateway {

// Consecutive plain lines of one choice that continues, or one that ends it.
struct Run {
    int64_t choice = 0;
    std::vector<int32_t> token_ids;
    std::vector<float> logprobs;
    std::string text;  // UTF-8
    bool echoes = false;  // the first line repeats the prompt that was asked for
    std::string ending;  // of a line that ends the choice: a choice in JSON that has the end, and neither tokens nor text
    size_t end = 0;  // one past the last byte that was read, with the empty lines that follow
};

// Reads the run of plain lines at `at`; false if the line there is not plain. `asked` is the prompt of the request as
// JSON, empty if it is unknown. Longer lines than `longest` are not plain.
bool read_run(std::string_view data, size_t at, std::string_view asked, size_t longest, Run& run);

}  // namespace headrace::gateway
