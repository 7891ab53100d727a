"""python -m vmem [OPTIONS] [--] SCRIPT [ARGUMENTS]: runs a Python script with vmem under it, as
`vmem run` does.

OPTIONS are those of `vmem run`; `python -m vmem --help` lists them. In the place of SCRIPT stands
what Python itself takes there, too: `-m MODULE`, `-c CODE`.
"""

import difflib
import json
import subprocess
import sys

from vmem import _library

_USAGE = "python -m vmem [OPTIONS] [--] SCRIPT [ARGUMENTS]"


def _refuse(why):
    print(f"python -m vmem: {why}", file=sys.stderr)
    sys.exit(2)


def _ask(*arguments):
    return subprocess.run([_library.program(), *arguments], stdout=subprocess.PIPE, text=True, check=True).stdout


def _values():
    """What each option accepts, by its flag; None for those that stand alone. From the program,
    which knows them.
    """
    values = {option["flag"]: None if option["switch"] else option["values"] for option in json.loads(_ask("options", "--json", "-"))}
    values["--no-python"] = values["--check"] = None  # of `vmem run` alone
    return values


def _help():
    _, heading, options = _ask("run", "--help").partition("\nOptions")
    print(f"Run a Python script with vmem under it, as `vmem run` does\nUsage: {_USAGE}\n{heading}{options}", end="")


def _take_options(arguments):
    """Takes the options from the front of `arguments`."""
    options = []
    values = {}
    while arguments and (arguments[0].startswith("--") or arguments[0] == "-h"):
        option = arguments.pop(0)
        if option == "--":
            break
        if option in ("-h", "--help"):
            _help()
            sys.exit()
        if option == "--version":
            print(_ask("--version"), end="")
            sys.exit()
        values = values or _values()
        flag, equals, _ = option.partition("=")
        if flag not in values:
            nearest = difflib.get_close_matches(flag, values, n=1, cutoff=0)[0]
            _refuse(f"there is no option '{flag}'; the nearest is {nearest}; `python -m vmem --help` lists what there is")
        options.append(option)
        if equals or values[flag] is None:
            continue
        if not arguments or arguments[0].startswith("--"):
            _refuse(f"{flag} needs a value: {values[flag]}")
        options.append(arguments.pop(0))
    return options


def main():
    arguments = sys.argv[1:]
    options = _take_options(arguments)
    if not arguments:
        _refuse(f"name the script to run: {_USAGE}")
    if not arguments[0]:
        _refuse("the script's name is empty; is a variable of the shell unset?")
    _library.run(options, [sys.executable, *arguments])


try:
    main()
except RuntimeError as error:  # vmem is not installed as a whole
    sys.exit(f"python -m vmem: {error}")
