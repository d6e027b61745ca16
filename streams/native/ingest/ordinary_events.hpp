#pragma once

#include "python.hpp"

namespace headrace {

extern PyTypeObject OrdinaryEventsType;

}  // namespace headrace
