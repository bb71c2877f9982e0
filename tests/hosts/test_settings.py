"""One engine over several hosts: what its settings must be like, and what hosts must agree on."""

from pathlib import Path

import pytest

from hotreload.errors import ConfigError
from hotreload.features import FEATURES
from hotreload.hosts.life import rank_group
from hotreload.hosts.life.rank_group import (
    find_differences,
    list_facts,
    ranks_of,
    ranks_with_secret,
)
from hotreload.hosts.upstream.ranks import Ranks
from hotreload.settings.load import list_judging, load, missing_to_serve, need_no_restart, reread
from hotreload.settings.sections import Settings

OPEN = ("engine.nnodes=2", "engine.tp=2", "engine.dist_init_addr=10.0.0.1:29500")
TWO = (*OPEN, "engine.insecure_join=true")


def two_hosts(*sets: str) -> Settings:
    return load(None, [*TWO, *sets], {}, FEATURES).settings


def faults(*sets: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load(None, sets, {}, FEATURES)
    return caught.value.findings


AUTO = ("engine.ranks=auto", "engine.tp=8", "engine.insecure_join=true")


# --- ranks of the environment ------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "sets", "ranks", "origins"),
    [
        (
            {"JOB_COMPLETION_INDEX": "3", "HOSTNAME": "llm-3"},
            ["engine.nnodes=4", "engine.dist_init_addr=llm-0.llm:5000"],
            Ranks(3, 4, "llm-0.llm:5000"),
            ["env JOB_COMPLETION_INDEX", "--set", "--set"],
        ),
        (  # the leader of group 1: its name ends with the group
            {
                "HOSTNAME": "llm-1",
                "LWS_WORKER_INDEX": "0",
                "LWS_GROUP_SIZE": "2",
                "LWS_LEADER_ADDRESS": "llm-1.llm.default",
                "TPU_WORKER_ID": "0",
                "TPU_WORKER_HOSTNAMES": "llm-1.llm,llm-1-1.llm",
            },
            [],
            Ranks(0, 2, "llm-1.llm.default:29500"),
            ["env LWS_WORKER_INDEX", "env LWS_GROUP_SIZE", "env LWS_LEADER_ADDRESS"],
        ),
        (
            {
                "TPU_WORKER_ID": "1",
                "TPU_WORKER_HOSTNAMES": "w-0,w-1,",
                "HOSTNAME": "w-1",
            },
            [],
            Ranks(1, 2, "w-0:29500"),
            ["env TPU_WORKER_ID", "env TPU_WORKER_HOSTNAMES", "env TPU_WORKER_HOSTNAMES"],
        ),
        (
            {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5\n"},
            [],
            Ranks(1, 2, "10.0.0.4:29500"),
            ["env SKYPILOT_NODE_RANK", "env SKYPILOT_NODE_IPS", "env SKYPILOT_NODE_IPS"],
        ),
        (
            {"HOSTNAME": "llm-1"},
            ["engine.nnodes=2", "engine.dist_init_addr=llm-0.llm:29500"],
            Ranks(1, 2, "llm-0.llm:29500"),
            ["env HOSTNAME", "--set", "--set"],
        ),
        (
            {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"},
            [],
            None,
            ["env TPU_WORKER_ID", "env TPU_WORKER_HOSTNAMES", "default"],
        ),
    ],
    ids=["indexed job", "leader worker set", "TPU VM", "SkyPilot", "stateful set", "one host"],
)
def test_ranks_come_from_the_environment(
    environ: dict[str, str], sets: list[str], ranks: Ranks | None, origins: list[str]
) -> None:
    auto = AUTO if ranks else AUTO[:1]
    loaded = load(None, [*auto, *sets], environ, FEATURES)
    assert ranks_of(loaded.settings) == ranks
    names = ("node_rank", "nnodes", "dist_init_addr")
    assert [loaded.origins[f"engine.{name}"] for name in names] == origins
    if not any("node" in each for each in sets):  # nothing of it counts unless asked for
        assert ranks_of(load(None, [], environ, FEATURES).settings) is None


@pytest.mark.parametrize(
    ("environ", "sets", "said"),
    [
        (
            {"JOB_COMPLETION_INDEX": "1", "TPU_WORKER_ID": "0", "LWS_GROUP_SIZE": "2"},
            ["engine.dist_init_addr=a:1"],
            "no one rank of this host: JOB_COMPLETION_INDEX is 1, TPU_WORKER_ID is 0; unset what",
        ),
        (
            {"LWS_WORKER_INDEX": "1", "LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "a"},
            ["engine.node_rank=0"],
            "rank of this host: [engine] node_rank (--set) is 0, LWS_WORKER_INDEX is 1",
        ),
        (
            {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "a,b", "LWS_GROUP_SIZE": "3"},
            [],
            "no one number of hosts: LWS_GROUP_SIZE is 3, TPU_WORKER_HOSTNAMES is 2",
        ),
        (
            {"HOSTNAME": "llm-7d4b9c-x8k2p"},
            ["engine.nnodes=2", "engine.dist_init_addr=a:1"],
            "nothing says the rank of this host: set [engine] node_rank, or one of JOB_COMPLETION_"
            "INDEX, LWS_WORKER_INDEX, TPU_WORKER_ID, SKYPILOT_NODE_RANK, HOSTNAME (a name that",
        ),
        (
            {"JOB_COMPLETION_INDEX": "1"},
            ["engine.nnodes=2"],
            "nothing says the address of rank 0: set [engine] dist_init_addr, or one of LWS_LEADER",
        ),
        (
            {"JOB_COMPLETION_INDEX": "1"},
            ["engine.dist_init_addr=a:1"],
            "nothing says the number of hosts: set [engine] nnodes, or one of LWS_GROUP_SIZE, TPU_",
        ),
        (
            {"LWS_WORKER_INDEX": "2", "LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "a"},
            [],
            "env LWS_WORKER_INDEX: [engine] node_rank: there is no rank 2 with nnodes = 2: 0 to 1",
        ),
        (
            {"TPU_WORKER_ID": "one", "TPU_WORKER_HOSTNAMES": "a,b"},
            [],
            "env TPU_WORKER_ID: [engine] node_rank: should be a valid integer, not 'one'",
        ),
    ],
)
def test_ranks_that_contradict_or_are_missing_are_named(
    environ: dict[str, str], sets: list[str], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, [*AUTO, *sets], environ, FEATURES)
    (fault,) = caught.value.findings
    assert said in fault


# --- settings ----------------------------------------------------------------------------


def test_ranks_are_told_by_the_settings_where_there_are_several() -> None:
    assert ranks_of(Settings()) is None
    assert ranks_of(two_hosts("engine.node_rank=1")) == Ranks(1, 2, "10.0.0.1:29500")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("engine.node_rank=2", "engine.node_rank: there is no rank 2 with nnodes = 2: 0 to 1"),
        ("engine.tp=3", "engine.tp: 3 devices cannot be shared out evenly with nnodes = 2"),
        ("engine.replicas=2", "engine.replicas: only 1 with nnodes = 2"),
        ("engine.loader=upstream", "engine.loader: not 'upstream' with nnodes = 2"),
        ("engine.boot=dummy", "engine.boot: not 'dummy' with nnodes = 2"),
        ("engine.args.schedule_policy=random", "engine.args.schedule_policy: not 'random' with"),
        ("reload.keep_previous=host", "reload.keep_previous: not 'host' with nnodes = 2"),
        ("reload.memory=host", "reload.memory: not 'host' with nnodes = 2"),
        ("reload.memory=auto", "reload.memory: not 'auto' with nnodes = 2"),
        ("command.run=['true']", "command.run: not with nnodes = 2"),
        ("compare.limits={max_kl=1}", "compare.limits: none with nnodes = 2"),
        ("engine.nnodes=65", "engine.nnodes: should be less than or equal to 64"),
        ("engine.join_timeout=0", "engine.join_timeout: should be greater than 0"),
        ("engine.dist_init_addr=10.0.0.1", "'10.0.0.1' is no address: write host:port"),
        ("engine.dist_init_addr=[::1]:29500", "write a name or an IPv4 address"),
        ("engine.dist_init_addr=host:0", "'host:0' is no port to meet at"),
        ("engine.dist_init_addr=host:65530", "it and 65536, too, must be ports"),
    ],
)
def test_what_does_not_go_with_several_hosts_is_refused_by_name(wrong: str, said: str) -> None:
    (fault,) = faults(*TWO, wrong)
    assert fault.startswith("--set ")
    assert said in fault


def test_all_that_does_not_go_with_several_hosts_is_told_at_once() -> None:
    told = faults("engine.nnodes=2", "engine.node_rank=2", "engine.replicas=2")
    assert [fault.partition(":")[0] for fault in told] == [
        "[engine] dist_init_addr",
        "--set engine.node_rank",
        "[engine] tp",
        "--set engine.replicas",
    ]


SECRET = "0123456789abcdef" * 2


def test_whoever_could_join_from_elsewhere_is_kept_out_or_let_in_by_name(tmp_path: Path) -> None:
    (fault,) = faults(*OPEN)
    assert fault.startswith("--set engine.dist_init_addr: whoever reaches 10.0.0.1:29500 could run")
    assert "set [engine] join_secret_file, the same on all hosts, or serve --insecure-join" in fault
    for way in ("join_secret_file=secret", "insecure_join=true", "dist_init_addr=127.0.0.1:29500"):
        load(None, [*OPEN, f"engine.{way}"], {}, FEATURES)


def test_ranks_know_the_secret_and_do_not_show_it(tmp_path: Path) -> None:
    file = tmp_path / "join-secret"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o600)
    settings = two_hosts(f"engine.join_secret_file={file}")
    ranks = ranks_with_secret(settings)
    assert ranks is not None
    assert ranks.secret == SECRET
    assert SECRET not in repr(ranks)
    assert SECRET not in str(list_facts(settings))
    file.write_text("another" + SECRET)
    (unlike,) = find_differences(list_facts(settings), {**list_facts(settings), NAME: "sha256:0"})
    assert unlike == f"{NAME} is another there than here"


NAME = "[engine] join_secret_file"


@pytest.mark.parametrize(
    "alone", ["node_rank=1", "dist_init_addr=10.0.0.1:29500", "join_secret_file=/etc/s"]
)
def test_what_is_for_several_hosts_is_refused_where_there_is_one(alone: str) -> None:
    (fault,) = faults(f"engine.{alone}")
    assert f"{alone.partition('=')[2]} is for an engine over several hosts" in fault
    assert "set [engine] nnodes, too" in fault


def test_several_hosts_need_a_model_that_does_not_follow_the_hub() -> None:
    hub = ("source.kind=huggingface", "source.repo=org/name")
    assert list(missing_to_serve(two_hosts(*hub, "engine.model=/m"))) == []
    (fault,) = missing_to_serve(two_hosts(*hub))
    assert "[engine] model: not set, and needed with nnodes = 2" in fault


def test_what_hosts_must_have_alike_does_not_change_on_one_of_them_alone() -> None:
    others = ("checks.max_drift=2", 'probe=[{prompt="hi"}]', "engine.join_timeout=5")
    found = reread(two_hosts(), two_hosts(*others, "reload.max_held=7"))
    assert found.changed == ("[reload] max_held",)
    assert found.waiting == ("[engine] join_timeout", "[checks] max_drift", "[[probe]]")
    assert (found.settings.checks.max_drift, found.settings.probe) == (None, ())
    assert list_judging(Settings) < need_no_restart(Settings)


# --- agreement ---------------------------------------------------------------------------


def test_hosts_with_the_same_settings_and_the_same_model_agree(tmp_path: Path) -> None:
    one, other = (model(tmp_path / name) for name in ("one", "other"))
    second = (f"engine.model={other}", "engine.node_rank=1", "server.socket=/run/other.sock")
    theirs = list_facts(two_hosts(*second))
    assert find_differences(list_facts(two_hosts(f"engine.model={one}")), theirs) == []


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("engine.tp=4", "tp is 4 there and 2 here"),
        ("engine.dtype=float32", "dtype is float32 there and auto here"),
        ("engine.args.page_size=16", "[engine.args] page_size is given there and not here"),
        ("reload.shadow_share=0.5", "[reload] shadow_share is 0.5 there and 0.25 here"),
        ("checks.max_drift=2", "[checks] max_drift is 2.0 there and null here"),
        ("checks.nonfinite=allow", '[checks] nonfinite is "allow" there and "reject" here'),
        ('probe=[{prompt="hi"}]', "[[probe]] is another there than here"),
    ],
)
def test_hosts_say_in_which_setting_they_differ(other: str, said: str) -> None:
    assert find_differences(list_facts(two_hosts()), list_facts(two_hosts(other))) == [said]


