"""The ways in which other programs are told the picture: log, metrics, systemd. None decides."""
