"""Which records do the parties share? Two protocols behind one seam: `hidden` (nobody learns it) and `revealed`."""
