"""The manifests fit their schemas and each other; a pod's command, variables and probes work."""

import os
import re
import subprocess
import tomllib
from contextlib import ExitStack
from pathlib import Path

import kubernetes_validate
import pytest
import yaml  # type: ignore[import-untyped]

from hotreload.core.switch import ABORT_GRACE
from hotreload.daemon import STOP_DEADLINE
from hotreload.features import FEATURES
from hotreload.setting import PORTS_AFTER
from hotreload.settings.load import load
from tests.hosts.daemons import ENGINE_ARGS, ONE_DEVICE
from tests.hosts.member import free_address
from tests.integration.process import START_SECONDS
from tests.integration.running import words
from tests.monitoring.rules import FILES, needs_promtool, promtool
from tests.repo.manifests import FOLDER, IMAGE, Object, Pod, objects, settings_in, template_in

SHARED = ("several-hosts.yaml", "network-policy.yaml", "service-monitor.yaml")
KINDS = {
    "Deployment": ("one-host.yaml", *SHARED[1:]),
    "Job": ("job.yaml", *SHARED),
    "LeaderWorkerSet": ("leader-worker-set.yaml", *SHARED),
}
"""The files that are applied together, by what begins the pods."""
HOSTS = 4
VERSIONS = ("1.30", "1.37")

each_kind = pytest.mark.parametrize("kind", KINDS)
of_several = pytest.mark.parametrize("kind", ["Job", "LeaderWorkerSet"])


def given_to(
    kind: str, rank: int, hosts: int = HOSTS, leader: str = "hotreload-0.hotreload"
) -> dict[str, str]:
    """The variables that its controller sets."""
    if kind == "Job":
        return {"JOB_COMPLETION_INDEX": str(rank)}
    group = {"LWS_LEADER_ADDRESS": leader, "LWS_GROUP_SIZE": str(hosts)}
    return {"LWS_WORKER_INDEX": str(rank), **group}


# --- as they are written ---------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", sorted(path.name for path in FOLDER.glob("*.yaml")))
def test_each_object_fits_its_schema(file: str, version: str) -> None:
    for each in objects(file):
        if each["kind"] == "ServiceMonitor":
            continue  # of the Prometheus Operator, which has no schema here
        kubernetes_validate.validate(with_schema(each), version, strict=True)


def with_schema(each: Object) -> Object:
    """The same; of a LeaderWorkerSet, which has no schema here, its pod."""
    if each["kind"] != "LeaderWorkerSet":
        return each
    assert each["apiVersion"] == "leaderworkerset.x-k8s.io/v1"
    spec = each["spec"]["leaderWorkerTemplate"]
    assert set(spec) == {"size", "restartPolicy", "workerTemplate"}
    assert spec["restartPolicy"] == "None"
    head = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}}
    return {**head, "template": spec["workerTemplate"]}


