"""`Session`: everything below behind CrypTen's tensors, and how a process joins one."""
