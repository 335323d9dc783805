"""``phalanx completion bash|zsh|fish``: a script for the shell, made of the option table. Loads only when asked for.

The scripts are static, so that a tab starts no Python. Flags are completed up to the script, files and words where an
option has them, and after the script file names alone: what follows is the script's.
"""

from __future__ import annotations

from phalanx.cli import convert
from phalanx.cli.chaos import ACTS, flags_of
from phalanx.cli.checkpoints import FLAGS as CHECKPOINT_FLAGS
from phalanx.cli.options import HELP, OPTIONS, VERSION, Option

__all__ = ["SHELLS", "completion"]

SHELLS = ("bash", "zsh", "fish")
_COMMANDS = {
    "run": "start a job, or this machine's part of one",
    "chaos": "make faults on purpose in a job on this machine",
    "checkpoints": "list the steps in a folder of checkpoints, and what is bad",
    "completion": "print a script for the shell",
    "config-schema": "print the JSON Schema of the configuration file",
}
_PLAIN = str.maketrans("[]\\'", "()/`") | {ord(":"): " -"}  # what has a meaning in zsh's descriptions
_OFFERED = (*(one for one in OPTIONS if one.later is None), HELP, VERSION)


def completion(shell: str) -> str:
    """Return the script for one of ``SHELLS``."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]()


def _values_of(option: Option) -> tuple[str, ...]:
    if isinstance(option.read, convert.Choice):
        return option.read.allowed
    if option.read is convert.backend:
        from phalanx.launcher.plugins import BACKENDS

        return tuple(BACKENDS)
    if option.read is convert.event_handler:
        from phalanx.launcher.plugins import EVENT_HANDLERS

        return EVENT_HANDLERS
    if option.metavar and "|" in option.metavar:  # N|auto|cpu: the words of it
        return tuple(word for word in option.metavar.split("|") if word.islower())
    return ()


def _wants_path(option: Option) -> bool:
    return option.metavar in ("FILE", "DIR", "PATH")


def _flags(option: Option) -> list[str]:
    return [*([f"-{option.short}"] if option.short else []), option.flag]


def _underscored() -> list[str]:
    return [flag for one in _OFFERED for flag in one.spellings if "_" in flag]


def _takes_value(option: Option) -> bool:
    return not option.is_switch and option not in (HELP, VERSION)


def _with_value() -> list[str]:
    """Return each spelling of a flag whose value is the next word."""
    return [
        flag
        for one in _OFFERED
        if _takes_value(one)
        for flag in dict.fromkeys((*_flags(one), *one.spellings))
    ]


def _bash_cases() -> str:
    """Return what is offered for the value of each flag that has words or files."""
    cases = []
    for one in _OFFERED:
        pattern = "|".join(dict.fromkeys([*_flags(one), *one.spellings]))
        if words := _values_of(one):
            cases.append(
                f"        {pattern}) COMPREPLY=($(compgen -W '{' '.join(words)}' -- \"$current\")); return ;;"
            )
        elif _wants_path(one):
            cases.append(f"        {pattern}) _phalanx_files; return ;;")
    return "\n".join(cases)


def _bash_chaos() -> str:
    cases = "\n".join(
        f"        {act}) COMPREPLY=($(compgen -W '{' '.join(flags_of(act))}' -- \"$current\")) ;;"
        for act in ACTS
    )
    return f"""\
_phalanx_chaos() {{
    local at
    if ((COMP_CWORD == 2)); then
        COMPREPLY=($(compgen -W '{" ".join(ACTS)} --help' -- "$current"))
        return
    fi
    for ((at = 3; at < COMP_CWORD; at++)); do
        if [[ "${{COMP_WORDS[at]}}" == -- ]]; then _phalanx_files; return; fi  # what follows is a command
    done
    if [[ "$previous" == --events-file ]]; then _phalanx_files; return; fi
    [[ "$current" == -* ]] || return
    case "${{COMP_WORDS[2]}}" in
{cases}
    esac
}}"""


def _bash() -> str:
    with_value = "|".join(_with_value())
    flags = " ".join(flag for one in _OFFERED for flag in _flags(one))
    return f"""\
