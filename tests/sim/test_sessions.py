"""Sessions of simulated brokers with the store: another is requested after each, as the server does."""

from __future__ import annotations

from kreplog.sim.brokers.broker import BrokerProcess
from kreplog.sim.machines.disk import Disks
from kreplog.sim.scenarios.scenario_cluster import ScenarioCluster
from kreplog.sim.scenarios.scenario_commands import Commands


def test_a_stopping_broker_that_loses_its_session_requests_another_and_does_not_register() -> None:
    with Disks() as disks:
        cluster = ScenarioCluster(disks)
        commands = Commands(cluster)
        commands.do_brokers(["1", "2"])
        commands.do_topic(["t", "replicas", "2,1"])
        cluster.run_ms(150)
        process = cluster.machines[2].process
        assert isinstance(process, BrokerProcess) and process.link.session is not None
        lost = process.link.session
        commands.do_cut(["1", "2"])  # the controller does not respond, so that the broker does not exit
        process.shut_down(lambda: None)
        commands.do_expire(["2"])
        assert cluster.run_while(lambda: process.link.session in (lost, None), 2000), "no other session"
        assert process.alive and process.registration.registered is None
