// W3C trace context, as schemas/trace.py reads it.
#pragma once

#include <string_view>

namespace headrace {

// 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
inline constexpr std::string_view kTraceForm = "00-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx";
inline constexpr size_t kTraceAt = 3, kTraceDigits = 32, kSpanAt = 36, kSpanDigits = 16;

// Whether `text` is of version 00 and names a trace and a span.
constexpr bool is_traceparent(std::string_view text) {
    if (text.size() != kTraceForm.size()) return false;
    for (size_t index = 0; index < kTraceForm.size(); ++index) {
        const char c = text[index];
        const bool is_hex = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
        if (kTraceForm[index] == 'x' ? !is_hex : c != kTraceForm[index]) return false;
    }
    const auto some = [&](size_t at, size_t length) { return text.substr(at, length).find_first_not_of('0') < length; };
    return some(kTraceAt, kTraceDigits) && some(kSpanAt, kSpanDigits);
}

static_assert(is_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));
static_assert(!is_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01"));

}  // namespace headrace
