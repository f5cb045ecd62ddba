"""Drafts of a description: each party makes its part from its own table, and people merge and approve the parts.

`sccvfl init` and `sccvfl check` call it. A draft is a proposal for what becomes public; nothing here is sent.
"""
