"""`python -m secure_sccvfl` is the program `sccvfl`."""

import sys

from secure_sccvfl.launch.cli import main

if __name__ == "__main__":
    sys.exit(main())