# bash completion of phalanx: put it where your bash-completion looks, or say  eval "$(phalanx completion bash)"
_phalanx_files() {{
    compopt -o filenames 2>/dev/null
    local IFS=$'\\n'
    COMPREPLY=($(compgen -f -- "$current"))
}}
{_bash_chaos()}
_phalanx() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" at word
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W '{" ".join(_COMMANDS)} --help --version' -- "$current"))
        return
    fi
    case "${{COMP_WORDS[1]}}" in
        completion) COMPREPLY=($(compgen -W '{" ".join(SHELLS)}' -- "$current")); return ;;
        chaos) _phalanx_chaos; return ;;
        checkpoints)
            if [[ "$current" == -* ]]; then
                COMPREPLY=($(compgen -W '{" ".join(CHECKPOINT_FLAGS)}' -- "$current"))
            else
                _phalanx_files
            fi
            return ;;
        run) ;;
        *) return ;;
    esac
    for ((at = 2; at < COMP_CWORD; at++)); do
        word="${{COMP_WORDS[at]}}"
        case "$word" in
            {with_value})  # its value is the next word; bash splits --flag=value in three
                if [[ "${{COMP_WORDS[at+1]}}" == "=" ]]; then ((at++)); fi
                ((at++)) ;;
            -*) ;;
            *) _phalanx_files; return ;;  # the script: what follows is its own
        esac
    done
    if [[ "$current" == "=" ]]; then
        current=""
    elif [[ "$previous" == "=" ]]; then
        previous="${{COMP_WORDS[COMP_CWORD-2]}}"
    fi
    case "$previous" in
{_bash_cases()}
        {with_value}) return ;;
    esac
    if [[ "$current" == --*_* ]]; then  # torchrun's other spelling, for who has begun with it
        COMPREPLY=($(compgen -W '{" ".join(_underscored())}' -- "$current"))
    elif [[ "$current" == -* ]]; then
        COMPREPLY=($(compgen -W '{flags}' -- "$current"))
    else
        _phalanx_files
    fi
}}
complete -F _phalanx phalanx
"""


def _zsh_chaos() -> str:
    cases = "\n".join(f"                {act}) compadd -- {' '.join(flags_of(act))} ;;" for act in ACTS)
    return f"""\
        chaos)
            if ((CURRENT == 3)); then
                _values act {" ".join(ACTS)}
            elif ((words[(i)--] < CURRENT)) || [[ "$words[CURRENT-1]" == --events-file ]]; then
                _files  # behind -- stands a command
            elif [[ "$words[CURRENT]" == -* ]]; then
                case "$words[3]" in
{cases}
                esac
            fi ;;"""


def _zsh() -> str:
    rows = []
    for one in _OFFERED:
        about = one.help.translate(_PLAIN)
        value = ""
        if _takes_value(one):
            words = _values_of(one)
            action = f"({' '.join(words)})" if words else "_files" if _wants_path(one) else " "
            value = f":{(one.metavar or '').replace(':', ' ').replace('[', '').replace(']', '')}:{action}"
        for flag in _flags(one):
            takes = "=" if value and flag.startswith("--") else "+" if value else ""
            rows.append(f"        '{flag}{takes}[{about}]{value}'")
    listed = " \\\n".join(rows)
    commands = "\n".join(f"        '{name}:{about.translate(_PLAIN)}'" for name, about in _COMMANDS.items())
    return f"""\
#compdef phalanx
# zsh completion of phalanx: put it into a folder of $fpath as _phalanx, or say  eval "$(phalanx completion zsh)"
_phalanx() {{
    local -a commands
    commands=(
{commands}
    )
    if ((CURRENT == 2)); then
        _describe command commands
        return
    fi
    case "$words[2]" in
        completion) _values shell {" ".join(SHELLS)} ;;
{_zsh_chaos()}
        checkpoints) _arguments '*:folder:_files -/' {" ".join(CHECKPOINT_FLAGS)} ;;
        run)
            shift words
            ((CURRENT--))
            _arguments -S -A '-*' -M 'm:_=-' \\
{listed} \\
        '1:script:_files' '*:file:_files' ;;
    esac
}}
if [[ "$funcstack[1]" == _phalanx ]]; then _phalanx "$@"; else compdef _phalanx phalanx; fi
"""


_FISH_FUNCTIONS = """\
function __phalanx_chaos --description 'phalanx chaos and this act, or none yet, and no command yet'
    set -l words (commandline -opc)
    test "$words[2]" = chaos; and test "$words[3]" = "$argv[1]"; and not contains -- -- $words
end
function __phalanx_before_script --description 'phalanx run, and no script yet'
    set -l words (commandline -opc)
    test "$words[2]" = run; or return 1
    set -l is_value no
    for word in $words[3..]
        if test $is_value = yes
            set is_value no
        else if contains -- $word FLAGS
            set is_value yes
        else if not string match -q -- '-*' $word
            return 1
        end
    end
end
"""


def _fish() -> str:
    lines = [
        "# fish completion of phalanx: put it into ~/.config/fish/completions/phalanx.fish",
        *_FISH_FUNCTIONS.replace("FLAGS", " ".join(_with_value())).splitlines(),
        "complete -c phalanx -n __fish_use_subcommand -f",
    ]
    for name, about in _COMMANDS.items():
        lines.append(f"complete -c phalanx -n __fish_use_subcommand -a {name} -d {_quoted(about)}")
    lines.append(
        f"complete -c phalanx -n '__fish_seen_subcommand_from completion' -f -a '{' '.join(SHELLS)}'"
    )
    lines.append(f"complete -c phalanx -n '__phalanx_chaos \"\"' -f -a '{' '.join(ACTS)}'")
    for act in ACTS:
        for flag, takes_value in flags_of(act).items():
            value = " -r -F" if flag == "--events-file" else " -x" if takes_value else " -f"
            lines.append(
                f"complete -c phalanx -n '__phalanx_chaos {act}' -l {flag.removeprefix('--')}{value}"
            )
    shown = "'__fish_seen_subcommand_from checkpoints'"
    lines += [f"complete -c phalanx -n {shown} -l {flag.removeprefix('--')}" for flag in CHECKPOINT_FLAGS]
    for one in _OFFERED:
        short = f" -s {one.short}" if one.short else ""
        value = ""
        if _takes_value(one):
            words = _values_of(one)
            value = f" -x -a '{' '.join(words)}'" if words else " -r -F" if _wants_path(one) else " -x"
        lines.append(
            f"complete -c phalanx -n __phalanx_before_script -l {one.name}{short}{value} "
            f"-d {_quoted(one.help)}"
        )
    is_underscored = "'__phalanx_before_script; and string match -q -- \"--*_*\" (commandline -ct)'"
    lines.append(f"complete -c phalanx -n {is_underscored} -f -a '{' '.join(_underscored())}'")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
