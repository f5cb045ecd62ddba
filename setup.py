"""Unpack CrypTen into the package and compile native.c.

pip cannot install CrypTen: its metadata asks for the retired package sklearn.

The file in locks/ is the wheel of PyPI, unchanged; locks/requirements.txt has its hash. Only the package, its
configuration and its license are taken: the wheel also holds top-level packages named test, examples and benchmarks.
`secure_sccvfl.protocols.session.runtime` imports this copy where CrypTen is not installed.

The extension is plain C without Python's interface, loaded with ctypes: one library fits all versions of Python, as
"abi3" and "cp311" say. Without a C compiler the installation goes on, and NumPy computes the same.
"""

import zipfile
from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

WHEEL = Path(__file__).parent / "locks" / "crypten-0.4.1-py3-none-any.whl"
PARTS = ("crypten/", "configs/default.yaml", "crypten-0.4.1.dist-info/")


class BuildWithCrypten(build_py):
    """Unpacks into the wheel; for an editable install into the source tree, unless CrypTen is installed."""

    def run(self) -> None:
        super().run()
        if self.editable_mode and find_spec("crypten"):
            return
        root = Path(__file__).parent if self.editable_mode else Path(self.build_lib)
        with zipfile.ZipFile(WHEEL) as wheel:
            wheel.extractall(
                root / "secure_sccvfl" / "bundled", [name for name in wheel.namelist() if name.startswith(PARTS)]
            )


setup(
    cmdclass={"build_py": BuildWithCrypten},
    ext_modules=[
        Extension(
            "secure_sccvfl.protocols.authentication._native",
            ["secure_sccvfl/protocols/authentication/native.c"],
            extra_compile_args=["-O3", "-g0"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
