"""python -m vmem [--OPTION VALUE ...] SCRIPT [ARGUMENTS ...]: runs a Python script with vmem under it, as `vmem run` does."""

import sys

from vmem import _library


def main():
    arguments = sys.argv[1:]
    options = []
    while arguments and arguments[0].startswith("--"):
        if "=" in arguments[0]:
            options.append(arguments.pop(0))
        elif len(arguments) > 1:
            options += [arguments.pop(0), arguments.pop(0)]
        else:
            sys.exit(f"vmem: {arguments[0]} needs a value")
    if not arguments:
        sys.exit(__doc__)
    _library.run(options, [sys.executable, *arguments])


main()
