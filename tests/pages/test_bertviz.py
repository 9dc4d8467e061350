import json
import re

import numpy as np
import pytest

from pages.ui.bertviz_view import (
    Maps,
    View,
    data_address,
    most_tokens,
    view_height,
    view_html,
)
from pages.ui.safe import safe_json


def maps(n_tokens: int = 3) -> Maps:
    weights = np.full((2, 2, n_tokens, n_tokens), 0.5, np.float32)
    weights[0, 0, 0, 0] = np.nan
    labels = ["</script><b>", "&lt;", "a label that is much too long"][:n_tokens]
    return Maps(weights, [4, 7], [0, 3], 12, labels, labels)


@pytest.mark.parametrize(
    ("view", "n_layers", "n_heads", "most"),
    [("head", 12, 12, 64), ("head", 1, 1, 128), ("model", 12, 12, 32), ("model", 1, 1, 64)],
)
def test_more_heads_leave_room_for_fewer_tokens(
    view: View, n_layers: int, n_heads: int, most: int
) -> None:
    assert most_tokens(view, n_layers, n_heads) == most


def test_json_cannot_end_its_element() -> None:
    text = safe_json({"token": "</script><!-- &amp;"})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"token": "</script><!-- &amp;"}


@pytest.mark.parametrize("view", ["head", "model"])
def test_a_page_asks_nobody_and_holds_tokens_only_as_data(view: View) -> None:
    html = view_html(view, maps(), layer=4, layer_word="Layer <b>", dark=True)
    assert not re.search(r"<(script|link|img|iframe)[^>]* (src|href)=", html)
    assert "default-src 'none'" in html
    assert "</script><b>" not in html
    assert "Layer <b>" not in html
    data = json.loads(re.search(r'id="data">(.*?)</script>', html)[1])
    assert data["attention"][0]["left_text"] == ["</script><b>", "&lt;", "a label that…"]
    assert data["shape"] == [2, 2, 3, 3]
    assert data["include_layers"] == [4, 7]
    # The data stand in one place: BertViz's own way writes them twice.
    assert html.count(data["bytes"]) == 1
    assert data_address(html).startswith("data:text/html;charset=utf-8;base64,")
    assert view_height(view, maps()) > 60
