"""A session as a Flower app: a process at each SuperNode; shares travel over the session's own connections."""
