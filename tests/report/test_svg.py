"""Charts as static SVG: places, ranges, escaping, and what is not drawn."""

from __future__ import annotations

import itertools
import math
import re
import xml.etree.ElementTree as ET

import pytest

from isonomy.report.svg import Axis, Bars, Chart, Line, Points, Region, Rule, Slider, nice_ticks


def parsed(chart: Chart) -> ET.Element:
    return ET.fromstring(chart.html("label"))


def places(chart: Chart) -> list[tuple[float, float]]:
    """The places of the marks, in per cent from the left and from the top."""
    return [
        (float(at.attrib["x"].rstrip("%")), float(at.attrib["y"].rstrip("%")))
        for at in parsed(chart).iter("svg")
        if at.find("path") is not None and "x" in at.attrib
    ]


def test_a_point_is_where_its_numbers_say():
    chart = Chart(Axis(low=0, high=10), Axis(low=0, high=4))
    chart.add(Points([2.5, 10], [1, 4]))
    assert places(chart) == [(25.0, 75.0), (100.0, 0.0)]


def test_missing_numbers_are_not_drawn_and_interrupt_a_line():
    chart = Chart()
    chart.add(Points([1, None, 3], [1, 2, math.nan]))
    assert len(places(chart)) == 1
    chart = Chart(Axis(low=0, high=4), Axis(low=0, high=4))
    chart.add(Line([0, 1, 2, 3, 4], [0, 1, None, 3, 4]))
    (path,) = list(parsed(chart).iter("path"))
    assert path.attrib["d"].count("M") == 2


def test_errors_are_lines_of_their_length():
    chart = Chart(Axis(low=0, high=10), Axis(low=0, high=10))
    chart.add(Points([5], [5], y_error=[2]))
    (bar,) = [at for at in parsed(chart).iter("line") if at.attrib["class"].startswith("mark")]
    assert (bar.attrib["y1"], bar.attrib["y2"]) == ("70.0%", "30.0%")


@pytest.mark.parametrize("value", [0.0, 0.37, 1.0])
def test_a_single_rate_has_an_axis_of_rates(value: float):
    chart = Chart(y=Axis(rate=True))
    chart.add(Points([1], [value]))
    ticks = [float(t.text or "") for t in parsed(chart).iter("text") if t.attrib["x"] == "-8"]
    assert len(ticks) > 1
    assert min(ticks) >= 0
    assert max(ticks) <= 1


def test_text_is_escaped_everywhere():
    evil = '"><script>alert(1)</script>'
    chart = Chart(Axis(evil, evil, names=[evil, "b"]), Axis(evil))
    chart.add(Points([0], [1], name=evil, tips=[evil]))
    chart.add(Region(y=(0, 1), name=evil))
    chart.add(Rule(y=0.5, text=evil))
    chart.slider = Slider(evil, [(evil, 0, 1)])
    assert "<script" not in chart.html(evil)
    assert parsed(chart) is not None


def test_a_region_is_clipped_to_the_area():
    chart = Chart(Axis(low=0, high=1), Axis(low=0, high=1))
    chart.add(Region(x=(0.25, math.inf), y=(-math.inf, 0.5)))
    (rect,) = [at for at in parsed(chart).iter("rect") if at.attrib.get("class") == "region"]
    assert [rect.attrib[k] for k in ("x", "y", "width", "height")] == ["25.0%", "50.0%", "75.0%",
                                                                       "50.0%"]  # fmt: skip


def test_bars_stack_and_many_names_are_thinned():
    chart = Chart(Axis(names=[f"client {k}" for k in range(100)]), Axis(low=0, high=2))
    chart.add(Bars(range(100), [0] * 100, [1] * 100, series=0, name="a"))
    chart.add(Bars(range(100), [1] * 100, [2] * 100, series=1, name="b"))
    bars = [at for at in parsed(chart).iter("rect") if at.attrib.get("class", "")[:4] == "bar "]
    assert {at.attrib.get("y") for at in bars} == {None, "50.0%", "0.0%"}  # None: the legend
    assert len(re.findall("client ", chart.html())) <= 24


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (-3, 7), (0.93, 0.94), (0, 123456), (1e-7, 3e-7)]
)
def test_ticks_are_within_the_ends_and_evenly_spaced(low: float, high: float):
    found = nice_ticks(low, high)
    assert 2 <= len(found) <= 8
    assert low - 1e-9 <= found[0] <= found[-1] <= high + 1e-9
    steps = {round((b - a) / (high - low), 6) for a, b in itertools.pairwise(found)}
    assert len(steps) == 1
