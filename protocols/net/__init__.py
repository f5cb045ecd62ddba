"""Network layer: certificates, mutual-TLS connections, and the transport interface."""
