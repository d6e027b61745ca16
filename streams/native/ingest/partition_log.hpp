#pragma once

#include "python.hpp"

namespace headrace {

extern PyTypeObject PartitionLogType;

}  // namespace headrace
