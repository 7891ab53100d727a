#!/usr/bin/env python3
"""nightly_report.py PART FILE: writes stages with commit and machine as JSON.

Standard input has one stage a line: name, result and seconds.
"""

import json
import pathlib
import sys

from provenance import provenance

part, path = sys.argv[1], pathlib.Path(sys.argv[2])
stages = [dict(zip(("name", "result", "seconds"), line.rstrip("\n").split("\t"), strict=True)) for line in sys.stdin]
for stage in stages:
    stage["seconds"] = int(stage["seconds"])
report = {
    **provenance(),
    "part": part,
    "result": "ok" if stages and all(stage["result"] == "ok" for stage in stages) else "FAILED",
    "seconds": sum(stage["seconds"] for stage in stages),
    "stages": stages,
}
path.parent.mkdir(parents=True, exist_ok=True)
path.write_text(json.dumps(report, indent=2) + "\n")
print(f"{path}: {report['result']}")
