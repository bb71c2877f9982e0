"""Checks of `hotreload doctor` for an engine over several hosts: can they meet?"""

import asyncio
import socket
from contextlib import suppress
from ipaddress import ip_address

from hotreload.cli import machine
from hotreload.cli.doctor_checks.advice import Advice, Facts
from hotreload.cli.doctor_checks.meeting import meet
from hotreload.errors import ConfigError
from hotreload.hosts.life.agreement import to_agree_on
from hotreload.hosts.life.meeting import ranks_of
from hotreload.hosts.upstream.joining import Ranks
from hotreload.settings.kinds import ports_of_a_meeting

REACH_SECONDS = 3.0
ONE_HOST = Advice("ok", "the engine lies on this host alone")


def check_hosts(facts: Facts) -> Advice:
    """Is rank 0's address one that the hosts can meet at?"""
    ranks = ranks_of(facts.settings)
    if ranks is None:
        return ONE_HOST
    host, port = ports_of_a_meeting(ranks.address)[0]
    try:
        address = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
    except OSError as fault:
        says = f"[engine] dist_init_addr: {host} cannot be resolved: {fault.strerror}"
        return Advice("fail", says, "name the address of rank 0, or have its name resolved")
    return _leads(facts, ranks, str(address)) if ranks.leads else _follows(ranks, str(address))


def check_host_ports(facts: Facts) -> Advice:
    """Whoever reaches the ports of a meeting decides what runs on every host."""
    ranks = ranks_of(facts.settings)
    if ranks is None:
        return ONE_HOST
    (host, first), *others = ports_of_a_meeting(ranks.address)
    ports = f"{first}, {' and '.join(str(port) for _, port in others)}"
    alone = "let the hosts of this engine alone reach them: a network of theirs"
    if facts.settings.engine.join_secret_file is None:
        says = f"ports {ports} of {host} ask for no password, and can run programs on every host"
        return Advice("warn", says, f"set [engine] join_secret_file, and {alone}")
    says = f"ports {ports} of {host} want the join secret; whoever reaches them can still disturb"
    return Advice("ok", f"{says}: {alone}")


def check_meeting(facts: Facts, within: float) -> Advice:
    """Do all hosts come, and have the same of all that must be the same?"""
    ranks = ranks_of(facts.settings)
    if ranks is None:
        raise ConfigError("--meet is for an engine over several hosts, and [engine] nnodes is 1")
    wrong = asyncio.run(meet(ranks, to_agree_on(facts.settings), within))
    if wrong:
        todo = "run this on all hosts at once, while their daemons are stopped"
        return Advice("fail", "; ".join(wrong), todo)
    return Advice("ok", f"all {ranks.count} hosts came, and have the same")


def _leads(facts: Facts, ranks: Ranks, address: str) -> Advice:
    if not _is_ours(address):
        says = f"[engine] dist_init_addr: {address} is no address of this host, which is rank 0"
        return Advice("fail", says, "name an address that rank 0 has, or set [engine] node_rank")
    for _, port in ports_of_a_meeting(ranks.address):
        taken = machine.tcp_listener(f"{address}:{port}")
        by = list(machine.holders(taken)) if taken else []
        if taken and not any(each in facts.daemon for each in by):
            who = f" by {', '.join(map(str, by))}" if by else ""
            todo = "end that, or set another [engine] dist_init_addr on all hosts"
            return Advice("fail", f"{address}:{port} is taken{who}", todo)
    if ip_address(address).is_loopback:
        says = f"[engine] dist_init_addr: {address} is reached from this host alone"
        return Advice("warn", says, "name an address that the other hosts reach")
    return Advice("ok", f"rank 0 of {ranks.count} can be met at {ranks.address}")


def _follows(ranks: Ranks, address: str) -> Advice:
    _, port = ports_of_a_meeting(ranks.address)[0]
    who = f"rank {ranks.own} of {ranks.count}"
    try:
        socket.create_connection((address, port), REACH_SECONDS).close()
    except ConnectionRefusedError:
        return Advice("ok", f"{who}: rank 0's host answers, and waits for nobody now")
    except OSError as fault:
        says = f"{who}: {ranks.address} is not reached: {fault}"
        return Advice("warn", says, "see whether rank 0's host runs, and what lies between")
    return Advice("ok", f"{who}: rank 0 can be reached at {ranks.address}")


def _is_ours(address: str) -> bool:
    with suppress(OSError), socket.socket() as there:
        there.bind((address, 0))
        return True
    return False
