"""The command line: the service's operations as verbs, for people and for other programs.

With `--json` standard output holds one JSON object and nothing else, whatever libraries print;
logs and progress go to standard error. Exit code 0: answered; 1: a finding at "fail" (verbs that
judge); 2: nothing could be done, and the object is `{"error": {kind, message, hint}}`.
"""

import argparse
import contextlib
import dataclasses
import io
import json
import logging
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, cast, get_args

import numpy as np

from core.errors import BadInputError, CancelledError, HeadscopeError, InternalError
from core.limits import MAP_TOKENS_INLINE
from core.results import (
    AttentionResult,
    CaptureRequest,
    CaptureResult,
    Device,
    Kind,
    MapRequest,
    MapResult,
    ModelInfo,
    ModelRequest,
    Progress,
    ProgressCallback,
    to_json,
)

if TYPE_CHECKING:
    from core.service import HeadscopeService

logger = logging.getLogger(__name__)

EXIT_ANSWERED = 0
EXIT_NOTHING_DONE = 2
EXIT_INTERRUPTED = 128 + signal.SIGINT
DTYPES = ("fp32", "fp16", "bf16")
ROWS_SHOWN = 64
"""Rows of a map that are printed for people; programs get all of them."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a verb has to say: an object for programs, and lines for people."""

    json: dict[str, Any]
    lines: Sequence[str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb and returns the exit code.

    Args:
        arguments: what follows the program's name; None for those of this process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in given
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper):
        # A terminal that cannot show a token must not end the program.
        out.reconfigure(errors="backslashreplace")
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    try:
        # Libraries print what they like; standard output is for the answer.
        with contextlib.redirect_stdout(sys.stderr):
            options = _read_arguments(given, out)
            answer: Answer = options.verb(options)
    except SystemExit as stop:  # argparse after --help
        return int(stop.code or 0)
    except (KeyboardInterrupt, CancelledError):
        return EXIT_INTERRUPTED
    except HeadscopeError as error:
        return _tell_error(error, as_json, out)
    except Exception:
        logger.exception("Unexpected error")
        fault = InternalError(
            "Something went wrong inside Headscope.",
            "The details stand above in the log; please report them.",
        )
        return _tell_error(fault, as_json, out)
    _write(out, json.dumps(_finite(answer.json), allow_nan=False) if as_json else answer.lines)
    return EXIT_ANSWERED


# --- verbs -----------------------------------------------------------------------------------


def _models(options: argparse.Namespace) -> Answer:
    return _list_models(_connect().models())


def _prepare(options: argparse.Namespace) -> Answer:
    with _progress_line() as progress:
        return _list_models(_connect().prepare(tuple(options.ids), progress=progress))


def _capture(options: argparse.Namespace) -> Answer:
    if not options.text and options.audio is None:
        raise BadInputError("No text was given.", 'Add one: --text "I ate an apple".')
    if (options.layer is None) != (options.head is None):
        present, absent = ("layer", "head") if options.head is None else ("head", "layer")
        raise BadInputError(
            f"--{present} was given without --{absent}.",
            "A map is that of one head in one layer: give both, or neither.",
        )
    out = None if options.out is None else _check_out(Path(options.out))
    request = _capture_request(options)
    service = _connect()
    with _progress_line() as progress:
        result = service.capture(request, progress=progress)
        result = _only_kind(result, options.kind)
        maps: list[MapResult] = []
        if options.layer is not None:
            for text in result.texts:
                _check_map(text, options.layer, options.head, has_out=out is not None)
            maps = [
                service.head_map(
                    MapRequest(
                        request,
                        kind=text.kind,
                        text_index=text.text_index,
                        layer=options.layer,
                        head=options.head,
                    ),
                    progress=progress,
                )
                for text in result.texts
            ]
    if out is not None:
        _save(out, result, maps)
    return Answer(_capture_json(result, maps), _capture_lines(result, maps, out))


# --- reading ---------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are ours and whose help goes where we say."""

    help_to: TextIO | None = None

    def error(self, message: str) -> NoReturn:
        raise BadInputError(f"{message[:1].upper()}{message[1:]}.", f"See {self.prog} --help.")

    def print_help(self, file: Any = None) -> None:
        super().print_help(file or self.help_to)


