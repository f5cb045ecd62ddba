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

from launch.arguments import Parser
from secure_sccvfl.config.fields import json_schema, listing
from secure_sccvfl.config.sections import OPTIONS, SECTIONS
from secure_sccvfl.config.session_file import top_level_schema
from secure_sccvfl.runs.console import OK, guarded, say


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(__doc__, json=False)
    parser.add_argument("section", nargs="?", choices=SECTIONS, help="this section alone")
    parser.add_argument("--schema", action="store_true", help="print a JSON Schema")
    options = parser.parse_args(arguments)
    return guarded("options", lambda: run(options), debug=options.debug)


def run(options: argparse.Namespace) -> int:
    if options.schema:
        print(json.dumps(json_schema(OPTIONS, top_level_schema()), indent=1))
        return OK
    for line in listing(tuple(o for o in OPTIONS if options.section in (None, o.section))):
        say(line)
    return OK


if __name__ == "__main__":
    sys.exit(main())
