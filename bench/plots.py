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
HEIGHT_OF_A_BAR = 0.17
"""Inches; between groups there is as much."""

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
    if part["kind"] == "plot":
        axes.set_ylabel(part["y"])
        for label, points in part["series"].items():
            axes.plot(*zip(*points, strict=True), marker="o", label=label)
        axes.set_xlabel(part["x"])
        axes.set_xscale("log" if part["log_x"] else "linear")
        axes.set_yscale("log" if part["log_y"] else "linear")
        if not part["log_y"]:
            axes.set_ylim(bottom=0)
    else:  # they lie, so that their names have room
        figure.set_figheight(1 + HEIGHT_OF_A_BAR * len(part["names"]) * (1 + len(part["series"])))
        width = 0.8 / len(part["series"])
        for at, (label, lengths) in enumerate(part["series"].items()):
            places = [number + width * at for number in range(len(part["names"]))]
            axes.barh(places, lengths, width, label=label)
        middle = width * (len(part["series"]) - 1) / 2
        axes.set_yticks([number + middle for number in range(len(part["names"]))], part["names"])
        axes.set_xlabel(part["y"])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
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
