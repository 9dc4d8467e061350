"""Caps and budgets, each with its unit and its reason, in one place."""

MIB = 1024**2
GIB = 1024**3

MAX_TEXT_CHARS = 1_000_000
"""Above this a text is refused before it is tokenised (1 MB of Latin text)."""

MAX_PHRASES = 64
"""Spans that are joined on the axes of a map."""

MAX_TEXTS = 64
"""Texts in one capture request."""

MAX_GENERATED_TOKENS = 32
"""Length of a decoder's own continuation when no target text is given."""

MAX_BATCH_TOKENS = 2048
"""Tokens of one forward pass over several texts, padding included; a longer text goes alone."""

MAX_AUDIO_S = 30
"""Longest sound in seconds: what Whisper hears at once."""

MAX_AUDIO_BYTES = 64 * MIB
"""Largest sound file; 30 s of 32-bit stereo at 192 kHz are 46 MB."""

MIN_AUDIO_RATE, MAX_AUDIO_RATE = 1_000, 192_000
"""Samples a second of a sound file."""

CAPTURE_CACHE_BYTES = 2 * GIB
"""Byte budget of the capture cache (q, k, log-sum-exp, statistics, maps of fallbacks)."""

PICTURE_CACHE_BYTES = 64 * MIB
"""Byte budget of pooled maps: those of means over many heads take seconds to make."""

SPILL_BYTES = 8 * GIB
"""Byte budget on disk of captures that no longer fit into the capture cache."""

MODEL_CACHE_BYTES = 6 * GIB
"""Byte budget of loaded models; the least recently used one goes first."""

MAP_TOKENS_INLINE = 2048
"""Longest text whose full map is put into JSON or sent to a chart."""

ROLLOUT_TOKENS = 1024
"""Longest text that is rolled out: matrices of N x N are multiplied layer by layer."""

OVERVIEW_SIZE = 256
"""Rows and columns of the pooled map of a head; shorter texts are kept exactly."""

MIN_FREE_BYTES = 512 * MIB
"""What a forecast leaves free on the host for everything else."""