def test_hosts_say_which_argument_has_another_value_and_no_secret() -> None:
    here, there = (f'engine.args={{page_size={n}, api_key="hf_{n}"}}' for n in (1, 16))
    own, theirs = list_facts(two_hosts(here)), list_facts(two_hosts(there))
    assert find_differences(own, theirs) == ["[engine.args] page_size is 16 there and 1 here"]
    assert "hf_" not in str(own)


def test_hosts_say_which_file_of_the_model_is_another(tmp_path: Path) -> None:
    one, other = (model(tmp_path / name) for name in ("one", "other"))
    (other / "tokenizer.json").write_text("{'other': 1}")
    (other / "merges.txt").touch()
    (other / "README.md").touch()
    own, theirs = (list_facts(two_hosts(f"engine.model={each}")) for each in (one, other))
    assert find_differences(own, theirs) == [
        "the model's tokenizer.json is another there than here",
        "the model's merges.txt is given there and not here",
    ]


def test_a_model_that_cannot_be_read_is_a_fault_of_this_host(tmp_path: Path) -> None:
    (model(tmp_path) / "merges.txt").mkdir()
    with pytest.raises(ConfigError, match=r"\[engine\] model: .*merges\.txt cannot be read"):
        list_facts(two_hosts(f"engine.model={tmp_path}"))


def test_hosts_say_which_package_is_another_or_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    own = list_facts(two_hosts())
    older = {"jax": "0.1", "sglang-jax": ""}
    monkeypatch.setattr(rank_group, "version_of", lambda name: older.get(name, own.get(name)))
    assert find_differences(own, list_facts(two_hosts())) == [
        f"sglang-jax is not installed there and {own['sglang-jax']} here",
        f"jax is 0.1 there and {own['jax']} here",
    ]


def model(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    return folder
