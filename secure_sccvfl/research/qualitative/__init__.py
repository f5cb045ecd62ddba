"""The paper's qualitative appendix for one seed: roles, representations, training curves and single people."""
