"""The public Python API: data, training, runs under MPC, and a scikit-learn estimator.

`secure_sccvfl.__init__` re-exports its names. It may import every package except `research`.
"""