def _read_arguments(given: Sequence[str], help_to: TextIO) -> argparse.Namespace:
    _Parser.help_to = help_to
    json_flag = _Parser(add_help=False, allow_abbrev=False)
    json_flag.add_argument("--json", action="store_true", help="one JSON object, nothing else")

    running = _Parser(add_help=False, allow_abbrev=False)
    running.add_argument("--dtype", choices=DTYPES, help="precision (default: as fits the model)")
    running.add_argument(
        "--device", choices=get_args(Device), default="auto", help="where to run (default: auto)"
    )
    running.add_argument("--revision", help="branch, tag or commit of a hub model")
    running.add_argument(
        "--truncate", action="store_true", help="cut texts to the model's limit, do not refuse"
    )
    running.add_argument(
        "--beyond",
        action="store_true",
        help="read past the limit where rotary positions allow it, at your own risk",
    )

    parser = _Parser(
        prog="headscope", description="What every attention head does.", allow_abbrev=False
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    models = verbs.add_parser(
        "models", parents=[json_flag], help="list the embedded models", allow_abbrev=False
    )
    models.set_defaults(verb=_models)

    prepare = verbs.add_parser(
        "prepare",
        parents=[json_flag],
        help="fetch and convert the embedded models, so that they open at once",
        allow_abbrev=False,
    )
    prepare.add_argument("ids", nargs="*", metavar="ID", help="which (default: all)")
    prepare.set_defaults(verb=_prepare)

    capture = verbs.add_parser(
        "capture",
        parents=[json_flag, running],
        help="run texts through a model and describe every head",
        allow_abbrev=False,
    )
    capture.add_argument("--model", required=True, help="embedded id, hub id or folder")
    capture.add_argument(
        "--text", action="append", default=[], help="a text; repeat the flag for more"
    )
    capture.add_argument(
        "--target", help="what the decoder of an encoder-decoder reads (default: it generates)"
    )
    capture.add_argument("--audio", metavar="WAV", help="sound file, for models that listen")
    capture.add_argument("--layer", type=int, help="with --head: also the map of that head")
    capture.add_argument("--head", type=int, help="with --layer: also the map of that head")
    capture.add_argument("--kind", choices=get_args(Kind), help="only this kind of attention")
    capture.add_argument("--out", metavar="FILE.npz", help="also write arrays to this file")
    capture.set_defaults(verb=_capture)
    return parser.parse_args(given)


def _capture_request(options: argparse.Namespace) -> CaptureRequest:
    for flag, value in [("--text", t) for t in options.text] + [("--target", options.target)]:
        if value is not None and any("\ud800" <= c <= "\udfff" for c in value):
            raise BadInputError(f"{flag} is not valid UTF-8.", "Check the terminal's encoding.")
    return CaptureRequest(
        model=ModelRequest(
            model=options.model,
            revision=options.revision,
            dtype=options.dtype or "auto",
            device=options.device,
        ),
        texts=tuple(options.text),
        target=options.target,
        audio=options.audio,
        truncate=options.truncate,
        beyond=options.beyond,
        blocks=True,
    )


def _check_out(path: Path) -> Path:
    """Returns the path if a file can be written there; asked before the model runs."""
    if path.suffix != ".npz":
        raise BadInputError(f"--out {path} does not end in .npz.", "Name a file like maps.npz.")
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise BadInputError(
            f"--out {path} cannot be written.", "Name a file in a folder that exists."
        )
    return path


def _only_kind(result: CaptureResult, kind: Kind | None) -> CaptureResult:
    """Returns the result with the entries of one kind, or as it is when none was asked for."""
    if kind is None:
        return result
    texts = tuple(text for text in result.texts if text.kind == kind)
    if not texts:
        kinds = ", ".join(dict.fromkeys(text.kind for text in result.texts))
        raise BadInputError(f"This model has no {kind} attention.", f"It has: {kinds}.")
    return dataclasses.replace(result, texts=texts)


def _check_map(text: AttentionResult, layer: int, head: int, *, has_out: bool) -> None:
    for name, index, count in (("layer", layer, text.n_layers), ("head", head, text.n_heads)):
        if not 0 <= index < count:
            raise BadInputError(
                f"--{name} {index} does not exist in the {text.kind}.",
                f"Choose 0 to {count - 1}.",
            )
    n_tokens = max(len(text.query_tokens), len(text.key_tokens))
    if n_tokens > MAP_TOKENS_INLINE and not has_out:
        raise BadInputError(
            f"The map has {n_tokens} tokens; maps above {MAP_TOKENS_INLINE} are not printed.",
            "Add --out FILE.npz to write it to a file.",
        )


# --- writing ---------------------------------------------------------------------------------


def _list_models(models: Sequence[ModelInfo]) -> Answer:
    rows = [("model", "family", "layers x heads", "parameters", "licence", "ready")]
    rows += [
        (
            info.id,
            info.family,
            f"{info.n_layers} x {info.n_heads}",
            f"{info.parameters / 1e6:.1f} M",
            info.licence,
            "yes" if info.ready else "no",
        )
        for info in models
    ]
    return Answer({"models": [info.to_dict() for info in models]}, _table(rows))


def _capture_json(result: CaptureResult, maps: Sequence[MapResult]) -> dict[str, Any]:
    answer = result.to_dict()
    for entry, found in zip(answer["texts"], maps, strict=bool(maps)):
        if max(found.weights.shape) <= MAP_TOKENS_INLINE:
            entry["map"] = to_json(found.weights)
            if len(answer["texts"]) == 1:
                answer["map"] = entry["map"]
    return answer


def _capture_lines(result: CaptureResult, maps: Sequence[MapResult], out: Path | None) -> list[str]:
    first = result.texts[0]
    lines = [
        f"{result.model.id}: {first.n_layers} layers x {first.n_heads} heads, "
        f"{result.model.dtype} on {result.model.device}, taken by {result.backend}, "
        f"{result.seconds:.2f} s"
    ]
    lines += result.notes
    for index, text in enumerate(result.texts):
        tokens = " ".join(token.text for token in text.query_tokens[:ROWS_SHOWN])
        lines += [
            "",
            f"Text {text.text_index}, {text.kind}, {len(text.query_tokens)} tokens: {tokens}",
        ]
        lines += _layer_table(text)
        if maps and max(maps[index].weights.shape) <= MAP_TOKENS_INLINE:
            lines += ["", "Each token and what it looks at most:"]
            lines += _strongest(text, maps[index])
    if out is not None:
        lines += ["", f"Arrays written to {out}"]
    return lines


def _layer_table(text: AttentionResult) -> list[str]:
    """Returns one line a layer: means over its heads, and its most frequent patterns."""
    columns = {
        "entropy": "normalized_entropy",
        "max weight": "max_weight",
        "first token": "first_token_mass",
        "distance": "mean_distance",
    }
    rows = [("layer", *columns, "patterns")]
    for layer in range(text.n_layers):
        means = [_mean(text.metrics[name][layer]) for name in columns.values()]
        counts = Counter(text.patterns[layer]) if text.patterns else Counter[str]()
        patterns = ", ".join(f"{n} {word}" for word, n in counts.most_common(3))
        rows.append((str(layer), *means, patterns))
    return _table(rows)


def _mean(values: Any) -> str:
    defined = values[~np.isnan(values)]
    return f"{defined.mean():.2f}" if defined.size else "-"


def _strongest(text: AttentionResult, found: MapResult) -> list[str]:
    rows = []
    for row, query in list(zip(found.weights, found.query_index, strict=True))[:ROWS_SHOWN]:
        best = np.argsort(-row, kind="stable")[:3]
        looks = ", ".join(
            f"{text.key_tokens[found.key_index[k]].text} {row[k]:.2f}" for k in best if row[k] > 0
        )
        rows.append((str(query), text.query_tokens[query].text, looks))
    return _table(rows)


def _save(path: Path, result: CaptureResult, maps: Sequence[MapResult]) -> None:
    """Writes arrays, names as in the JSON; several entries have "text0.encoder." in front.

    Raises:
        BadInputError: the file cannot be written.
    """
    arrays: dict[str, Any] = {}
    for index, text in enumerate(result.texts):
        front = "" if len(result.texts) == 1 else f"text{text.text_index}.{text.kind}."
        named: dict[str, Any] = {
            "query_tokens": np.array([t.text for t in text.query_tokens], dtype=np.str_),
            "key_tokens": np.array([t.text for t in text.key_tokens], dtype=np.str_),
            "position_bias": text.position_bias,
            "sink_rate": text.sink_rate,
            **{f"metrics.{name}": values for name, values in text.metrics.items()},
            **{f"pairs.{name}": values for name, values in text.pairs.items()},
            **{f"special_mass.{key}": values for key, values in text.special_mass.items()},
        }
        if maps:
            named["map"] = maps[index].weights
        arrays |= {front + name: values for name, values in named.items()}
    # Beside the target and renamed, so that no half-written file is ever found under its name.
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            part = Path(file.name)
            try:
                np.savez(cast(Any, file), **arrays)
                file.flush()
                part.chmod(0o644)
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
    except OSError as error:
        raise BadInputError(
            f"--out {path} cannot be written ({error.strerror}).", "Name another file."
        ) from error


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = (
        [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    )
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _finite(value: Any) -> Any:
    """Returns the value ready for JSON: null for NaN and infinity.

    Lists of numbers were made by `to_json` and are left alone: a map has millions of them.
    """
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) if isinstance(item, Mapping) else item for item in value]
    return to_json(value)


