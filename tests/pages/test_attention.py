import json
import struct
from collections.abc import Callable

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from core.errors import InternalError
from tests.fakes import FakeService

OpenApp = Callable[..., AppTest]


def figure(app: AppTest, at: int = 0) -> dict:
    return json.loads(app.get("plotly_chart")[at].proto.spec)


def type_text(app: AppTest, text: str) -> AppTest:
    app.text_area(key="sidebar.text").set_value(text)
    app.button(key="sidebar.run").click()
    return app.run()


def texts(app: AppTest) -> str:
    parts = [*app.caption, *app.markdown, *app.error, *app.info, *app.title]
    return "\n".join(str(p.value) for p in parts)


def test_first_screen_shows_the_default_with_no_click(open_app: OpenApp, fake: FakeService) -> None:
    app = open_app()
    assert app.title[0].value == "Attention maps"
    chart = figure(app)
    assert chart["layout"]["title"]["text"].startswith("Layer 0, head 0")
    assert len(set(chart["data"][0]["x"])) == 6
    assert "12 × 12 heads" in texts(app)
    assert "random weights" in texts(app)
    assert len(fake.runs) == 1


def test_link_opens_layer_head_and_language(open_app: OpenApp) -> None:
    app = open_app(model="minilm-en", layer="4", head="7", lang="zh", scale="sqrt")
    assert figure(app)["layout"]["title"]["text"].startswith("第 4 层，第 7 头")
    assert app.selectbox(key="sidebar.model").value == "minilm-en"
    assert app.segmented_control(key="attention.scale.choice").value == "sqrt"


def test_link_beyond_the_model_is_clamped(open_app: OpenApp) -> None:
    app = open_app(model="minilm-en", layer="99", head="99")
    assert figure(app)["layout"]["title"]["text"].startswith("Layer 5, head 11")
    assert app.number_input(key="attention.layer").value == 5


def test_a_choice_goes_into_the_address_and_runs_no_model(
    open_app: OpenApp, fake: FakeService
) -> None:
    app = open_app()
    app.number_input(key="attention.head").set_value(3).run()
    assert app.query_params["head"] == "3"
    assert figure(app)["layout"]["title"]["text"].startswith("Layer 0, head 3")
    app.segmented_control(key="attention.view.choice").set_value("all").run()
    assert figure(app)["layout"]["title"]["text"] == "Mean of all 144 heads"
    # A choice draws the maps again and nothing else, so the tree has lost the sidebar.
    app.run()
    app.segmented_control(key="sidebar.language").set_value("zh").run()
    assert app.title[0].value == "注意力图"
    app.selectbox(key="attention.colour").set_value("max_weight").run()
    assert len(fake.runs) == 1
    assert "text" not in app.query_params


def test_hidden_specials_leave_the_axes(open_app: OpenApp) -> None:
    app = open_app(special="hide")
    labels = figure(app)["data"][0]["x"]
    assert len(labels) == 4
    assert not any("s&gt;" in label for label in labels)


def test_repeated_tokens_keep_their_places(open_app: OpenApp) -> None:
    app = type_text(open_app(), "苹果 苹果 苹果 apple apple apple")
    chart = figure(app)["data"][0]
    assert len(set(chart["x"])) == len(set(chart["y"])) == 8


def test_encoder_decoder_offers_its_kinds(open_app: OpenApp) -> None:
    app = open_app(model="both-ways", kind="cross")
    kind = app.segmented_control(key="attention.kind.choice")
    assert kind.value == "cross"
    chart = figure(app)["data"][0]
    assert len(chart["y"]) == 3
    assert len(chart["x"]) == 6


@pytest.mark.parametrize("text", ["", "   \n "])
def test_empty_text_says_what_to_do_and_keeps_the_view(open_app: OpenApp, text: str) -> None:
    app = type_text(open_app(), text)
    assert "There is no text yet" in app.info[0].value
    assert figure(app)["layout"]["title"]["text"].startswith("Layer 0, head 0")
    app.button(key="error.empty").click().run()
    assert not app.info
    assert app.text_area(key="sidebar.text").value == "我吃了一个苹果"


def test_error_shows_message_and_hint_and_keeps_the_view(
    open_app: OpenApp, fake: FakeService
) -> None:
    app = open_app()
    fake.failures["bad"] = InternalError("It broke at <b>.", "Report it.")
    type_text(app, "bad")
    assert "A fault of Headscope" in app.error[0].value
    assert "It broke at \\<b\\>\\." in app.error[0].value
    assert "Report it" in app.error[0].value
    assert not app.exception
    assert figure(app)["layout"]["title"]["text"].startswith("Layer 0, head 0")
    del fake.failures["bad"]
    app.number_input(key="attention.head").set_value(1).run()
    app.run()
    assert app.error, "a failed run must not start again by itself"
    app.button(key="error.retry").click().run()
    assert not app.error


def test_unknown_model_leads_back_to_the_default(open_app: OpenApp) -> None:
    app = open_app(model="no/such")
    assert "no/such" in app.error[0].value.replace("\\", "")
    assert not app.get("plotly_chart")
    app.button(key="error.default").click().run()
    assert not app.error
    assert app.get("plotly_chart")


