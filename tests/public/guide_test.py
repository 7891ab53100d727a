#!/usr/bin/env python3
"""guide_test.py BUILD LIBDIR SOURCE CC: runs the commands of the guide's "A cluster in five
minutes" as they stand there, with an installation of the build and a copy of the examples, and
compares what they print with what the guide shows. Needs etcd.

Numbers that differ from run to run may differ, as ports; "[...]" is any text. Log lines and those
of programs in the background may stand elsewhere, and log lines that are not in the guide are left
out.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

GUIDE = "docs/guide/other-nodes.md"
SECTION = "## A cluster in five minutes\n"
MARK = "-- command "
# Lines that may be there: of logs, but for errors; what the shell says of a job that was ended; and
# in the status a program that was killed, until a daemon has told the registry.
LOG = re.compile(r"\b(?:warning|info|debug): |^\[\d+\]\+ +Terminated |^  program \d+: process ")
# What the guide shows: what else there may be. By the first that fits.
CHANGES = (
    (r"\[\.\.\.\]", ".*"),
    (r"0x[0-9a-f]+", "0x[0-9a-f]+"),
    (r"127\.0\.0\.1:\d+", r"127\.0\.0\.1:\d+"),
    (r"\bprocess \d+", r"process \d+"),
    (r"\bnode \d+", r"node \d+"),
    (r"\bhome \d+", r"home \d+"),
    (r"\bnode=n\d", r"node=n\d"),
    (r"\bhost=[^,;]+", r"host=[^,;]+"),
    (r"\bmoved in \d+ MiB, out \d+ MiB", r"moved in \d+ MiB, out \d+ MiB"),
    (r"/tmp/vmem-cluster-0/", "/[^ ]*/vmem-cluster/"),  # XDG_RUNTIME_DIR is set here
    (r"\b\d+ nodes? takes? part", r"\d+ nodes? takes? part"),
    (r"\s+", r"\s+"),
)


def pattern_of(text):
    """Matches what the guide's text stands for."""
    any_change = re.compile("|".join(f"({shown})" for shown, _ in CHANGES))
    pattern, at = "", 0
    for found in any_change.finditer(text):
        pattern += re.escape(text[at : found.start()]) + CHANGES[found.lastindex - 1][1]
        at = found.end()
    return pattern + re.escape(text[at:])


def commands_of(section):
    """[(command, lines that the guide shows)]."""
    commands = []
    for line in re.findall(r"^    (.*)$", section, re.MULTILINE):
        if line.startswith("$ "):
            commands.append((line[2:], []))
        else:
            commands[-1][1].append(line)
    return commands


def check(commands, printed):
    """What is wrong, or ""."""
    background = [re.compile(pattern_of(line)) for command, shown in commands if command.endswith("&") for line in shown]
    missing = list(background)
    for number, (command, shown) in enumerate(commands):
        log, text = [], []
        for line in printed[number].splitlines():
            mine = [each for each in missing if each.fullmatch(line)]
            if mine:
                missing.remove(mine[0])
            else:
                (log if LOG.search(line) else text).append(line)
        shown = [] if command.endswith("&") else shown
        wanted = "\n".join(line for line in shown if not LOG.search(line))
        if not re.fullmatch(pattern_of(wanted), "\n".join(text)):
            return f"{command}\nprints\n{printed[number]}\nand the guide shows\n{wanted}"
        for line in filter(LOG.search, shown):
            if not any(re.search(pattern_of(line), each) for each in log):
                return f"{command}\nlogs\n{printed[number]}\nand the guide shows\n{line}"
    return "".join(f"nothing has printed {each.pattern}\n" for each in missing)


def install(build, libdir, to):
    with open(to / "install.log", "w+", encoding="utf-8") as log:
        if subprocess.run(["cmake", "--install", build, "--prefix", to / "installed"], stdout=log, stderr=log).returncode != 0:
            log.seek(0)
            sys.exit(log.read())
    prefix = to / "installed"
    return {
        "PATH": f"{prefix}/bin:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": f"{prefix / libdir}",
        "PKG_CONFIG_PATH": f"{prefix / libdir}/pkgconfig",
    }


def run(commands, folder, environment):
    """What each command has printed. One shell runs them all."""
    lines = ["set -m", "exec 2>&1"]
    for number, (command, _) in enumerate(commands):
        lines += [f"echo '{MARK}{number}'", command]
    shell = ["bash", "--noprofile", "--norc", "-c", "\n".join(lines)]
    try:
        done = subprocess.run(shell, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=100)
    finally:
        subprocess.run(["vmem", "cluster", "down"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    printed = re.split(rf"^{MARK}\d+\n", done.stdout, flags=re.MULTILINE)
    if len(printed) != len(commands) + 1:
        sys.exit(f"of {len(commands)} commands {len(printed) - 1} have run:\n{done.stdout}")
    return printed[1:]


def main():
    build, libdir, source, compiler = sys.argv[1:]
    source = pathlib.Path(source)
    section = (source / GUIDE).read_text(encoding="utf-8").partition(SECTION)[2].partition("\n## ")[0]
    commands = commands_of(section)
    for word in ("cluster up", "oversubscribe", "table publish", "table scan", "cluster down"):
        if not any(word in command for command, _ in commands):
            sys.exit(f"{GUIDE}: 'A cluster in five minutes' has no command with '{word}'")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        shutil.copytree(source / "examples", work / "examples")
        (work / "run").mkdir(mode=0o700)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("VMEM_", "MAKE"))}
        environment |= {"XDG_RUNTIME_DIR": str(work / "run"), "CC": compiler} | install(build, libdir, work)
        sys.exit(check(commands, run(commands, work, environment)) or 0)


if __name__ == "__main__":
    main()
