#!/usr/bin/env python3
"""header_under_cpp17.py COMPILER INCLUDE: under C++17 vmem.hpp is one error, which says what is
needed.
"""

import subprocess
import sys

compiler, include = sys.argv[1:]
done = subprocess.run(
    [compiler, "-std=c++17", "-fsyntax-only", "-I", include, "-x", "c++", "-"],
    input="#include <vmem/vmem.hpp>\n",
    capture_output=True,
    text=True,
)
errors = [line for line in done.stderr.splitlines() if "error:" in line]
if len(errors) != 1 or "needs C++20" not in errors[0]:
    sys.exit(f"exit {done.returncode}, {len(errors)} errors:\n{done.stderr}")
