#pragma once

#include "python.hpp"

namespace headrace {

extern PyTypeObject EventColumnsType;

}  // namespace headrace
