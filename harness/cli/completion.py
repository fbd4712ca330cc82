# SPDX-License-Identifier: BSD-3-Clause
"""Completion for bash, made from the parser itself: commands, options, and the values of those that have known ones."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from userblk.analysis.paper import ANY
from userblk.analysis.papers import paper_names

from ..machine.paths import CONFIGS
from ..model import tables

# Options whose values are files below configs/, or block devices.
KINDS = {"--suite": "suites", "--profile": "profiles", "--systems": "systems", "--hosts": "hosts"}
DEVICES = ("--sata", "--nvme")
PAPERS = "--classes"  # whose values are papers
CAMPAIGN = "campaign"  # the argument that is a campaign: a directory below results
SECOND = "second"  # the argument that is one, or a paper

TEMPLATE = """# SPDX-License-Identifier: BSD-3-Clause
# Made by `userblk completion bash`; source it, or put it into bash-completion's directory.

_userblk() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} command= word words=
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case $word in
            {commands}) command=$word; break ;;
        esac
    done
    case $command:$previous in
{values}
    esac
    if [ -z "$words" ]; then
        case $command in
{options}
        esac
        case $command:$current in
            *:-*) ;;
{arguments}
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _userblk userblk
"""


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    return [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]


def _values(action: argparse.Action) -> str:
    """Shell text that gives an option's values: words, or a substitution; "" if there are none to know."""
    for flag in action.option_strings:
        if flag in KINDS:
            return " ".join(tables.names(KINDS[flag]))
        if flag == PAPERS:
            return " ".join(paper_names(CONFIGS))
        if flag in DEVICES:
            return "$(compgen -G '/dev/[snv]*')"
    return " ".join(map(str, action.choices)) if action.choices else ""


def _case(pattern: str, words: str) -> str:
    return f'        {pattern}) words="{words}" ;;'


def bash(parser: argparse.ArgumentParser) -> str:
    commands = dict(_commands(parser))
    values, options, arguments = [], [], []
    parsers: Sequence[tuple[str, argparse.ArgumentParser]] = [("", parser), *commands.items()]
    for name, sub in parsers:
        for action in sub._actions:
            if action.option_strings and (words := _values(action)):
                flags = "|".join(f"{name}:{flag}" for flag in action.option_strings)
                values.append(_case(flags, words))
            elif not action.option_strings and action.dest == CAMPAIGN:
                arguments.append(_case(f"{name}:*", "$(cd results 2>/dev/null && compgen -d)"))
            elif not action.option_strings and action.dest == SECOND:
                words = " ".join([ANY, *paper_names(CONFIGS)])
                arguments.append(_case(f"{name}:*", f"$(cd results 2>/dev/null && compgen -d) {words}"))
            elif not action.option_strings and action.choices and name:
                arguments.append(_case(f"{name}:*", " ".join(map(str, action.choices))))
        words = " ".join(_flags(sub))
        options.append(_case(name or '""', words if name else f"{words} {' '.join(commands)}"))
    return TEMPLATE.format(
        commands="|".join(commands),
        values="\n".join(values),
        options="\n".join(options),
        arguments="\n".join(arguments),
    )
