"""Draws the plots of bench/results as SVG into docs/images.

Run it with the environment that `make bench` makes, `.venv-bench`; the tests don't need it.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, it knows its folder only

from bench import report

SIZE_INCHES = (7.6, 3.8)

mpl.rcParams.update(
    {
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": "sluiceway",  # the same data gives the same file
        "font.family": "sans-serif",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "grid.alpha": 0.3,
        "legend.frameon": False,
    }
)


def draw(part: Mapping[str, Any]) -> Figure:
    """A saved Plot or Bars."""
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    axes = figure.subplots()
    axes.set_title(part["title"])
    axes.set_ylabel(part["y"])
    if part["kind"] == "plot":
        for label, points in part["series"].items():
            axes.plot(*zip(*points, strict=True), marker="o", label=label)
        axes.set_xlabel(part["x"])
        axes.set_xscale("log" if part["log_x"] else "linear")
        axes.set_yscale("log" if part["log_y"] else "linear")
        if not part["log_y"]:
            axes.set_ylim(bottom=0)
    else:
        width = 0.8 / len(part["series"])
        for at, (label, heights) in enumerate(part["series"].items()):
            places = [number + width * at for number in range(len(part["names"]))]
            axes.bar(places, heights, width, label=label)
        middle = width * (len(part["series"]) - 1) / 2
        axes.set_xticks([number + middle for number in range(len(part["names"]))], part["names"])
    if len(part["series"]) > 1:
        axes.legend()
    return figure


def main() -> int:
    """Draws all, and removes what nothing shows any more."""
    report.IMAGES.mkdir(exist_ok=True)
    wanted = report.plots()
    for old in report.IMAGES.glob("*.svg"):
        if old.name not in wanted:
            old.unlink()
    for name, part in wanted.items():
        about = {"Date": None, "Description": report.digest(part)}
        draw(part).savefig(report.IMAGES / name, metadata=about)
    return 0


if __name__ == "__main__":
    report.run(main)
