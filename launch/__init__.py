"""The programs. Each is a thin reader of arguments over secure_sccvfl and protocols."""
