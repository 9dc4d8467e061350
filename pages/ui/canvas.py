"""What the canvases share: one value of bytes to the browser, and a script put together."""

import json
import struct
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def script(name: str) -> str:
    """Returns a component's JavaScript with what all canvases use in front of it."""
    return "\n".join((FOLDER / n).read_text(encoding="utf-8") for n in ("canvas.js", name))


def style(name: str) -> str:
    """Returns a component's CSS."""
    return (FOLDER / name).read_text(encoding="utf-8")


def pack(header: dict[str, Any], body: bytes) -> bytes:
    """Returns header and numbers as the one value that a component can read.

    A dict with bytes in it would arrive as text (streamlit 1.67): four bytes with the length of the
    header, the header as JSON, then the numbers.
    """
    text = json.dumps(header, ensure_ascii=True, allow_nan=False).encode("ascii")
    return struct.pack("<I", len(text)) + text + body


def whole_numbers(value: object, count: int) -> list[int] | None:
    """Returns the `count` indices the browser sent, or None when it is anything else."""
    if not isinstance(value, list | tuple) or len(value) != count:
        return None
    found = [int(v) for v in value if isinstance(v, int | float) and 0 <= v == v // 1]
    return found if len(found) == count else None
