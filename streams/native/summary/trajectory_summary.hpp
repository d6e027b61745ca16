#pragma once

#include "python.hpp"

namespace headrace {

extern PyTypeObject TrajectorySummaryType;

}  // namespace headrace