@each_kind
def test_what_one_object_names_another_has(kind: str) -> None:
    found = objects(*KINDS[kind])
    template = template_in(found)
    labels, pod = template["metadata"]["labels"], template["spec"]
    (container,) = pod["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    of_rank_0 = re.compile("(job-completion|worker)-index$")
    for each in (each["spec"] for each in found if each["kind"] == "Service"):
        wanted = {
            name: text for name, text in each["selector"].items() if not of_rank_0.search(name)
        }
        assert wanted.items() <= (labels | {"job-name": "hotreload"}).items()
        assert {port["targetPort"] for port in each.get("ports", ())} <= ports.keys()
    (monitor,) = (each["spec"] for each in found if each["kind"] == "ServiceMonitor")
    scraped = [
        port["name"]
        for each in found
        if each["kind"] == "Service"
        and each["metadata"].get("labels", {}).items() >= monitor["selector"]["matchLabels"].items()
        for port in each["spec"]["ports"]
        if port["name"] == monitor["endpoints"][0]["port"]
    ]
    assert scraped == ["metrics"]
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert volumes.keys() == {each["name"] for each in container["volumeMounts"]}
    names = {(each["kind"], each["metadata"]["name"]) for each in found}
    assert ("ConfigMap", volumes["settings"]["configMap"]["name"]) in names
    claim = volumes["state"]["persistentVolumeClaim"]["claimName"]
    assert ("PersistentVolumeClaim", claim) in names
    assert ("ServiceAccount", pod["serviceAccountName"]) in names
    settings = tomllib.loads(settings_in(found))
    listens = {settings["server"]["tcp"], settings["metrics"]["address"]}
    assert {f"0.0.0.0:{port}" for port in ports.values()} == listens


@each_kind
def test_only_ranks_reach_the_ports_by_which_they_meet(kind: str) -> None:
    found = objects(*KINDS[kind])
    (policy,) = (each["spec"] for each in found if each["kind"] == "NetworkPolicy")
    labels = template_in(found)["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["policyTypes"] == ["Ingress"]
    ranks, *others = policy["ingress"]
    assert ranks == {"from": [{"podSelector": {"matchLabels": labels}}]}
    open_to = [port["port"] for each in others for port in each["ports"]]
    assert open_to == [8000, 9479]
    assert not {29500 + after for after in PORTS_AFTER} & set(open_to)
    assert all(each["from"] for each in others)


@each_kind
def test_the_pod_has_no_root_and_its_grace_lets_answers_end(kind: str, tmp_path: Path) -> None:
    pod = template_in(objects(*KINDS[kind]))["spec"]
    (container,) = pod["containers"]
    user = pod["securityContext"]["runAsUser"]
    assert f"USER {user}:{pod['securityContext']['runAsGroup']}\n" in IMAGE
    assert user == pod["securityContext"]["fsGroup"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    waits = [waited(container, given_to(kind, rank), tmp_path) for rank in range(HOSTS)]
    answers_end = STOP_DEADLINE + ABORT_GRACE
    assert waits[0] + answers_end <= pod["terminationGracePeriodSeconds"]
    if kind != "Deployment":
        assert min(waits[1:]) >= waits[0] + answers_end
        assert max(waits[1:]) <= pod["terminationGracePeriodSeconds"]


def waited(container: Object, given: dict[str, str], folder: Path) -> int:
    """How long its preStop waits, by a `sleep` that only says so."""
    sleep = folder / "sleep"
    sleep.write_text('#!/bin/sh\necho "$1"\n')
    sleep.chmod(0o755)
    env = {"PATH": f"{folder}:{os.environ['PATH']}", **given}
    command = container["lifecycle"]["preStop"]["exec"]["command"]
    command[0] = str(sleep) if command[0] == "sleep" else command[0]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_a_deployment_gives_up_the_chips_before_a_new_pod_wants_them() -> None:
    (deployment,) = (each for each in objects("one-host.yaml") if each["kind"] == "Deployment")
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    assert deployment["spec"]["replicas"] == 1


@needs_promtool
def test_the_operators_rules_are_those_of_the_files(tmp_path: Path) -> None:
    script = FOLDER / "prometheus-rule.sh"
    said = subprocess.run([script], capture_output=True, text=True, check=True).stdout
    rule = yaml.safe_load(said)
    assert (rule["apiVersion"], rule["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert set(rule) == {"apiVersion", "kind", "metadata", "spec"}
    groups = [group for file in FILES for group in yaml.safe_load(file.read_text())["groups"]]
    assert rule["spec"] == {"groups": groups}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rule["spec"]))
    promtool("check", "rules", tmp_path / "rules.yml")


@of_several
def test_each_rank_finds_its_number_and_the_others(kind: str, tmp_path: Path) -> None:
    found = objects(*KINDS[kind])
    for rank in range(HOSTS):
        pod = Pod(tmp_path, found, given_to(kind, rank))
        engine = load(pod.config, pod.sets, pod.environ, FEATURES).settings.engine
        assert (engine.node_rank, engine.nnodes) == (rank, HOSTS)
        assert engine.dist_init_addr == "hotreload-0.hotreload:29500"
        assert engine.join_secret_file is not None


# --- as they run -----------------------------------------------------------------------------


@pytest.mark.real_engine
def test_a_pods_command_starts_and_its_probes_are_answered_in_turn(tmp_path: Path) -> None:
    pod = Pod(tmp_path, objects(*KINDS["Deployment"]), {}, "engine.tp=1")
    pod.drop(2)
    with pod.begun():
        pod.until(lambda: pod.probed("startup") == 200)
        assert (pod.probed("liveness"), pod.probed("readiness")) == (200, 503)
        pod.until(lambda: pod.probed("readiness") == 200, START_SECONDS)
        assert pod.ask()["text"] == words(2)
        pod.checkpoints.joinpath("step_3").mkdir()  # without its marker it is none
        pod.drop(4)
        pod.live("step_4")
        assert pod.stop() == 0


@pytest.mark.at_night  # by day: test_each_rank_finds_its_number_and_the_others
@pytest.mark.real_engine
@of_several
def test_the_ranks_of_several_pods_meet_and_rank_0_answers(kind: str, tmp_path: Path) -> None:
    found = objects(*KINDS[kind])
    instead = {"hotreload-0.hotreload:29500": free_address()} | ONE_DEVICE
    given = [given_to(kind, rank, 2, "127.0.0.1") | instead for rank in range(2)]
    # The tiny model has two heads to share out.
    sets = ("engine.tp=2", "engine.nnodes=2", ENGINE_ARGS)
    pods = [Pod(tmp_path / f"{rank}", found, each, *sets) for rank, each in enumerate(given)]
    for pod in pods:
        pod.drop(2)
    with ExitStack() as lives:
        for pod in pods:
            lives.enter_context(pod.begun())
        for pod in pods:
            pod.until(lambda pod=pod: pod.probed("readiness") == 200, START_SECONDS)
            assert pod.probed("liveness") == pod.probed("startup") == 200
        assert pods[0].ask()["text"] == words(2)
        assert pods[0].stop() == 0
