import json
import math
import struct

import numpy as np
import pytest

from pages.ui import canvas
from pages.ui.map_canvas import Part, map_payload


@pytest.mark.parametrize(
    "value",
    [None, "4,7", [1], [1, -1], [1.5, 2], {"layer": 1}, [1, "2"], [math.inf, 1], [1, math.nan]],
)
def test_only_whole_numbers_of_the_right_count_come_from_the_browser(value: object) -> None:
    assert canvas.whole_numbers(value, 2) is None


def test_whole_numbers_may_come_as_floats() -> None:
    assert canvas.whole_numbers([4, 7.0], 2) == [4, 7]


def test_a_map_is_sent_as_its_means_then_its_window() -> None:
    pooled = np.arange(6, dtype=np.float32).reshape(2, 3)
    part = Part((10, 12, 5, 6), np.array([[0.25], [np.nan]], np.float32), ["10 a", "11 b"], ["5 c"])
    data = map_payload(
        pooled,
        (20, 30),
        part.window,
        part,
        {"exact": "exact"},
        scale="sqrt",
        label="a map",
        chosen=None,
        dark=True,
    )
    (length,) = struct.unpack("<I", data[:4])
    header = json.loads(data[4 : 4 + length])
    assert (header["queries"], header["keys"], header["cells"]) == (20, 30, [2, 3])
    assert header["window"] == header["part"] == [10, 12, 5, 6]
    assert header["queryLabels"] == ["10 a", "11 b"]
    numbers = np.frombuffer(data[4 + length :], "<f4")
    assert numbers[:6].tolist() == [0, 1, 2, 3, 4, 5]
    assert numbers[6] == 0.25
    assert np.isnan(numbers[7])