def test_text_above_the_limit_offers_to_cut(open_app: OpenApp, fake: FakeService) -> None:
    app = type_text(open_app(), "word " * 5000)
    assert "5002" in app.error[0].value
    assert "4096" in app.error[0].value
    app.button(key="error.cut").click().run()
    assert not app.error
    assert fake.runs[-1].truncate


def test_text_above_the_limit_may_go_on_where_positions_are_rotary(
    open_app: OpenApp, fake: FakeService
) -> None:
    app = type_text(open_app(model="smollm2-135m"), "word " * 5000)
    app.button(key="error.beyond").click().run()
    assert not app.error
    assert fake.runs[-1].beyond
    assert long_map(app)[0]["keys"] == 5002
    app = type_text(open_app(), "word " * 5000)
    assert [b.key for b in app.button if b.key == "error.beyond"] == []


def test_words_stand_on_the_axes(open_app: OpenApp) -> None:
    app = type_text(open_app(unit="words"), "I ate two apples, 苹果公司发布了新手机.")
    names = ["I", "ate", "two", "apples,", "苹果公司", "发布了", "新", "手机."]
    assert app.segmented_control(key="attention.unit.choice").value == "words"
    shown = [label.split(" ", 1)[1] for label in figure(app)["data"][0]["x"]]
    assert "苹果公司" in shown
    assert "".join(shown[1:-1]) == "".join(names)
    assert "sum over its tokens" in texts(app)
    assert not app.exception


def test_chosen_spans_stand_on_the_axes(open_app: OpenApp) -> None:
    app = type_text(open_app(unit="spans"), "a red apple and a red car")
    assert len(figure(app)["data"][0]["x"]) == 9
    app.multiselect(key="attention.phrases").set_value(["a red apple", "red car"]).run()
    shown = [label.split(" ", 1)[1] for label in figure(app)["data"][0]["x"]]
    assert shown[1:-1] == ["a red apple", "and", "a", "red car"]
    assert not app.exception


def test_a_long_text_of_words_is_pooled_over_words(open_app: OpenApp) -> None:
    app = type_text(open_app(unit="words"), "苹果公司发布了 " * 300)
    header, _ = long_map(app)
    assert header["queries"] == 2 + 3 * 300
    assert not app.exception


def test_rollout_takes_the_place_of_the_map(open_app: OpenApp) -> None:
    app = open_app(weighting="rollout", layer="3")
    chart = figure(app)
    assert chart["layout"]["title"]["text"] == "Rollout through layer 3, mean of its heads"
    assert "Abnar and Zuidema" in texts(app)
    assert "Agreement with the raw weights" in texts(app)
    assert not app.exception


def test_a_reading_that_is_not_to_be_had_is_said_and_left_by_one_click(open_app: OpenApp) -> None:
    app = open_app(weighting="norm")
    assert "Look at the raw weights" in texts(app)
    assert not app.exception
    app.segmented_control(key="attention.weighting.choice").set_value("raw").run()
    assert not app.error
    assert figure(app)["layout"]["title"]["text"].startswith("Layer 0, head 0")


def long_map(app: AppTest) -> tuple[dict, np.ndarray]:
    """Returns header and numbers of the canvas."""
    data = next(e for e in app.get("bidi_component") if "map" in e.proto.component_name).proto.bytes
    (length,) = struct.unpack("<I", data[:4])
    return json.loads(data[4 : 4 + length]), np.frombuffer(data[4 + length :], "<f4")


def test_a_long_text_is_pooled_and_a_small_window_of_it_exact(open_app: OpenApp) -> None:
    app = type_text(open_app(), "word " * 900)
    assert not app.get("plotly_chart")
    header, numbers = long_map(app)
    assert (header["queries"], header["cells"], header["part"]) == (902, [256, 256], None)
    assert header["window"] == [0, 902, 0, 902]
    assert len(numbers) == 256 * 256
    app.query_params["window"] = "300.420.10.90"
    header, numbers = long_map(app.run())
    assert header["window"] == header["part"] == [300, 420, 10, 90]
    assert header["queryLabels"][0].startswith("300 ")
    assert len(numbers) == 256 * 256 + 120 * 80
    assert not app.exception


@pytest.mark.parametrize(
    ("asked", "window"),
    [
        ("", [0, 902, 0, 902]),
        ("1.2.3", [0, 902, 0, 902]),
        ("a.b.c.d", [0, 902, 0, 902]),
        ("-5.10.0.10", [0, 902, 0, 902]),
        ("9999.99999.20.10", [901, 902, 20, 21]),
        ("0.99999999999999999999.0.1", [0, 902, 0, 902]),
        ("\u0661.\u0662.\u0663.\u0664", [0, 902, 0, 902]),
    ],
)
def test_a_window_of_the_address_is_clamped(
    open_app: OpenApp, asked: str, window: list[int]
) -> None:
    app = type_text(open_app(window=asked), "word " * 900)
    assert long_map(app)[0]["window"] == window
    assert not app.exception


def test_mean_map_has_no_figures_of_one_head(open_app: OpenApp) -> None:
    assert "figures of single heads" in texts(open_app(view="layers"))


def test_plain_grid_shows_a_picture_a_head(open_app: OpenApp) -> None:
    app = open_app()
    app.toggle(key="attention.plain").set_value(True).run()
    table = app.dataframe[0].value
    assert table.shape == (12, 12)
    assert table.iloc[0, 0].startswith("data:image/png;base64,")
