"""What a campaign measured and what went wrong in it, as records of `vmem bench`."""
import json
import os
import pathlib
import platform
import subprocess
import sys

DEVICE = "vmem emulated GPU"


class Figures:
    """`failures` says what went wrong, `missed` which figures are beyond their bounds."""

    def __init__(self, vmem: str, seed: int):
        self.failures: list[str] = []
        self.missed: list[str] = []
        self.records: list[dict] = []
        version = subprocess.run([vmem, "--version"], capture_output=True, text=True, check=True).stdout
        self.common = {
            "scenario": "cluster", "device": DEVICE, "emulated": True, "options": {"seed": seed},
            "commit": version.rsplit("commit ", 1)[-1].rstrip(")\n"),
            "command": " ".join([os.path.basename(sys.argv[0]), *without_paths(sys.argv[1:])]),
            "machine": {"cores": os.cpu_count(), "system": platform.platform(),
                        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")},
        }

    def fail(self, why: str) -> None:
        print(f"  FAILED: {why}", flush=True)
        self.failures.append(why)

    def expect(self, holds: bool, what: str) -> None:
        """Prints what was seen, and whether it is as it has to be."""
        print(f"  {what}", flush=True)
        if not holds:
            self.fail(what)

    def add(self, variant: str, achieved: float, unit: str, *, limit: float | None = None, limit_name: str = "",
            least: float | None = None, most: float | None = None, **details) -> None:
        """A figure with a bound, `least` or `most`: of its ratio to the limit if it has one."""
        if limit == 0:
            return self.fail(f"{variant}: nothing to compare with: {limit_name} is 0")
        ratio = None if limit is None else achieved / limit
        bounded, of = (achieved, "achieved") if ratio is None else (ratio, "ratio")
        bound, value = ("at_least", least) if most is None else ("at_most", most)
        met = bounded >= value if most is None else bounded <= value
        against = "" if ratio is None else f", {ratio:.2f} of {limit:.4g} {unit} ({limit_name})"
        said = f"{variant}: {achieved:.4g} {unit}{against}; {bound.replace('_', ' ')} {value:.4g}"
        print(f"  {said}", flush=True)
        self.records.append(self.common | {
            "variant": variant, "achieved": achieved, "unit": unit, "limit": limit, "limit_name": limit_name,
            "limit_is": "reference", "limit_exceeded": False, "ratio": ratio, "details": details,
            "goal": {"bound": bound, "of": of, "value": value, "met": met}})
        if not met:
            print(f"  MISSED: {said}", flush=True)
            self.missed.append(said)
        return None

    def end(self, path: str | None, logs: str) -> int:
        """The exit status. Keeps the records, as not verified where something failed."""
        if path:
            about = {"verified": not self.failures, "mismatch": "; ".join(self.failures)}
            kept = [each | about for each in self.records]
            pathlib.Path(path).write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n")
        if self.failures:
            print(f"  logs: {logs}", flush=True)
        return 1 if self.failures or self.missed else 0


def without_paths(words: list[str]) -> list[str]:
    """A command's words but where its programs and records are on this machine."""
    left, kept = iter(words), []
    for word in left:
        if word in ("--bin", "--json"):
            next(left, None)
        elif not word.startswith(("--bin=", "--json=")):
            kept.append(word)
    return kept
