"""What the server answers at the address of a page, before any session exists."""

import asyncio
from pathlib import Path

import streamlit as st
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from pages.ui.frame import ADDRESSES

# Opened below a page's address, Streamlit's front end first looks for its server under that
# address and logs two errors before it tries the root (1.67). Told where the server is, it does
# not look. Relative to the page, so that it holds behind a proxy that adds a prefix.
_SERVER = b'<script>window.__streamlit = {BACKEND_BASE_URL: new URL(".", location).href}</script>'


async def _page(request: Request) -> HTMLResponse:
    index = Path(st.__file__).parent / "static" / "index.html"
    content = await asyncio.to_thread(index.read_bytes)
    content = content.replace(b"<head>", b"<head>" + _SERVER, 1)
    return HTMLResponse(content, headers={"Cache-Control": "no-cache"})


def page_routes() -> list[Route]:
    """Returns a route for every page that has an address of its own."""
    prefix = st.get_option("server.baseUrlPath").strip("/")
    root = f"/{prefix}" if prefix else ""
    return [Route(f"{root}/{address}", _page) for address in ADDRESSES]
