"""The entry point: run a command, and turn whatever goes wrong into one sentence and an exit code.

0  done                          2  bad input, nothing was overwritten
1  the run failed                130  interrupted, can be resumed
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer
import typer.core

from signfade._text import printable
from signfade.cli import commands
from signfade.cli.data_command import data_app
from signfade.cli.deploy_command import deploy
from signfade.cli.export_command import export
from signfade.cli.reproduce_command import reproduce
from signfade.cli.sweep_command import sweep
from signfade.cli.tune_command import tune

__all__ = ["app", "run"]

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130

# Help is plain text here; with rich installed Typer writes "\[default: 1]" even so.
typer.core.HAS_RICH = False

app = typer.Typer(
    name="signfade",
    help="Train one model over many wireless devices at one bit per weight.",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _name in commands.__all__:
    app.command()(getattr(commands, _name))
app.command()(sweep)
app.command()(tune)
app.command()(reproduce)
app.command()(deploy)
app.command()(export)
app.add_typer(data_app, name="data")


def _version(wanted: bool) -> None:
    if wanted:
        from signfade import __version__

        typer.echo(f"signfade {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code; errors go to stderr as `signfade: ...`.

    With `SIGNFADE_TRACEBACK=1` in the environment errors are raised instead, for those who seek their cause.
    """
    # Where its folder cannot be written to, matplotlib takes a temporary one, which is nobody's concern.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        _check_environment()
        command = typer.main.get_command(app)
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning  # put back by the context
            code = command.main(list(arguments), prog_name="signfade", standalone_mode=False)
            sys.stdout.flush()
            if code == INTERRUPTED:  # typer's way to tell
                raise KeyboardInterrupt
    except BrokenPipeError:  # whoever read our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get("SIGNFADE_TRACEBACK") == "1":
            raise
        if type(error).__name__ == "NoArgsIsHelpError":  # typer's, for a command that needs another word
            print(error, file=sys.stderr)
            return BAD_INPUT
        code, sentence = _exit_code(error, arguments)
        print(f"signfade: {printable(' '.join(sentence.split()))}", file=sys.stderr)
    return code if isinstance(code, int) else 0


def _check_environment() -> None:
    """Raise if numba is set not to compile: kernels that work on single bits and lanes need it to."""
    value = os.environ.get("NUMBA_DISABLE_JIT", "")
    if value.strip().isdigit() and int(value) != 0:
        raise ValueError(f"NUMBA_DISABLE_JIT must be 0 or unset: the kernels only run compiled; got {value}")


def _exit_code(error: BaseException, arguments: Sequence[str]) -> tuple[int, str]:
    """Return the exit code and the sentence for an error."""
    if hasattr(error, "format_message"):  # a usage error of typer
        place = getattr(getattr(error, "ctx", None), "command_path", "signfade")
        return BAD_INPUT, f"{error.format_message()} (see {place} --help)"
    training: Any = sys.modules.get("signfade.experiments.training")  # not loaded: no run has begun
    if isinstance(error, KeyboardInterrupt | typer.Abort) or (
        training and isinstance(error, training.Interrupted)
    ):
        stopped = str(error) or "stopped"
        return INTERRUPTED, f"{stopped}; {_how_to_resume(arguments)}"
    if training and isinstance(error, training.RunFailed):
        return FAILED, str(error)
    if isinstance(error, ValueError):  # what is wrong with settings, folders and data is always one of these
        return BAD_INPUT, str(error)
    return FAILED, f"{type(error).__name__}: {error} (set SIGNFADE_TRACEBACK=1 to see where)"


def _how_to_resume(arguments: Sequence[str]) -> str:
    """A run asks for `--resume`; comparisons always go on from where they are."""
    again = list(arguments)
    if again[:1] not in (["run"], ["compare"], ["demo"], ["reproduce"], ["sweep"], ["tune"], ["deploy"]):
        return "nothing to resume"
    if again[:1] in (["run"], ["deploy"]) and "--resume" not in again:
        again.append("--resume")
    return f"resume with: {shlex.join(['signfade', *again])}"


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    print(f"signfade: note: {printable(' '.join(str(message).split()))}", file=sys.stderr)
