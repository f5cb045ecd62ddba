"""One training step of every system at one size: what it computes, and the table of what it costs."""
