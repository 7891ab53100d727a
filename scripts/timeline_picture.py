#!/usr/bin/env python3
"""Draws what one step of a recorded program keeps busy with less HBM, by second chance alone and
by looking ahead.

    scripts/timeline_picture.py bench/traces/transformer.trace --hbm 3686MiB \\
        docs/internals/look-ahead.svg
"""

import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROWS = (("computing", "GPU computes"), ("link in", "copies in"), ("link out", "copies out"))
COLOURS = {"computing": "#3b7d4f", "link in": "#2f6fae", "link out": "#c0652a"}
WIDTH, LEFT, BAR, GAP = 960, 150, 18, 6


def json_of(vmem: str, *arguments: str) -> dict:
    done = subprocess.run([vmem, *arguments, "--json", "-"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"timeline_picture: vmem {' '.join(arguments)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def step(vmem: str, trace: str, hbm: str, plan: dict, *options: str) -> tuple[dict[str, list], float]:
    """By track, begins and ends in ms of the first measured period; and how long it took."""
    begin_s = str(plan["from_s"])
    shown = json_of(vmem, "trace", "replay", trace, "--hbm", hbm, "--from", begin_s, "--pinned", "1000", *options)
    pieces = [event for event in shown["traceEvents"] if event["ph"] == "X"]
    copies = [event for event in pieces if event["name"] != "mover"]
    period = max(event["ts"] + event["dur"] for event in copies) / 1000 / max(1, plan["periods"])
    tracks: dict[str, list] = {name: [] for name, _ in ROWS}
    for event in pieces:
        begin, end = event["ts"] / 1000, (event["ts"] + event["dur"]) / 1000
        if event["name"] in tracks and begin < period:
            tracks[event["name"]].append((begin, min(end, period)))
    return tracks, period


def merged(pieces: list, within: float) -> list:
    """Pieces that a picture cannot tell apart become one."""
    result: list = []
    for begin, end in sorted(pieces):
        if result and begin <= result[-1][1] + within:
            result[-1][1] = max(result[-1][1], end)
        else:
            result.append([begin, end])
    return result


def bar(x: float, y: float, width: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y}" width="{max(0.3, width):.1f}" height="{BAR}" fill="{colour}"/>'


def draw(panels: list[tuple[str, dict, float]]) -> str:
    longest = max(period for _, _, period in panels)
    scale = (WIDTH - LEFT - 20) / longest
    panel_height = 34 + len(ROWS) * (BAR + GAP) + 34
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{panel_height * len(panels)}"'
        ' font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, (title, tracks, period) in enumerate(panels):
        top = number * panel_height + 22
        out.append(f'<text x="10" y="{top}" font-weight="bold">{title}: {period:.0f} ms a step</text>')
        for row, (name, words) in enumerate(ROWS):
            y = top + 12 + row * (BAR + GAP)
            busy = sum(end - begin for begin, end in merged(tracks[name], 0)) / period
            out.append(f'<text x="10" y="{y + 14}">{words} {busy * 100:.0f} %</text>')
            out.append(bar(LEFT, y, period * scale, "#eeeeee"))
            for begin, end in merged(tracks[name], 0.3 / scale):
                out.append(bar(LEFT + begin * scale, y, (end - begin) * scale, COLOURS[name]))
        axis = top + 12 + len(ROWS) * (BAR + GAP) + 10
        for ms in range(0, int(longest) + 1, 50):
            x = LEFT + ms * scale
            out.append(f'<text x="{x:.1f}" y="{axis}" fill="#555555" text-anchor="middle">{ms}</text>')
    return "\n".join(out) + "\n</svg>\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--hbm", required=True)
    parser.add_argument("--vmem", default=str(ROOT / "build" / "release" / "bin" / "vmem"))
    parser.add_argument("picture", type=pathlib.Path)
    arguments = parser.parse_args()
    plan = json_of(arguments.vmem, "plan", arguments.trace, "--hbm", arguments.hbm, "--within", "0")
    panels = []
    for title, options in (("By second chance alone", ["--no-look-ahead"]), ("Looking ahead", [])):
        panels.append((title, *step(arguments.vmem, arguments.trace, arguments.hbm, plan, *options)))
    arguments.picture.write_text(draw(panels), encoding="utf-8")


if __name__ == "__main__":
    main()
