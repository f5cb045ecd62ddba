"""`Session`: CrypTen tensors on our kernels, and how a process joins a session."""
