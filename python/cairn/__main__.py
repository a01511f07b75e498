"""``python -m cairn``: replaces itself by the program, which then gets signals and sets the exit status."""

import os
import sys

from cairn._command import program

if __name__ == "__main__":
    try:
        path = program()
    except FileNotFoundError as error:
        sys.exit(f"cairn: {error}")
    os.execv(path, ["cairn", *sys.argv[1:]])
