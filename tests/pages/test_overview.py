from collections.abc import Callable

from streamlit.testing.v1 import AppTest

from core.errors import InternalError
from core.results import CaptureRequest, ModelRequest
from pages.ui.i18n import Words
from pages.ui.model_card import model_facts, strongest
from tests.fakes import FakeService

OpenApp = Callable[..., AppTest]


def test_overview_names_the_model_and_runs_nothing_again(
    open_app: OpenApp, fake: FakeService
) -> None:
    app = open_app("overview")
    assert app.title[0].value == "Overview"
    assert len(fake.runs) == 1
    assert "no next token" in " ".join(c.value for c in app.caption)


def test_overview_of_a_decoder_lists_next_tokens(open_app: OpenApp, fake: FakeService) -> None:
    app = open_app("overview", model="smollm2-135m")
    table = next(d.value for d in app.dataframe if "Probability" in d.value.columns)
    assert table["Token"].iloc[0] == "next0"
    assert fake.runs[-1].top_tokens == 10


def test_pages_keep_the_view_between_them(open_app: OpenApp, fake: FakeService) -> None:
    app = open_app(model="minilm-en", layer="4", head="7", lang="zh")
    app.switch_page("pages/overview.py").run()
    assert app.title[0].value == "概览"
    app.switch_page("pages/attention.py").run()
    assert app.number_input(key="attention.layer").value == 4
    assert app.number_input(key="attention.head").value == 7
    assert len(fake.runs) == 1


def test_overview_with_empty_text_says_what_to_do(open_app: OpenApp) -> None:
    app = open_app("overview")
    app.text_area(key="sidebar.text").set_value(" ")
    app.button(key="sidebar.run").click().run()
    assert "There is no text yet" in app.info[0].value


def test_overview_error_is_a_sentence(open_app: OpenApp, fake: FakeService) -> None:
    app = open_app("overview")
    fake.failures["bad"] = InternalError("It broke.", "Report it.")
    app.text_area(key="sidebar.text").set_value("bad")
    app.button(key="sidebar.run").click().run()
    assert "It broke" in app.error[0].value
    assert not app.exception


def test_facts_say_that_weights_are_random_and_heads_grouped() -> None:
    result = FakeService().capture(CaptureRequest(ModelRequest("smollm2-135m"), ("a b",)))
    facts = dict(model_facts(result, Words("en")))
    assert "never trained" in facts["Weights"]
    assert facts["Key/value heads"] == "3, shared by groups of 3 heads"
    assert facts["Layers × heads"] == "30 × 9"
    assert facts["Normalisation"].startswith("before")


def test_strongest_finds_the_head_and_none_when_undefined() -> None:
    result = FakeService().capture(CaptureRequest(ModelRequest("minilm-en"), ("a b c",)))
    found = strongest(result.texts[0], "first_token_mass")
    assert found is not None
    layer, head, value = found
    assert value == result.texts[0].metrics["first_token_mass"].max()
    assert value == result.texts[0].metrics["first_token_mass"][layer, head]
    assert strongest(result.texts[0], "uniform_rows") is None
