"""How processes reach each other: certificates, the transport seam, and its two sides (mutual TLS, gloo)."""
