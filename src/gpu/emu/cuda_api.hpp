// cuda.h and emu.h with their functions visible: the library hides every other symbol.
#pragma once

#pragma GCC visibility push(default)
#include <cuda.h>

#include "gpu/emu/emu.h"
#pragma GCC visibility pop
