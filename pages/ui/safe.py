"""Text that comes from anywhere, made fit for a script or a drawing."""

import json
import re
from typing import Any

# What XML 1.0 has no way to write.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def safe_json(value: Any) -> str:
    """Returns JSON that can stand in a script element: no `<` is left to end it."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def printable(text: str) -> str:
    """Returns text without the characters that no XML file may hold."""
    return _UNPRINTABLE.sub("\ufffd", text)
