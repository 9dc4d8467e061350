"""Every error a person may meet, each with what was wrong and what to do next.

HeadscopeError
 |- BadInputError           bad-input       empty text, impossible sizes, a wrong flag
 |- UnknownModelError       unknown-model   no such id or folder
 |- NoNetworkError          no-network      a hub id that cannot be looked up
 |- GatedModelError         gated           the hub wants a login or an accepted licence
 |- UnsafeFilesError        unsafe-files    pickle only, or a path that leaves its folder
 |- RemoteCodeError         remote-code     the checkpoint wants its own Python to run
 |- CorruptFileError        corrupt-file    a file that cannot be what it says it is
 |- MissingFileError        missing-file    a shard, config or tokenizer that is not there
 |- AdapterOnlyError        adapter-only    a fine-tuning adapter without its base model
 |- UnsupportedModelError   unsupported     a family or option that cannot be captured
 |- TooLargeError           too-large       a text above the limit, a cap exceeded
 |- OutOfMemoryError        out-of-memory   forecast or met
 '- InternalError           internal        a fault of ours

`CancelledError` stands apart: it is an answer to the person, not an error.
"""

from typing import ClassVar


class HeadscopeError(Exception):
    """Base of all errors that pages and the command line show to people.

    Attributes:
        kind: stable word for programs (see the tree above).
        message: what was wrong, with the value given and the limit or the choices.
        hint: what to do next; may be empty.
    """

    kind: ClassVar[str] = "internal"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()

    def to_dict(self) -> dict[str, str]:
        """Returns the `error` object of the command line's JSON."""
        return {"kind": self.kind, "message": self.message, "hint": self.hint}


class BadInputError(HeadscopeError):
    kind = "bad-input"


class UnknownModelError(HeadscopeError):
    kind = "unknown-model"


class NoNetworkError(HeadscopeError):
    kind = "no-network"


class GatedModelError(HeadscopeError):
    kind = "gated"


class UnsafeFilesError(HeadscopeError):
    kind = "unsafe-files"


class RemoteCodeError(HeadscopeError):
    kind = "remote-code"


class CorruptFileError(HeadscopeError):
    kind = "corrupt-file"


class MissingFileError(HeadscopeError):
    kind = "missing-file"


class AdapterOnlyError(HeadscopeError):
    kind = "adapter-only"


class UnsupportedModelError(HeadscopeError):
    kind = "unsupported"


class TooLargeError(HeadscopeError):
    kind = "too-large"


class OutOfMemoryError(HeadscopeError):
    kind = "out-of-memory"


class InternalError(HeadscopeError):
    kind = "internal"


class CancelledError(Exception):
    """Raised inside a capture when the person who asked for it cancelled."""
