"""What every verb shares: errors as one sentence, exit codes, notes, the console."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.utils import get_params_from_function

from isonomy.errors import IsonomyError

if TYPE_CHECKING:
    from rich.console import Console

DEBUG = "ISONOMY_DEBUG"
INTERRUPTED = 130
BROKEN_PIPE = 141  # what a shell reports for a program that was ended by SIGPIPE
_NO_WRAPPING = 1000  # the width of output that is not a terminal


class Group(TyperGroup):
    """A group of commands that reports errors as one sentence and an exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command; does not return in standalone mode."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
            sys.stdout.flush()
        except (KeyboardInterrupt, typer.Abort):
            fail("interrupted.", INTERRUPTED)
        except BrokenPipeError:
            _discard_output()
            sys.exit(BROKEN_PIPE)
        except IsonomyError as error:
            if os.environ.get(DEBUG):
                traceback.print_exc()
            if error.exit_code > 128:  # stopped by a signal
                typer.echo(capital(one_line(str(error))), err=True)
                sys.exit(error.exit_code)
            fail(str(error), error.exit_code)
        except Exception as error:
            # not every version of typer has a public class for the exceptions of its parser
            if hasattr(error, "format_message"):
                _usage(error)
            if not os.environ.get(DEBUG) and (text := _of_the_machine(error)):
                fail(text, IsonomyError.exit_code)
            _unexpected(error)
        if code == INTERRUPTED:  # typer's own exit after Ctrl-C
            fail("interrupted.", INTERRUPTED)
        sys.exit(code if isinstance(code, int) else 0)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A verb, with the help texts of its arguments."""
        found = super().get_command(ctx, cmd_name)
        _restore_help(found)
        return found

    def invoke(self, ctx: Any) -> Any:
        """Run a verb; exits with BROKEN_PIPE, and not as a failure, if nobody reads the output."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _discard_output()
            raise typer.Exit(BROKEN_PIPE) from None


def _restore_help(command: Any) -> None:
    """Give arguments the help texts that click 8.5 discards if typer is older than 0.21."""
    lost = [p for p in getattr(command, "params", []) if getattr(p, "help", "") is None]
    if lost and command.callback is not None:
        declared = get_params_from_function(command.callback)
        for parameter in lost:
            if parameter.name in declared:
                parameter.help = getattr(declared[parameter.name].default, "help", None)


def fail(sentence: str, code: int) -> NoReturn:
    """Print an error and exit."""
    typer.echo(f"Error: {one_line(sentence)}", err=True)
    sys.exit(code)


def capital(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def one_line(text: str) -> str:
    """The text on one line, without control characters."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))


def first_sentence(docstring: str | None) -> str:
    """The first paragraph of a docstring, on one line."""
    return one_line(inspect.cleandoc(docstring or "").split("\n\n")[0])


def note(text: str) -> None:
    """Print a note on standard error."""
    typer.echo(f"Note: {one_line(text)}", err=True)


def console(*, err: bool = False) -> Console:
    """A rich console on standard output or standard error; plain text if it is not a terminal."""
    from rich.console import Console

    stream = sys.stderr if err else sys.stdout
    if stream.isatty():
        return Console(file=stream, highlight=False)
    return Console(file=stream, highlight=False, color_system=None, width=_NO_WRAPPING)


def exit_on_sigterm() -> None:
    """Let SIGTERM exit in the ordinary way, so that child processes are ended too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def _usage(error: Any) -> NoReturn:
    message = _without_repetition(one_line(error.format_message()).rstrip("."))
    ctx = getattr(error, "ctx", None)
    where = f" See `{ctx.command_path} --help`." if ctx is not None else ""
    if not message:  # a group without a verb has printed its help
        sys.exit(error.exit_code)
    end = "" if message.endswith("?") else "."
    fail(f"{message[0].lower()}{message[1:]}{end}{where}", error.exit_code)


def _without_repetition(message: str) -> str:
    """The message without a hint that some versions of typer and click each add.

    >>> _without_repetition("No such command 'list'. Did you mean 'ls'? Did you mean 'ls'?")
    "No such command 'list'. Did you mean 'ls'?"
    """
    start = message.find(" Did you mean ")
    hint = message[start:].rstrip(".") if start >= 0 else ""
    half = hint[: len(hint) // 2]
    return message[:start] + half if hint and half + half == hint else message


def _of_the_machine(error: Exception) -> str:
    """What the machine refused, in one sentence; empty for any other error."""
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return (
            "memory ran out; use a smaller model, local.batch or cohort.size, fewer --jobs, or "
            "engine = 'loop'."
        )
    if isinstance(error, OSError) and error.strerror:
        what = f"'{one_line(str(error.filename))}'" if error.filename is not None else "a file"
        return f"{what} cannot be used ({error.strerror}); check the name and who may write there."
    return ""


def _unexpected(error: Exception) -> NoReturn:
    if os.environ.get(DEBUG):
        traceback.print_exc()
        sys.exit(1)
    fail(
        f"an unexpected error occurred ({type(error).__name__}: {one_line(str(error))}); set "
        f"{DEBUG}=1 for the traceback.",
        1,
    )


def _discard_output() -> None:
    """Drop buffered output, so that Python does not report a broken pipe at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
