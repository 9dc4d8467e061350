"""Headscope's core: capture, metrics and the service, in plain Python.

from core import open_service
result = open_service().capture(CaptureRequest(ModelRequest("minilm-en"), ("An apple.",)))
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import CancelledError, HeadscopeError
from core.results import CaptureRequest, MapRequest, ModelRequest, OverviewRequest

if TYPE_CHECKING:
    from core.service import HeadscopeService

__version__ = "0.1.0"

__all__ = [
    "CancelledError",
    "CaptureRequest",
    "HeadscopeError",
    "MapRequest",
    "ModelRequest",
    "OverviewRequest",
    "__version__",
    "open_service",
]


def open_service(model_roots: Sequence[Path] | None = None) -> "HeadscopeService":
    """Returns a service.

    Args:
        model_roots: folders whose models may be opened; None for any folder.
    """
    # Imported here: `--help` and wrong flags need no torch.
    from core.service import HeadscopeService

    return HeadscopeService(None if model_roots is None else tuple(model_roots))
