"""List every option of a run by section: name, type, default, documentation.

    sccvfl options                     all of them
    sccvfl options privacy             one section
    sccvfl options --schema            the JSON Schema of session files, for editors

In a session file an option is a key of its section; on the command line it is --set section.key=value.
"""

from __future__ import annotations

import argparse
import json
import sys

from launch.arguments import argument, program
from secure_sccvfl.config.fields import json_schema, listing
from secure_sccvfl.config.sections import OPTIONS, SECTIONS
from secure_sccvfl.config.session_file import top_level_schema
from secure_sccvfl.runs.console import OK, say


def run(options: argparse.Namespace) -> int:
    if options.schema:
        print(json.dumps(json_schema(OPTIONS, top_level_schema()), indent=1))
        return OK
    for line in listing(tuple(o for o in OPTIONS if options.section in (None, o.section))):
        say(line)
    return OK


main = program(
    "options",
    run,
    argument("section", nargs="?", choices=SECTIONS, help="this section alone"),
    argument("--schema", action="store_true", help="print a JSON Schema"),
    json=False,
)

if __name__ == "__main__":
    sys.exit(main())
