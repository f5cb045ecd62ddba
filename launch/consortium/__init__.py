"""Programs for the members of a consortium, each on its own host: data, keys, plan, approval."""
