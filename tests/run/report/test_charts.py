"""Charts hold their points, whatever the numbers and names are."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np

from graph_emb.run.report.charts import MOST_POINTS, bar_chart, class_colour, line_chart, number, scatter, ticks

NASTY = "<script>alert('\"&')</script>"


def marks(svg: str, tag: str) -> list[ET.Element]:
    """Elements of a chart, which must be well-formed XML."""
    return ET.fromstring(f"<div>{svg}</div>").findall(f".//{tag}")


def test_ticks_are_round_and_enclose_the_values() -> None:
    assert ticks(0, 1) == [0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]
    assert ticks(3, 98) == [0, 20, 40, 60, 80, 100]
    assert ticks(-0.5, 0.25)[0] <= -0.5
    for low, high in ((5.0, 5.0), (0.0, 0.0), (-2.0, -2.0), (1e-9, 2e-9), (1e12, 1.0001e12)):
        found = ticks(low, high)
        assert found[0] <= low <= high <= found[-1] + 1e-18
        assert 2 <= len(found) <= 8


def test_ticks_of_epochs_are_whole() -> None:
    """A validation of the epochs 5 and 6 stood over 5.2, 5.4 and 5.6."""
    assert ticks(5, 6, whole=True) == [5, 6]
    assert ticks(3, 3, whole=True) == [2, 3, 4]
    assert ticks(1, 11, whole=True) == [0, 2, 4, 6, 8, 10, 12]
    assert all(tick == round(tick) for high in range(2, 200) for tick in ticks(1, high, whole=True))
    texts = [mark.text for mark in marks(line_chart({"": [(5, 0.1), (6, 0.2)]}, "epoch", "loss"), "text")]
    assert texts[-3:] == ["5", "6", "epoch"]


def test_numbers_beside_an_axis_have_room() -> None:
    """1,000,000 lost its first digits at the edge of the chart."""
    svg = line_chart({"": [(0.5, 0.0), (2.5e6, 12e6)]}, "seconds", "tokens per second")
    texts = [mark.text or "" for mark in marks(svg, "text")]
    assert "10M" in texts
    assert "2.5M" in texts
    assert max(map(len, texts[:-1])) <= 7


def test_a_line_goes_from_left_to_right_and_up_is_more() -> None:
    svg = line_chart({"a": [(1, 0.0), (2, 1.0)], "b": [(1, 0.5)]}, "epoch", "loss")
    left, right, _ = marks(svg, "circle")
    assert float(left.get("cx", "")) < float(right.get("cx", ""))
    assert float(left.get("cy", "")) > float(right.get("cy", ""))
    assert right.get("data-tip") == "a: 1 at epoch 2"
    assert [key.text or key[0].tail for key in marks(svg, "span")] == ["a", "b"]
    texts = [mark.text for mark in marks(line_chart({"": [(0, 5.0), (1, 6.0)]}, "x", "y", from_zero=True), "text")]
    assert "0" in texts


def test_long_lines_are_thinned_and_keep_their_ends() -> None:
    svg = line_chart({"": [(x, x % 7) for x in range(10_000)]}, "epoch", "loss")
    tips = [mark.get("data-tip", "") for mark in marks(svg, "circle")]
    assert len(tips) == MOST_POINTS
    assert tips[0].endswith("epoch 0")
    assert tips[-1].endswith("epoch 9,999")


def test_names_cannot_break_out_of_a_chart() -> None:
    points = np.array([[0.0, 0.0], [1.0, 1.0]])
    svgs = [
        line_chart({NASTY: [(0, 1.0)], "b": [(0, 1.0)]}, NASTY, NASTY),
        bar_chart([(NASTY, 0.5, NASTY)]),
        scatter(points, [NASTY, "b"], np.array([0, -1]), [NASTY]),
    ]
    for svg in svgs:
        assert not marks(svg, "script")
        assert "<script" not in svg


def test_a_map_shows_every_point_with_its_class() -> None:
    points = np.array([[0.0, 0.0], [1.0, 2.0], [0.5, 1.0]])
    first, second, third = marks(scatter(points, ["a", "b", "c"], np.array([0, 1, -1]), ["x", "y"]), "circle")
    assert float(first.get("cy", "")) > float(second.get("cy", ""))  # up is more
    assert [mark.get("data-tip") for mark in (first, second, third)] == ["a (x)", "b (y)", "c"]
    assert second.get("fill") == class_colour(1)
    assert third.get("fill") == class_colour(-1) == class_colour(99)
    assert len(marks(scatter(np.zeros((3, 2)), ["a", "b", "c"], np.full(3, -1), []), "circle")) == 3


def test_numbers_are_for_people() -> None:
    assert [number(value) for value in (0, 12, 1234567, 0.12345, 3e-5, 1234.56)] == [
        *("0", "12", "1,234,567", "0.1235"),
        *("3e-05", "1,234.6"),
    ]
