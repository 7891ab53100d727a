#!/usr/bin/env python3
"""exported_symbols.py LIBRARY HEADER...: the library exports the functions that the headers
declare, and nothing else.

Another symbol (a third party's function, a C++ template) could replace the program's own, or be
replaced by it.
"""

import pathlib
import re
import subprocess
import sys

library, *headers = sys.argv[1:]
text = "".join(pathlib.Path(header).read_text() for header in headers)
declared = set(re.findall(r"^VMEM_API [^;(]*?\b(vmem_\w+)\(", text, re.MULTILINE))
table = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
exported = {name.split("@")[0] for *_, kind, name in map(str.split, table.splitlines()) if kind != "A"}

for name in sorted(declared - exported):
    print(f"declared, not exported: {name}")
for name in sorted(exported - declared):
    print(f"exported, not declared: {name}")
print(f"{len(declared)} functions declared, {len(exported)} symbols exported")
sys.exit(declared != exported or not declared)
