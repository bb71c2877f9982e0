"""What lies on which file system, read from the kernel's table alone."""

from pathlib import Path

import pytest

from hotreload.facts.files import mount_of

TABLE = (
    "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
    "23 22 0:40 / /mnt/with\\040space rw - nfs4 server:/x rw\n"
    "24 22 0:41 / /mnt rw - xfs /dev/sdb rw\n"
    "25 22 0:42 / /mnt/a\rb rw - tmpfs tmpfs rw\n"
    "26 22 0:43 / /srv rw - autofs systemd-1 rw\n"
    "27 26 0:44 / /srv rw - nfs4 server:/y rw\n"
)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/mnt/with space/model", "/mnt/with space (nfs4)"),
        ("/mnt/with", "/mnt (xfs)"),
        ("/mnt/a\rb/c", "/mnt/a\rb (tmpfs)"),
        ("/srv/a", "/srv (nfs4)"),
        ("/opt", "/ (ext4)"),
    ],
)
def test_the_nearest_mount_names_the_file_system(path: str, said: str) -> None:
    assert str(mount_of(Path(path), TABLE)) == said
