"""What every verb shares: errors as one sentence, exit codes, the two output streams."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from typer.core import TyperGroup

from isonomy.errors import IsonomyError

if TYPE_CHECKING:
    from rich.console import Console

DEBUG = "ISONOMY_DEBUG"
INTERRUPTED = 130
BROKEN_PIPE = 141  # what a shell reports of a program that SIGPIPE ended
_UNBROKEN = 1000  # the width of what is no terminal: nothing wraps


class Group(TyperGroup):
    """A group of commands whose errors are a sentence on the error stream, and an exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run; never returns in standalone mode."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
            sys.stdout.flush()
        except (KeyboardInterrupt, typer.Abort):
            fail("interrupted.", INTERRUPTED)
        except BrokenPipeError:
            _give_up_output()
            sys.exit(BROKEN_PIPE)
        except IsonomyError as error:
            if os.environ.get(DEBUG):
                traceback.print_exc()
            if error.exit_code > 128:  # stopped by a signal, as asked
                typer.echo(capital(one_line(str(error))), err=True)
                sys.exit(error.exit_code)
            fail(str(error), error.exit_code)
        except Exception as error:
            # the exceptions of the parser have no public class in every version of typer
            if hasattr(error, "format_message"):
                _usage(error)
            _unexpected(error)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        """Let a broken pipe through, which typer would end with the exit code of a failure."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _give_up_output()
            raise typer.Exit(BROKEN_PIPE) from None


def fail(sentence: str, code: int) -> NoReturn:
    """Print one error and exit."""
    typer.echo(f"Error: {one_line(sentence)}", err=True)
    sys.exit(code)


def capital(text: str) -> str:
    """With a capital first letter."""
    return text[:1].upper() + text[1:]


def one_line(text: str) -> str:
    """A text on one line, without control characters."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))


def note(text: str) -> None:
    """Something to read beside the result, on the error stream."""
    typer.echo(f"Note: {one_line(text)}", err=True)


def console(*, err: bool = False) -> Console:
    """A rich console of this moment's streams; plain text when they are no terminal."""
    from rich.console import Console

    stream = sys.stderr if err else sys.stdout
    if stream.isatty():
        return Console(file=stream, highlight=False)
    return Console(file=stream, highlight=False, color_system=None, width=_UNBROKEN)


def _usage(error: Any) -> NoReturn:
    message = one_line(error.format_message()).rstrip(".")
    ctx = getattr(error, "ctx", None)
    where = f" See `{ctx.command_path} --help`." if ctx is not None else ""
    if not message:  # a group without its verb prints its help
        sys.exit(error.exit_code)
    fail(f"{message[0].lower()}{message[1:]}.{where}", error.exit_code)


def _unexpected(error: Exception) -> NoReturn:
    if os.environ.get(DEBUG):
        traceback.print_exc()
        sys.exit(1)
    fail(
        f"something unexpected went wrong ({type(error).__name__}: {one_line(str(error))}); set "
        f"{DEBUG}=1 for the traceback.",
        1,
    )


def _give_up_output() -> None:
    """Nobody reads: what is still buffered must not complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
