"""What was released and what it cost: events, accountant, ledger, calibration, report."""
