"""Which records do the parties share? Protocols behind one seam: `hidden` (nobody learns it), `revealed`, `exact`."""
