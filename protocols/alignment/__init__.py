"""Private record alignment: `hidden` (hidden intersection), `revealed` (PSI) and `exact` (pre-aligned lists)."""
