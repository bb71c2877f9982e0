"""A CA that a test makes with the command `openssl`, and pairs that it signs."""

import os
import subprocess
from pathlib import Path


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


class Authority:
    """A CA of a test, and the files of the pair that it signed last."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ca = folder, folder / "ca.crt"
        self.cert, self.key = folder / "tls.crt", folder / "tls.key"
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        openssl(folder, "req", "-x509", *curve, "-subj", "/CN=a test", "-days", "2",
                "-keyout", "ca.key", "-out", "ca.crt")  # fmt: skip
        openssl(folder, "req", *curve, "-subj", "/CN=a daemon", "-keyout", "new.key",
                "-out", "new.csr")  # fmt: skip

    def sign(self, names: str = "IP:127.0.0.1", days: int = 2) -> None:
        """Put a new certificate in place."""
        (self.folder / "names").write_text(f"subjectAltName={names}")
        openssl(self.folder, "x509", "-req", "-in", "new.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
                "-CAcreateserial", "-days", str(days), "-extfile", "names",
                "-out", "new.crt")  # fmt: skip
        for new, place in (("new.key", self.key), ("new.crt", self.cert)):
            place.unlink(missing_ok=True)
            os.link(self.folder / new, place)
        (self.folder / "new.crt").unlink()
