"""Which commit and machine a result is of, for the JSON files that scripts write."""

import datetime
import os
import platform
import subprocess


def provenance() -> dict:
    described = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=40"], capture_output=True, text=True)
    return {
        "commit": described.stdout.strip() or "unknown",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": {"processors": os.cpu_count(), "system": platform.platform()},
    }
