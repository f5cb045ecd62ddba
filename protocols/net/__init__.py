"""Network layer: certificates, mutual-TLS connections, and the transport interface.

`certificates` (keys, signing, pins), `rendezvous` (connect and authenticate; the only module with sockets), `link`
(one connection), `transport` (the interface: rounds of exchanged arrays), `mesh` (its default implementation),
`preflight` (clocks, versions and digests of all members, before a session).
"""
