"""The compose file mounts what is there, as the programs and settings in it expect."""

import re
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]  # its types are a package of their own

from hotreload.core.switch import ABORT_GRACE
from hotreload.daemon import STOP_DEADLINE
from hotreload.features import FEATURES
from hotreload.settings.load import load
from tests.monitoring.rules import FOLDER as RULES
from tests.monitoring.rules import needs_promtool, promtool

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]


def mounts(service: str) -> dict[str, str]:
    """What stands behind each path in the container, without `:ro`."""
    plain = (re.sub(r"\$\{\w+:-(.*?)\}", r"\1", each) for each in SERVICES[service]["volumes"])
    pairs = (each.removesuffix(":ro").rpartition(":")[::2] for each in plain)
    return {target: source for source, target in pairs}


@pytest.mark.parametrize("service", SERVICES)
def test_what_is_mounted_is_there(service: str) -> None:
    for source in mounts(service).values():
        if source.startswith(".."):
            assert (ROOT / "deploy" / source).exists()
        else:
            assert source in COMPOSE["volumes"] or source.startswith("/srv/")


def test_the_daemon_finds_its_settings_and_folders_and_has_time_to_stop() -> None:
    service, mounted = SERVICES["hotreload"], mounts("hotreload")
    file = ROOT / "deploy" / mounted["/etc/hotreload/hotreload.toml"]
    settings = load(file, [], service["environment"], FEATURES).settings
    assert str(settings.server.tcp) == "127.0.0.1:8000"
    assert str(settings.engine.model).startswith("/srv/models/")
    assert str(settings.source.path) == "/srv/checkpoints"
    assert mounted.keys() >= {"/srv/models", "/srv/checkpoints"}
    assert str(settings.state.directory) in mounted
    assert any(each.startswith(f"{settings.server.socket.parent}:") for each in service["tmpfs"])
    assert int(service["stop_grace_period"].removesuffix("s")) > STOP_DEADLINE + ABORT_GRACE


@needs_promtool
def test_prometheus_and_grafana_read_the_files_of_the_tree_as_they_are() -> None:
    (config, listens) = SERVICES["prometheus"]["command"]
    inside = Path(config.removeprefix("--config.file="))
    folder = (ROOT / "deploy" / mounts("prometheus")[str(inside.parent)]).resolve()
    assert folder == RULES
    promtool("check", "config", folder / inside.name)

    mounted = mounts("grafana")
    provisioning = ROOT / "deploy" / mounted["/etc/grafana/provisioning"]
    datasources, dashboards = (
        yaml.safe_load((provisioning / file).read_text())
        for file in ("datasources/prometheus.yml", "dashboards/hotreload.yml")
    )
    (source,) = datasources["datasources"]
    assert source["url"] == "http://" + listens.removeprefix("--web.listen-address=")
    (provider,) = dashboards["providers"]
    assert f"{provider['options']['path']}/hotreload.json" in mounted
    assert {SERVICES[each]["network_mode"] for each in SERVICES} == {"host"}
