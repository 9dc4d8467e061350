"""The app on the fake service, for browser tests that are about the pages and not a model."""

import os
import runpy
from pathlib import Path

import streamlit as st
from streamlit import runtime

from pages.ui import session
from pages.ui.addresses import page_routes
from tests.fakes import FakeService

ROOT = Path(__file__).parents[2]

if runtime.exists():
    session.open_service = lambda roots: FakeService(float(os.environ.get("FAKE_STEP_S", "0")))
    runpy.run_path(str(ROOT / "app.py"), run_name="__main__")
else:
    app = st.App(__file__, routes=page_routes())