def _tell_error(error: HeadscopeError, as_json: bool, out: TextIO) -> int:
    if as_json:
        _write(out, json.dumps({"error": error.to_dict()}))
    else:
        _write(sys.stderr, [f"Error: {error.message}", *([error.hint] if error.hint else [])])
    return EXIT_NOTHING_DONE


def _write(stream: TextIO, text: str | Sequence[str]) -> None:
    try:
        stream.write((text if isinstance(text, str) else "\n".join(text)) + "\n")
        stream.flush()
    except BrokenPipeError:
        # The reader (head, less) has seen enough. Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextlib.contextmanager
def _progress_line() -> Iterator[ProgressCallback | None]:
    """Gives a callback that keeps one line on the terminal up to date, or None without one."""
    if not sys.stderr.isatty():
        yield None
        return
    words = {
        "fetch": "Fetching the model",
        "load": "Loading the model",
        "wait": "Waiting for the device",
        "capture": "Running",
        "maps": "Drawing maps",
    }

    def show(progress: Progress) -> None:
        share = f" {100 * progress.done / progress.total:.0f} %" if progress.total else ""
        sys.stderr.write(f"\r\x1b[K{words[progress.stage]}{share}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def _connect() -> "HeadscopeService":
    """Returns the service. Imported here: `--help` and wrong flags need no torch."""
    from core import open_service

    return open_service()
