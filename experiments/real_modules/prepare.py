"""Makes torchaudio importable with a CPU build of torch; run once after the installation.

PyPI has torchaudio for CUDA. It refuses to be imported if its compiled library cannot be loaded,
and works without it if there is none, so a library that cannot be loaded is removed.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch


def main() -> None:
    """Remove the libraries of torchaudio that cannot be loaded."""
    folder = Path(sysconfig.get_path("purelib")) / "torchaudio" / "lib"
    for library in sorted(folder.glob("*.so")):
        try:
            torch.ops.load_library(library)
        except OSError:
            library.unlink()
            print(f"removed {library}: it cannot be loaded")  # noqa: T201 - tox shows it


if __name__ == "__main__":
    main()
