"""Pages on the fake service."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from pages.ui import session
from tests.fakes import FakeService

ROOT = Path(__file__).parents[2]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeService]:
    service = FakeService()
    monkeypatch.setattr(session, "open_service", lambda roots: service)
    st.cache_resource.clear()
    yield service
    st.cache_resource.clear()


@pytest.fixture
def open_app(fake: FakeService) -> Callable[..., AppTest]:
    """Returns a function that opens the app, with address parameters, and runs it once."""

    def open_with(page: str = "", **params: str) -> AppTest:
        app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
        for name, value in params.items():
            app.query_params[name] = value
        app.run()
        if page:
            app.switch_page(f"pages/{page}.py").run()
        assert not app.exception
        return app

    return open_with
