#pragma once

#include "python.hpp"

namespace headrace {

extern PyTypeObject TrajectoryWriterType;

}  // namespace headrace
