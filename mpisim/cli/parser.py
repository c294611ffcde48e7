"""An argument parser whose errors are one line, printed by one process."""

from __future__ import annotations

import argparse
from collections.abc import Container
from typing import Any

from mpisim.base.errors import UsageError, nearest
from mpisim.cli.launch import launched_rank

__all__ = ["Parser", "parse"]


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Descriptions broken into lines as wide as the terminal; examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text.strip():  # examples
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)


class Parser(argparse.ArgumentParser):
    """Like argparse's own, except for how it ends.

    A mistake raises :class:`~mpisim.base.errors.UsageError` with the nearest valid name, instead of
    printing the usage once for every process; help and version are printed by the first process.
    Options cannot be abbreviated: a script that relies on it breaks with the next new option.
    Subcommands are parsed by the same class.
    """

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("allow_abbrev", False)
        settings.setdefault("formatter_class", HelpFormatter)
        super().__init__(**settings)

    def error(self, message: str) -> Any:
        """Raise `UsageError` in place of printing the usage and exiting."""
        raise UsageError(f"{message}; see '{self.prog} --help'")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, after a look for unknown options.

        Argparse reports those last, and takes the value that follows one for an argument: the
        message would be about the value.
        """
        words = list(args or ())
        words = words[: words.index("--")] if "--" in words else words
        if not any(isinstance(action, argparse._SubParsersAction) for action in self._actions):
            for word in words:
                if word.startswith("--"):
                    self.check_option(word.partition("=")[0])
        return super().parse_known_args(args, namespace)

    def check_option(self, name: str) -> None:
        """Raise :class:`UsageError`, with the nearest name, if there is no such option."""
        if name not in self._option_string_actions:
            near = nearest(name, self._option_string_actions)
            if f"'{name}" not in near:
                near = _as_key(name, self._option_string_actions) or near
            self.error(f"unknown option '{name}'{near}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            allowed = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(
                action,
                f"{value!r} is not one of {', '.join(allowed)}{nearest(str(value), allowed)}",
            )

    def _print_message(self, message: str, file: Any = None) -> None:
        if launched_rank() == 0:
            super()._print_message(message, file)

    def innermost(self, arguments: argparse.Namespace) -> Parser:
        """Return the parser of the chosen subcommand, or of its chosen subcommand, at any depth."""
        for action in self._actions:
            chosen = getattr(arguments, action.dest, None)
            if isinstance(action, argparse._SubParsersAction) and chosen in action.choices:
                return action.choices[chosen].innermost(arguments)
        return self


def _as_key(option: str, options: Container[str]) -> str:
    """Say how ``--set`` or ``--plan`` sets what an unknown option names; empty if none does."""
    if "--set" not in options and "--plan" not in options:
        return ""
    from mpisim.experiment.job_choice import JobChoice
    from mpisim.experiment.tables import NAMED_BY, tables_with

    name = option.removeprefix("--").replace("-", "_")
    keys = [key for key in NAMED_BY if key.startswith(f"{name}.")]
    keys = keys or tables_with(name).split("'")[1::2]
    keys = keys or [f"job.{name}"] * (name in JobChoice.__dataclass_fields__)
    of_plan = [key.removeprefix("plan.") for key in keys if key.startswith("plan.")]
    if "--plan" in options and of_plan:  # takes keys of the plan, without its name
        return f" (did you mean --plan {of_plan[0]}=…?)"
    return f" (did you mean --set {keys[0]}=…?)" if keys and "--set" in options else ""


def parse(parser: Parser, argv: list[str]) -> argparse.Namespace:
    """Parse a command line.

    Parameters
    ----------
    parser : Parser
        The parser of the whole program.
    argv : list of str
        The arguments after the program's name.

    Returns
    -------
    argparse.Namespace
        The arguments.

    Raises
    ------
    UsageError
        If they do not fit, with the nearest name that would.
    """
    arguments, rest = parser.parse_known_args(argv)
    if rest:
        innermost = parser.innermost(arguments)
        if rest[0].startswith("-"):
            innermost.check_option(rest[0].partition("=")[0])
        innermost.error(f"unexpected argument '{rest[0]}'")
    return arguments
