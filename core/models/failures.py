"""Turns what torch and transformers raise into errors for people."""

import contextlib
import gc
from collections.abc import Iterator

import torch

from core.errors import (
    CorruptFileError,
    HeadscopeError,
    InternalError,
    OutOfMemoryError,
    UnsupportedModelError,
)


def explain(error: Exception, name: str) -> HeadscopeError:
    """Returns the error for people behind what a running model raised."""
    if isinstance(error, HeadscopeError):
        return error
    if is_out_of_memory(error):
        release_memory()
        return out_of_memory(name, "ran")
    return InternalError(
        f"'{name}' failed while it ran: {type(error).__name__}: {first_line(error)}",
        "Try another text or model; the log has the details.",
    )


@contextlib.contextmanager
def loading_errors(name: str, family: str) -> Iterator[None]:
    """Turns what loading raises into errors for people."""
    try:
        yield
    except HeadscopeError:
        raise
    except MemoryError as error:
        release_memory()
        raise out_of_memory(name, "was loaded") from error
    except RuntimeError as error:
        if is_out_of_memory(error):
            release_memory()
            raise out_of_memory(name, "was loaded") from error
        raise CorruptFileError(
            f"The weights cannot be loaded: {first_line(error)}", "Save the model again."
        ) from error
    except ImportError as error:
        raise UnsupportedModelError(
            f"'{name}' needs a package that is not here: {first_line(error)}",
            "Install it, or use the model's version in 16 or 32 bits.",
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, NotImplementedError) as error:
        raise UnsupportedModelError(
            f"'{name}' ({family}) cannot be loaded: {first_line(error)}",
            "Choose another model, or save it with a newer transformers.",
        ) from error
    except OSError as error:
        raise CorruptFileError(
            f"The files of '{name}' cannot be read: {first_line(error)}", "Save the model again."
        ) from error


def is_out_of_memory(error: Exception) -> bool:
    """Tells whether an error means that the memory of the machine or the GPU ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    # The CPU's allocator and MPS raise plain RuntimeErrors.
    text = str(error)
    return isinstance(error, RuntimeError) and (
        "can't allocate memory" in text or "out of memory" in text
    )


def out_of_memory(name: str, moment: str) -> OutOfMemoryError:
    """Returns the error for memory that ran out while the model did what `moment` says."""
    return OutOfMemoryError(
        f"The memory ran out while '{name}' {moment}.",
        "Choose 16 bits, another device, a smaller model or a shorter text, or close what uses "
        "the memory.",
    )


def release_memory() -> None:
    """Gives back what a failed attempt still holds."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def first_line(error: Exception | str) -> str:
    """Returns the first telling line of an error, at most 300 characters.

    Headings ("Class validation error for ...:") tell nothing; what follows them does.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = next((line for line in lines if not line.endswith(":")), "".join(lines[:1]))
    return telling.removeprefix("ValueError: ")[:300] or type(error).__name__
