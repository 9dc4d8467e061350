import json
import struct

import numpy as np
import pytest

from core.results import CaptureRequest, ModelRequest, Progress
from pages.ui import head_grid, token_chips
from pages.ui.charts import png
from pages.ui.i18n import Words
from pages.ui.progress import progress_line
from tests.fakes import FakeService


def attention():
    request = CaptureRequest(ModelRequest("minilm-en"), ("one two three",))
    return FakeService().capture(request).texts[0]


def test_payload_is_header_then_pixels() -> None:
    pixels = head_grid.map_pixels(np.random.default_rng(0).random((2, 3, 4, 5)))
    tips = [["a"]] * 6
    data = head_grid.grid_payload(
        pixels, tips, chosen_layers=[1], chosen_heads=[2], legend=None, label="grid"
    )
    (length,) = struct.unpack("<I", data[:4])
    header = json.loads(data[4 : 4 + length])
    assert (header["layers"], header["heads"], header["rows"], header["columns"]) == (2, 3, 4, 5)
    assert data[4 + length :] == pixels.tobytes()


def test_map_pixels_scale_each_head_to_its_own_maximum() -> None:
    maps = np.zeros((1, 2, 2, 2), dtype=np.float16)
    maps[0, 0] = [[0.1, 0.05], [0, 0]]
    pixels = head_grid.map_pixels(maps)
    assert pixels[0, 0, 0].tolist() == [254, 127]
    assert pixels[0, 1].max() == 0


def test_metric_pixels_mark_what_is_undefined() -> None:
    pixels, low, high = head_grid.metric_pixels(np.array([[0.0, 0.5], [1.0, np.nan]]))
    assert (low, high) == (0, 1)
    assert pixels.reshape(-1).tolist() == [0, 127, 254, head_grid.UNDEFINED]


def test_metric_pixels_of_other_ranges_span_them() -> None:
    pixels, low, high = head_grid.metric_pixels(np.array([[2.0, 4.0]]))
    assert (low, high) == (2, 4)
    assert pixels.reshape(-1).tolist() == [0, 254]


@pytest.mark.parametrize(("n_layers", "n_heads"), [(12, 12), (24, 16), (32, 32), (30, 9)])
def test_thumbnails_of_all_heads_stay_small(n_layers: int, n_heads: int) -> None:
    side = head_grid.thumbnail_size(n_layers, n_heads)
    assert n_layers * n_heads * side**2 <= 300_000
    assert side >= 12


def test_tooltips_name_layer_head_pattern_and_figures() -> None:
    lines = head_grid.tooltips(attention(), ["normalized_entropy", "uniform_rows"], Words("en"))
    assert len(lines) == 72
    assert lines[13][0] == "Layer 1, head 1"
    assert lines[13][1] == "mixed"
    assert lines[13][2].startswith("Entropy / ln(visible): 0.")
    assert lines[13][3] == "Uniform rows: not defined"


def test_chip_data_carries_one_line_and_not_the_map() -> None:
    tokens = attention().key_tokens
    line = token_chips.ChipLine(
        "key",
        "x looks at",
        "keys",
        tokens,
        range(len(tokens)),
        np.array([0.5, 0.25, 0.25, 0, 0]),
        1,
    )
    data = token_chips.chip_data([line], dark=False)["lines"][0]["tokens"]
    assert [t["strength"] for t in data] == [1, 0.5, 0.5, 0, 0]
    assert [t["figure"] for t in data] == ["50 %", "25 %", "25 %", "", ""]
    assert token_chips.parse_choice(["key", 3]) == ("key", 3)
    assert token_chips.parse_choice(["other", 3]) is None


def test_png_has_its_size() -> None:
    data = png(np.zeros((2, 3, 3), dtype=np.uint8))
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24]) == (3, 2)


def test_progress_line_says_layer_and_time_left() -> None:
    words = Words("en")
    assert progress_line(Progress("capture", 6, 12), 6.0, words) == (
        "Capturing attention · layer 7 of 12 · about 6.0 s left"
    )
    assert progress_line(Progress("wait", place=2), 1.0, words).endswith("place 2 in the queue")
    assert progress_line(Progress("load"), 1.0, words) == "Loading the model"
