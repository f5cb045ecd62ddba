"""Single operations on shares: products, truncation, comparison, choices, series, noise."""
