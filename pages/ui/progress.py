"""What a long run is doing, how far it is, how long it will take, and Cancel.

Streamlit stops a run at its next call once the person has clicked something. So the callback
draws often, and that alone makes every run stoppable. A cached answer never calls it, and the
first moments draw nothing, so that quick work does not flash.
"""

import time
from collections.abc import Callable

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from core.results import Progress
from pages.ui import quantities
from pages.ui.i18n import Words

QUIET_S = 0.3
REDRAW_S = 0.1
LEFT_AFTER_S = 1.5
"""Before this an estimate of the time left would jump about."""


def progress_line(step: Progress, elapsed_s: float, words: Words) -> str:
    """Returns the sentence of one step: stage, how far, time left."""
    if step.stage == "wait":
        return words("progress.wait", place=max(step.place, 1))
    parts = [words(f"progress.{step.stage}")]
    if step.total > 0:
        if step.stage == "capture":
            layer = min(int(step.done) + 1, int(step.total))
            parts.append(words("progress.layer", done=layer, total=int(step.total)))
        else:
            parts.append(words("progress.share", share=round(100 * fraction(step))))
        if 0 < step.done < step.total and elapsed_s > LEFT_AFTER_S:
            left = elapsed_s * (step.total - step.done) / step.done
            parts.append(words("progress.left", time=quantities.duration(left)))
    return " · ".join(parts)


def fraction(step: Progress) -> float:
    """Returns how far a step is, 0..1."""
    return min(max(step.done / step.total, 0.0), 1.0) if step.total > 0 else 0.0


class ProgressView:
    """Draws progress into a place of the page; give `report` to the service.

    Args:
        place: an empty of the page.
        on_cancel: remembers that the person cancelled, before the next run starts.
    """

    def __init__(
        self, place: DeltaGenerator, words: Words, on_cancel: Callable[[], None], key: str
    ) -> None:
        self._place = place
        self._words = words
        self._on_cancel = on_cancel
        self._key = key
        self._bar: DeltaGenerator | None = None
        self._stage = ""
        self._started_s = self._stage_s = time.monotonic()
        self._drawn_s = 0.0

    def report(self, step: Progress) -> None:
        """Draws one step; raises Streamlit's own stop when the person has moved on."""
        now = time.monotonic()
        if step.stage != self._stage:
            self._stage, self._stage_s = step.stage, now
        if now - self._started_s < QUIET_S or now - self._drawn_s < REDRAW_S:
            return
        self._drawn_s = now
        line = progress_line(step, now - self._stage_s, self._words)
        if self._bar is None:
            row = self._place.container(
                horizontal=True, vertical_alignment="center", key=f"{self._key}.row"
            )
            self._bar = row.progress(fraction(step), text=line)
            row.button(
                self._words("progress.cancel"), key=f"{self._key}.cancel", on_click=self._on_cancel
            )
        else:
            self._bar.progress(fraction(step), text=line)

    def clear(self) -> None:
        """Takes the drawing away."""
        if self._bar is not None:
            self._place.empty()


def cancelled(request: object) -> None:
    """Remembers in the session that this request was cancelled and must not start by itself."""
    st.session_state["headscope.cancelled"] = request
