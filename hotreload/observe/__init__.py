"""Those who tell the picture to other programs: log, metrics, systemd. They decide nothing."""
