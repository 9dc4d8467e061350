"""Caps and budgets, each with its unit and its reason, in one place."""

MIB = 1024**2
GIB = 1024**3

MAX_TEXT_CHARS = 1_000_000
"""Above this a text is refused before it is tokenised (1 MB of Latin text)."""

MAX_TEXTS = 64
"""Texts in one capture request."""

MAX_GENERATED_TOKENS = 32
"""Length of a decoder's own continuation when no target text is given."""

CAPTURE_CACHE_BYTES = 2 * GIB
"""Byte budget of the capture cache (q, k, log-sum-exp, statistics, maps of fallbacks)."""

MODEL_CACHE_BYTES = 6 * GIB
"""Byte budget of loaded models; the least recently used one goes first."""

MAP_TOKENS_INLINE = 2048
"""Longest text whose full map is put into JSON or sent to a chart."""

OVERVIEW_SIZE = 256
"""Rows and columns of the pooled map of a head; shorter texts are kept exactly."""

MIN_FREE_BYTES = 512 * MIB
"""What a forecast leaves free on the host for everything else."""
