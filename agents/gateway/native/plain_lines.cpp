#include "plain_lines.hpp"

#include <cmath>
#include <cstring>
#include <utility>

#include "json_scanner.hpp"
#include "utf8.hpp"

namespace headrace::gateway {

namespace {

constexpr std::string_view kData = "data:";
constexpr std::string_view kTokenName = "token_id:";
constexpr double kMaxLogprob = 1e-3;  // MAX_LOGPROB of schemas/arrays.py

// Reads one line's event into the run, which it has changed if it returns false.
class LineReader {
public:
    LineReader(std::string_view json, std::string_view asked, Run& run) : json_(json), asked_(asked), run_(run) {}

    int32_t choice = -1;
    bool echoes = false;
    bool ends = false;

    // The end of a choice that ends.
    std::string ending() const {
        std::string found = R"({"index":0,"text":"","finish_reason":)";
        found.append(finish_).append(R"(,"stop_reason":)").append(stop_.empty() ? "null" : stop_);
        return found.append(R"(,"weight_versions":)").append(versions_.empty() ? "null" : versions_).append("}");
    }

    bool event() {
        bool has_choices = false, has_prompt = false;
        const bool is_object = object([&](std::string_view name) {
            if (name == "choices") {
                if (std::exchange(has_choices, true)) return false;
                return json_.take('[') && this->choice_of() && json_.take(']');
            }
            if (name == "prompt_token_ids") {
                if (std::exchange(has_prompt, true)) return false;
                if (json_.take_null()) return true;
                echoes = !asked_.empty() && json_.take_word(asked_);
                return echoes;
            }
            if (name == "usage" || name == "error") return json_.take_null();
            return json_.skip_value();
        });
        return is_object && has_choices && json_.at_end();
    }

private:
    bool choice_of() {
        bool has_text = false, has_ids = false, has_logprobs = false;
        const size_t ids = run_.token_ids.size(), logprobs = run_.logprobs.size();
        const bool is_object = object([&](std::string_view name) {
            if (name == "index") return choice < 0 && json_.id(choice);
            if (name == "text") return !std::exchange(has_text, true) && json_.string(run_.text);
            if (name == "token_ids") return !std::exchange(has_ids, true) && token_ids();
            if (name == "logprobs") return !std::exchange(has_logprobs, true) && content();
            if (name == "finish_reason") return finish_.empty() && json_.raw_value(finish_);
            if (name == "stop_reason") return stop_.empty() && json_.raw_value(stop_);
            if (name == "weight_versions") return versions_.empty() && json_.raw_value(versions_);
            return json_.skip_value();
        });
        if (!is_object || choice < 0 || !has_text || !has_ids || !has_logprobs) return false;
        if (is_null(finish_)) {
            if (!is_null(stop_) || !is_null(versions_)) return false;
        } else {
            if (finish_.front() != '"') return false;
            ends = true;
        }
        return run_.token_ids.size() - ids == run_.logprobs.size() - logprobs && names_fit(ids);
    }

    // `logprobs`: an object with the entries of the tokens.
    bool content() {
        bool has_content = false;
        return object([&](std::string_view name) {
            if (name != "content") return json_.skip_value();
            return !std::exchange(has_content, true) && list([&] { return entry(); });
        }) && has_content;
    }

    bool entry() {
        bool has_token = false, has_logprob = false;
        const bool is_object = object([&](std::string_view name) {
            if (name == "token") {
                token_.clear();
                return !std::exchange(has_token, true) && json_.string(token_) && note_name();
            }
            if (name == "logprob") {
                double value = 0;
                if (std::exchange(has_logprob, true) || !json_.number(value)) return false;
                if (!(std::abs(value) < 3e38)) return false;  // it may not be finite as a float
                const float rounded = static_cast<float>(value);
                run_.logprobs.push_back(rounded);
                return static_cast<double>(rounded) <= kMaxLogprob;
            }
            return json_.skip_value();
        });
        return is_object && has_token && has_logprob;
    }

    // Keeps the id in `token_id:312`. Either all tokens of a line are named so or none.
    bool note_name() {
        const bool is_named = std::string_view(token_).starts_with(kTokenName);
        if (entries_++ == 0) are_named_ = is_named;
        if (is_named != are_named_) return false;
        if (!is_named) return true;
        JsonScanner digits(std::string_view(token_).substr(kTokenName.size()));
        int32_t id = 0;
        if (!digits.id(id) || std::to_string(id) != std::string_view(token_).substr(kTokenName.size())) return false;
        named_.push_back(id);
        return true;
    }

    bool names_fit(size_t first) const {
        return named_.empty() ||
               std::memcmp(named_.data(), run_.token_ids.data() + first, named_.size() * sizeof(int32_t)) == 0;
    }

    bool token_ids() {
        return list([&] {
            int32_t id = 0;
            if (!json_.id(id)) return false;
            run_.token_ids.push_back(id);
            return true;
        });
    }

    template <typename Member>
    bool object(Member&& member) {
        if (!json_.take('{')) return false;
        if (json_.take('}')) return true;
        std::string_view name;
        do {
            if (!json_.name(name) || !member(name)) return false;
        } while (json_.take(','));
        return json_.take('}');
    }

    template <typename Item>
    bool list(Item&& item) {
        if (!json_.take('[')) return false;
        if (json_.take(']')) return true;
        do {
            if (!item()) return false;
        } while (json_.take(','));
        return json_.take(']');
    }

    static bool is_null(std::string_view value) { return value.empty() || value == "null"; }

    JsonScanner json_;
    std::string_view finish_, stop_, versions_;  // as they are written; empty: not at all
    std::string_view asked_;
    Run& run_;
    std::string token_;
    size_t entries_ = 0;
    bool are_named_ = false;
    std::vector<int32_t> named_;
};

// Where the next line that is not empty begins.
size_t after_empty_lines(std::string_view data, size_t at) {
    while (at < data.size()) {
        if (data[at] == '\n') {
            at += 1;
        } else if (data[at] == '\r' && at + 1 < data.size() && data[at + 1] == '\n') {
            at += 2;
        } else {
            break;
        }
    }
    return at;
}

}  // namespace

bool read_run(std::string_view data, size_t at, std::string_view asked, size_t longest, Run& run) {
    bool has_any = false;
    for (at = after_empty_lines(data, at); at < data.size(); at = after_empty_lines(data, at)) {
        const size_t end = data.find('\n', at);
        if (end == std::string_view::npos || end - at > longest) break;
        std::string_view line = data.substr(at, end - at);
        if (!line.starts_with(kData)) break;
        line.remove_prefix(kData.size());
        const size_t ids = run.token_ids.size(), logprobs = run.logprobs.size(), text = run.text.size();
        bool is_plain = is_utf8(line);
        if (is_plain) {
            LineReader reader(line, asked, run);
            is_plain = reader.event() && (!has_any || (reader.choice == run.choice && !reader.echoes && !reader.ends));
            if (is_plain && !has_any) {
                run.choice = reader.choice;
                run.echoes = reader.echoes;
                if (reader.ends) run.ending = reader.ending();
            }
        }
        if (!is_plain) {
            run.token_ids.resize(ids);
            run.logprobs.resize(logprobs);
            run.text.resize(text);
            break;
        }
        has_any = true;
        at = run.end = end + 1;
        if (!run.ending.empty()) break;
    }
    if (has_any) run.end = after_empty_lines(data, run.end);
    return has_any;
}

}  // namespace headrace::gateway
