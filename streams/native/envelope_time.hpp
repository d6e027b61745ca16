// Converts `ce_time`, only in the form that `schemas.envelope.to_headers` writes, to and from Unix milliseconds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace headrace {

// Days from 1970-01-01 to a day of the proleptic Gregorian calendar (Howard Hinnant, "chrono-compatible date
// algorithms").
constexpr int64_t days_from_civil(int64_t year, int month, int day) {
    year -= month <= 2;
    const int64_t era = (year >= 0 ? year : year - 399) / 400;
    const int64_t year_of_era = year - era * 400;
    const int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    const int64_t day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    return era * 146097 + day_of_era - 719468;
}

constexpr int days_in_month(int year, int month) {
    constexpr int kDays[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    const bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    return kDays[month - 1] + (month == 2 && leap);
}

inline constexpr int64_t kMaxTime = 7'258'118'400'000;  // MAX_TIME_MS of schemas/bounds.py

// "2026-11-21T11:24:24.512Z" → 1795260264512; no value before 1970 or from kMaxTime on.
constexpr std::optional<int64_t> plain_time(std::string_view text) {
    constexpr std::string_view kForm = "0000-00-00T00:00:00.000Z";
    if (text.size() != kForm.size()) return std::nullopt;
    for (size_t i = 0; i < kForm.size(); ++i) {
        const bool fits = kForm[i] == '0' ? text[i] >= '0' && text[i] <= '9' : text[i] == kForm[i];
        if (!fits) return std::nullopt;
    }
    const auto number = [&](size_t at, size_t digits) {
        int value = 0;
        for (size_t i = at; i < at + digits; ++i) value = value * 10 + (text[i] - '0');
        return value;
    };
    const int year = number(0, 4), month = number(5, 2), day = number(8, 2);
    const int hour = number(11, 2), minute = number(14, 2), second = number(17, 2);
    if (year < 1 || month < 1 || month > 12 || day < 1 || day > days_in_month(year, month)) return std::nullopt;
    if (hour > 23 || minute > 59 || second > 59) return std::nullopt;
    const int64_t seconds = days_from_civil(year, month, day) * 86400 + hour * 3600 + minute * 60 + second;
    const int64_t ms = seconds * 1000 + number(20, 3);
    if (ms < 0 || ms >= kMaxTime) return std::nullopt;
    return ms;
}

static_assert(plain_time("2026-11-21T11:24:24.512Z") == 1795260264512);
static_assert(plain_time("2199-12-31T23:59:59.999Z") == kMaxTime - 1 && !plain_time("2200-01-01T00:00:00.000Z"));

inline constexpr int64_t kLastPlainTime = 253402300799999;  // the end of the year 9999

// Appends the text that plain_time() parses as `ms`; false before 1970 and after 9999. Dates by the same algorithms.
constexpr bool append_plain_time(int64_t ms, std::string& text) {
    if (ms < 0 || ms > kLastPlainTime) return false;
    const int64_t day = ms / 86'400'000 + 719468;
    const int64_t era = day / 146097;
    const int64_t day_of_era = day - era * 146097;
    const int64_t year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
    const int64_t day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    const int64_t march = (5 * day_of_year + 2) / 153;  // 0: March
    const int64_t month = march + (march < 10 ? 3 : -9);
    const auto put = [&](int64_t number, int digits, char after) {
        for (int64_t place = digits == 4 ? 1000 : digits == 3 ? 100 : 10; place; place /= 10) {
            text += static_cast<char>('0' + number / place % 10);
        }
        text += after;
    };
    put(era * 400 + year_of_era + (month <= 2), 4, '-');
    put(month, 2, '-');
    put(day_of_year - (153 * march + 2) / 5 + 1, 2, 'T');
    put(ms / 3'600'000 % 24, 2, ':');
    put(ms / 60'000 % 60, 2, ':');
    put(ms / 1000 % 60, 2, '.');
    put(ms % 1000, 3, 'Z');
    return true;
}

}  // namespace headrace
