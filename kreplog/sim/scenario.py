"""Scenario files: a cluster is led through a story, step by step, and what its cores do stands below each step.

A file is a row of blocks with an empty line after each: a comment in plain words (`#`), commands, a line `----`, and
what the cores did. `run` carries out the commands and gives the text back with what they did this time; a test compares
the two, or rewrites the file. `expect` commands are not output: one that does not hold raises ScenarioError, so what
matters cannot be rewritten away, and at the end the simulator's checkers judge the whole story.

The commands, and how they are written, are described in tests/scenarios/README.md. Source: the datadriven tests of
etcd's raft.
"""

from __future__ import annotations

import json
import re
import shlex
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from kreplog.config import ReplicationConfig, TopicConfig
from kreplog.core import messages as m
from kreplog.core import nodes
from kreplog.core.controller import rebalance
from kreplog.core.controller.assignment import assign
from kreplog.core.replication.partition import Partition, Role
from kreplog.errors import ErrorCode, KreplogError
from kreplog.sim.broker import BrokerProcess, Machine
from kreplog.sim.disk import Disks
from kreplog.sim.faults import Plan
from kreplog.sim.history import Invoke, Ok, Read
from kreplog.sim.scheduler import MS
from kreplog.sim.stage import Stage, Way, assignment, state
from kreplog.sim.trace import describe
from kreplog.types import Create, LeaderAndIsr, TopicPartition

RULE = "----"
STEP_MS = 2
"""What passes after a command that sends or delivers something: a message is under way for 0.6 ms."""

LIMIT_MS = 30_000
"""How long anything that is waited for may take, in virtual time."""

_ACKS = {"all": -1, "1": 1, "0": 0}


class ScenarioError(Exception):
    """A command that cannot be carried out, or an expectation that does not hold; the message names the line."""


class _Batch(NamedTuple):
    """What a producer has sent and may have to send again."""

    partition: TopicPartition
    values: tuple[str, ...]
    acks: int
    sequence: int


class _Producer:
    """acked, refused: what was answered, in order; waiting: what was not."""

    def __init__(self, producer_id: int) -> None:
        self.id = producer_id
        self.sequences: dict[TopicPartition, int] = {}
        self.acked: list[str] = []
        self.refused: list[str] = []
        self.waiting: list[_Batch] = []


def run(text: str) -> str:
    """Play `text`; the same text with what the cores did. Raises ScenarioError."""
    with Disks() as disks:
        play = _Play(disks)
        told = []
        for number, block in _blocks(text):
            told.append(_played(play, number, block))
        play.judge()
    return "\n".join(told)


def _blocks(text: str) -> Iterator[tuple[int, list[str]]]:
    """(number of its first line, lines) of each block."""
    block: list[str] = []
    first = 1
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.strip():
            first = first if block else number
            block.append(line.rstrip())
        elif block:
            yield first, block
            block = []


def _played(play: _Play, first: int, block: Sequence[str]) -> str:
    source = block[: block.index(RULE)] if RULE in block else block
    commands = [(first + index, line) for index, line in enumerate(source) if not line.startswith("#")]
    play.lines.clear()
    for number, line in commands:
        try:
            play.do(line)
        except ScenarioError as error:
            told = "\n    ".join(play.lines[-30:])
            raise ScenarioError(f"line {number}: {line}\n  {error}\n  told in this block:\n    {told}") from error
        except (KreplogError, ValueError, KeyError, IndexError) as error:
            raise ScenarioError(f"line {number}: {line}\n  {type(error).__name__}: {error}") from error
    output = [RULE, *(play.lines or ["ok"])] if commands else []
    return "\n".join([*source, *output, ""])


class _Play:
    """One file being played."""

    def __init__(self, disks: Disks) -> None:
        self.stage = Stage(_plan(), disks)
        self.lines = self.stage.lines
        self.everything: list[str] = []
        self._admin = self.stage.store.store.connect(2**31 - 1)
        self._producers: dict[str, _Producer] = {}
        self._consumed: dict[str, list[str]] = {}
        self._topics = 0

    def do(self, line: str) -> None:
        """Carry out one command line."""
        words = shlex.split(line)
        command = getattr(self, "_do_" + words[0].replace("-", "_"), None)
        if command is None:
            raise ScenarioError(f"there is no command {words[0]}")
        before = len(self.lines)
        command(words[1:])
        self.everything.extend(self.lines[before:])

    def judge(self) -> None:
        """At the end: no core failed, and nothing that the checkers watch is wrong."""
        stage = self.stage
        at_rest = bool(stage.machines) and stage.unrest() is None
        found = [f"{kind}: {text}" for kind, text, _ in [*stage.failures, *stage.verdict(at_rest)]]
        if found:
            raise ScenarioError("at the end the checkers find\n  " + "\n  ".join(found))

    # Setting up

    def _do_config(self, words: Sequence[str]) -> None:
        """Settings of the brokers, before they start."""
        plan = self.stage.plan
        for name, value in _settings(words).items():
            if name == "session_timeout_ms":
                plan = replace(plan, session_timeout_ms=int(value))
            else:
                plan = replace(plan, config=replace(plan.config, **_setting(plan.config, name, value)))
        self.stage.plan = plan

    def _do_brokers(self, words: Sequence[str]) -> None:
        for word in words:
            self._start(int(word))

    def _start(self, broker: int) -> None:
        stage = self.stage
        machine = stage.machines.get(broker)
        if machine is None:
            machine = stage.machines[broker] = Machine(broker, stage.disks.disk(broker), None)
        stage.start_machine(machine)
        stage.run_ms(50)

    def _do_topic(self, words: Sequence[str]) -> None:
        """topic NAME replicas 1,2,3 2,3,1 [setting=value]; topic NAME partitions N factor K [setting=value]."""
        plain = [word for word in words if "=" not in word]
        config = TopicConfig()
        for name, value in _settings(word for word in words if "=" in word).items():
            config = replace(config, **_setting(config, name, value))
        if plain[1] == "replicas":
            placed = {number: _ids(one) for number, one in enumerate(plain[2:])}
        else:
            placed = assign(dict.fromkeys(sorted(self.stage.machines)), int(plain[2]), int(plain[4]))
        self._topics += 1
        topic_id = urlsafe_b64encode(self._topics.to_bytes(16, "big")).decode().rstrip("=")
        content = nodes.Topic(topic_id, {number: nodes.Assignment(one) for number, one in placed.items()})
        self._admin.multi(
            (
                Create(nodes.topic_config(plain[0]), nodes.encode_topic_config(config)),
                Create(nodes.topic(plain[0]), nodes.encode_topic(content)),
            )
        )
        self.stage.store.changed()
        self.stage.run_ms(50)

    # Time

    def _do_run(self, words: Sequence[str]) -> None:
        """run 20ms; run 3s; run until "WORDS OF A LINE"."""
        if words[0] != "until":
            self.stage.run_ms(_ms(words[0]))
            return
        seen: list[bool] = []
        self.stage.on_line(words[1], lambda: seen.append(True))
        if not self.stage.run_while(lambda: not seen, LIMIT_MS):
            raise ScenarioError(f"nobody says {words[1]!r} within {LIMIT_MS} ms")

    def _do_settle(self, _words: Sequence[str]) -> None:
        """Run until all is at rest."""
        stage = self.stage
        if not stage.run_while(lambda: stage.unrest() is not None, LIMIT_MS, 10):
            raise ScenarioError(f"not at rest after {LIMIT_MS} ms: {stage.unrest()}")

    def _do_trace(self, words: Sequence[str]) -> None:
        """trace silent; trace with states messages; trace plain."""
        self.stage.silent = words[0] == "silent"
        self.stage.states = "states" in words
        self.stage.messages = "messages" in words

    # Clients

    def _do_produce(self, words: Sequence[str]) -> None:
        """produce p1 t-0 a b [acks=all] [to=2]: one batch to the leader that the store names, or to another."""
        settings = _settings(words)
        name, where, *values = [word for word in words if "=" not in word]
        partition = TopicPartition.parse(where)
        producer = self._producers.setdefault(name, _Producer(1000 + len(self._producers)))
        sequence = producer.sequences.get(partition, 0)
        producer.sequences[partition] = sequence + len(values)
        batch = _Batch(partition, tuple(values), _ACKS[settings.get("acks", "all")], sequence)
        producer.waiting.append(batch)
        self.stage.history.add(Invoke(**self._event(name, producer, batch)))
        self._post(name, producer, batch, settings)

    def _do_retry(self, words: Sequence[str]) -> None:
        """retry p1 [to=2]: the oldest batch that has no answer yet."""
        producer = self._producers[words[0]]
        self._post(words[0], producer, producer.waiting[0], _settings(words))

    def _post(self, name: str, producer: _Producer, batch: _Batch, settings: dict[str, str]) -> None:
        stage = self.stage
        values = [value.encode() for value in batch.values]
        records = stage.disks.codec.encode(producer.id, 0, batch.sequence, values, stage.scheduler.now_ms)
        timeout_ms = int(settings.get("timeout_ms", "1500"))
        request = m.ProduceRequest(batch.acks, timeout_ms, (m.ProducePartition(batch.partition, records),))
        leader = int(settings.get("to", stage.leader_of(batch.partition)))
        if leader < 0:
            raise ScenarioError(f"{batch.partition} has no leader")
        if batch.acks == 0:
            stage.network.send(name, f"b{leader}", "client", request)
        else:
            answered = partial(self._produced, name, producer, batch)
            stage.network.call(name, f"b{leader}", "client", request, answered, (timeout_ms + 500) * MS)
        stage.run_ms(STEP_MS)

    def _produced(self, name: str, producer: _Producer, batch: _Batch, response: m.ProduceResponse | None) -> None:
        what = f"{' '.join(batch.values)} for {batch.partition}"
        if response is None:
            self.stage.tell(f"{name} gets no answer to {what}")
            return
        answer = response.partitions[0]
        if answer.error is not ErrorCode.NONE:
            self.stage.tell(f"{name} is refused {what}: {answer.error.name}")
            producer.refused.append(answer.error.name)
            return
        end = answer.base_offset + len(batch.values)
        self.stage.tell(f"{name} is told that {batch.partition} [{answer.base_offset}, {end}) is {_list(batch.values)}")
        if batch in producer.waiting:
            producer.waiting.remove(batch)
            producer.acked.extend(batch.values)
            self.stage.history.add(Ok(**self._event(name, producer, batch), base_offset=answer.base_offset))

    def _event(self, name: str, producer: _Producer, batch: _Batch) -> dict[str, Any]:
        return {
            "at_ms": self.stage.scheduler.now_ms,
            "partition": batch.partition,
            "topic_id": self._topic_id(batch.partition),
            "client": name,
            "acks": batch.acks,
            "producer_id": producer.id,
            "sequence": batch.sequence,
            "values": batch.values,
        }

    def _do_consume(self, words: Sequence[str]) -> None:
        """consume c1 t-0 [from=0] [at=2]: all that the leader shows from an offset on."""
        settings = _settings(words)
        name, where = [word for word in words if "=" not in word]
        partition = TopicPartition.parse(where)
        offset = int(settings.get("from", 0))
        asked = m.FetchPartition(partition, self._topic_id(partition), -1, offset)
        answer = self._ask(name, partition, m.FetchRequest(m.CONSUMER, -1, 0, 0, 1 << 20, (asked,)), settings)
        if answer is None or answer.error is not ErrorCode.NONE or answer.partitions[0].error is not ErrorCode.NONE:
            error = "no answer" if answer is None else (answer.error or answer.partitions[0].error).name
            self.stage.tell(f"{name} cannot read {partition} from {offset}: {error}")
            return
        found = answer.partitions[0]
        records = [one for one in self.stage.disks.codec.decode(found.records) if one.offset >= offset]
        for one in records:
            self.stage.history.add(
                Read(
                    at_ms=self.stage.scheduler.now_ms,
                    partition=partition,
                    topic_id=self._topic_id(partition),
                    client=name,
                    leader=found.leader,
                    leader_epoch=found.leader_epoch,
                    offset=one.offset,
                    record_epoch=one.leader_epoch,
                    producer_id=one.producer_id,
                    sequence=one.sequence,
                    value=one.value.decode(),
                )
            )
        values = [one.value.decode() for one in records]
        self._consumed.setdefault(name, []).extend(values)
        told = f"{name} reads {partition} from {offset}: {_list(values)}"
        self.stage.tell(f"{told}; high watermark {found.high_watermark}")

    def _do_end(self, words: Sequence[str]) -> None:
        """end c1 t-0 [at=2]: where does the partition end, for a client?"""
        name, where = [word for word in words if "=" not in word]
        partition = TopicPartition.parse(where)
        request = m.ListOffsetsRequest((m.ListOffsetsPartition(partition, -1, m.LATEST),))
        answer = self._ask(name, partition, request, _settings(words))
        listed = None if answer is None else answer.partitions[0]
        if listed is None or listed.error is not ErrorCode.NONE:
            error = "no answer" if listed is None else listed.error.name
            self.stage.tell(f"{name} is not told the end of {partition}: {error}")
        else:
            self.stage.tell(f"{name} is told that {partition} ends at {listed.offset}")

    def _ask(self, name: str, partition: TopicPartition, request: Any, settings: dict[str, str]) -> Any:
        answers: list[Any] = []
        leader = settings.get("at", self.stage.leader_of(partition))
        self.stage.network.call(name, f"b{leader}", "client", request, answers.append, 1000 * MS)
        self.stage.run_while(lambda: not answers, 2000)
        return answers[0]

    # Faults

    def _do_crash(self, words: Sequence[str]) -> None:
        """crash 2 [unnoticed]: kill -9; the store hears of it at once, or only when the session times out."""
        self._kill(words, lost_cache=False)

    def _do_power_loss(self, words: Sequence[str]) -> None:
        """power-loss 2: what was not fsynced is gone as well."""
        self._kill(words, lost_cache=True)

    def _kill(self, words: Sequence[str], lost_cache: bool) -> None:
        stage = self.stage
        stage.plan = replace(stage.plan, quick_notice="unnoticed" not in words)
        for word in words:
            if word != "unnoticed":
                stage.crash_machine(stage.machines[int(word)], lost_cache)

    def _do_restart(self, words: Sequence[str]) -> None:
        for word in words:
            if self.stage.machines[int(word)].process is not None:
                raise ScenarioError(f"broker {word} is up")
            self._start(int(word))

    def _do_shutdown(self, words: Sequence[str]) -> None:
        """Announced, in good order."""
        done: list[bool] = []
        self._process(words[0]).shut_down(lambda: done.append(True))
        if not self.stage.run_while(lambda: not done, LIMIT_MS):
            raise ScenarioError(f"broker {words[0]} does not come to an end")

    def _do_pause(self, words: Sequence[str]) -> None:
        for word in words:
            self._process(word).pause()

    def _do_resume(self, words: Sequence[str]) -> None:
        for word in words:
            self._process(word).resume()

    def _do_cut(self, words: Sequence[str]) -> None:
        """cut 1 2; cut 1->2; cut 1 store."""
        for source, destination in _links(words):
            self.stage.network.cut(source, destination)

    def _do_heal(self, words: Sequence[str]) -> None:
        for source, destination in _links(words):
            self.stage.network.heal(source, destination)
        if not words:
            self.stage.network.heal_all()

    def _do_expire(self, words: Sequence[str]) -> None:
        """The store ends the session of a broker that is well."""
        session = self._process(words[0]).link.session
        if session is None:
            raise ScenarioError(f"broker {words[0]} has no session")
        self.stage.store.expire(session.id)

    def _do_lose_replies(self, words: Sequence[str]) -> None:
        """lose-replies 1 2: the next two answers of the store to broker 1 are lost, their connections with them."""
        self._process(words[0]).link.lose_replies(int(words[1]))

    def _do_fail_disk(self, words: Sequence[str]) -> None:
        self.stage.machines[int(words[0])].disk.fail()

    def _do_repair_disk(self, words: Sequence[str]) -> None:
        self.stage.machines[int(words[0])].disk.repair()

    def _do_fsync(self, words: Sequence[str]) -> None:
        """fsync 1 t-0: what it has written so far survives a power loss."""
        log = self.stage.machines[int(words[0])].disk.log(TopicPartition.parse(words[1]))
        if log is None:
            raise ScenarioError(f"broker {words[0]} has no open log of {words[1]}")
        log.flush()

    def _do_crash_controller(self, words: Sequence[str]) -> None:
        """crash-controller after 3 effects; crash-controller at "WORDS OF A LINE": before anything else happens."""
        if words[0] == "at":
            self.stage.on_line(words[1], self._crash_controller)
            return
        process = self._process(str(self.stage.controller()))
        process.fuse, process.blow = int(words[1]), self._crash_controller

    def _crash_controller(self) -> None:
        controller = self.stage.controller()
        self.stage.tell(f"b{controller} crashes")
        self.stage.crash_machine(self.stage.machines[controller], lost_cache=False)

    # Messages on their way

    def _do_hold(self, words: Sequence[str]) -> None:
        self.stage.network.hold(_way(words))

    def _do_release(self, words: Sequence[str]) -> None:
        self.stage.network.release(_way(words))
        self.stage.run_ms(STEP_MS)

    def _do_deliver(self, words: Sequence[str]) -> None:
        self._one_held(words, "delivered", self.stage.network.deliver)

    def _do_drop(self, words: Sequence[str]) -> None:
        self._one_held(words, "dropped", self.stage.network.drop)

    def _one_held(self, words: Sequence[str], verb: str, act: Callable[[Way], Any]) -> None:
        way = _way(words)
        held = self.stage.network.held.get(way)
        if not held:
            raise ScenarioError(f"nothing is held on {way}")
        self.stage.tell(f"({way} {verb}: {describe(held[0][2])})")
        act(way)
        self.stage.run_ms(STEP_MS)

    # Operators

    def _do_reassign(self, words: Sequence[str]) -> None:
        self._asked(self.stage.admin.reassign(TopicPartition.parse(words[0]), _ids(words[1])))

    def _do_cancel(self, words: Sequence[str]) -> None:
        self._asked(self.stage.admin.cancel_reassignment(TopicPartition.parse(words[0])))

    def _do_delete(self, words: Sequence[str]) -> None:
        self._asked(self.stage.admin.delete_topic(words[0]))

    def _do_elect(self, _words: Sequence[str]) -> None:
        """Every partition's preferred leader."""
        self._asked(self.stage.admin.elect_preferred())

    def _asked(self, taken: bool) -> None:
        if not taken:
            raise ScenarioError("the store does not take the request")

    def _do_add_brokers(self, words: Sequence[str]) -> None:
        """add-brokers 3 4 --plan: what would move. add-brokers 3 4: start them and have it moved."""
        new = [int(word) for word in words if not word.startswith("-")]
        known = dict.fromkeys(broker for broker in sorted(self.stage.machines) if broker not in new)
        plan = rebalance.add_brokers(self._assignment(), known, dict.fromkeys(new))
        if "--plan" in words:
            copied = {broker: sum(move.target == broker for move in plan.moves) for broker in new}
            told = ", ".join(f"{count} to b{broker}" for broker, count in copied.items())
            self.stage.tell(
                f"{len(plan.moves)} replicas are to be copied ({told}), {len(plan.changed)} partitions change"
            )
            for broker, load in plan.after.items():
                before = plan.before[broker]
                self.stage.tell(
                    f"b{broker}: {before.replicas} -> {load.replicas} replicas, "
                    f"{before.leaders} -> {load.leaders} preferred leaders"
                )
            return
        for broker in new:
            self._start(broker)
        for partition, replicas in plan.changed.items():
            self._asked(self.stage.admin.reassign(partition, replicas))

    def _assignment(self) -> dict[TopicPartition, tuple[int, ...]]:
        return {
            TopicPartition(name, number): one.replicas
            for name, topic in self.stage.topics().items()
            for number, one in topic.partitions.items()
        }

    # Looking

    def _do_show(self, words: Sequence[str]) -> None:
        """show t-0; show leaders t; show load t; show controller."""
        silent, self.stage.silent = self.stage.silent, False
        match words:
            case ["leaders", name]:
                self._show_leaders(name)
            case ["load", name]:
                self._show_load(name)
            case ["controller"]:
                self.stage.tell(f"the controller is {_broker(self.stage.controller())}")
            case _:
                for word in words:
                    self._show(TopicPartition.parse(word))
        self.stage.silent = silent

    def _show(self, partition: TopicPartition) -> None:
        tell = self.stage.tell
        one = self.stage.state_of(partition)
        topic = self.stage.topics().get(partition.topic)
        if topic is None or partition.partition not in topic.partitions:
            tell(f"{partition}: there is none")
            return
        replicas = topic.partitions[partition.partition]
        tell(f"{partition} {assignment(replicas)}: {'no state' if one is None else state(one)}")
        for broker in replicas.replicas:
            replica = self._replica(broker, partition)
            if replica is None:
                down = self.stage.machines[broker].process is None
                tell(f"  b{broker} {'is down' if down else 'has none'}")
                continue
            log = replica.log
            told = " ".join(self._log(broker, partition))
            epochs = " ".join(f"{epoch}@{start}" for epoch, start in log.epochs) or "none"
            role = f"{replica.role.name.lower()} in epoch {replica.leader_epoch}"
            tell(
                f"  b{broker} {role}: [{log.log_start}, {log.leo}) {told or 'empty'}; "
                f"high watermark {replica.high_watermark}, epochs {epochs}"
            )

    def _show_leaders(self, name: str) -> None:
        """Who leads what, and who is in sync there."""
        led: dict[int, list[str]] = {}
        for partition in self.stage.partitions():
            if partition.topic == name:
                led.setdefault(self.stage.leader_of(partition), []).append(str(partition.partition))
        for broker, partitions in sorted(led.items()):
            self.stage.tell(f"{_broker(broker)} leads {len(partitions)}: {' '.join(partitions)}")

    def _show_load(self, name: str) -> None:
        for broker in sorted(self.stage.machines):
            replicas, leaders = self._load(name, broker)
            self.stage.tell(f"b{broker} has {replicas} replicas and leads {leaders}")

    def _load(self, name: str, broker: int) -> tuple[int, int]:
        """Replicas of a topic on a broker, and how many of its partitions that leads."""
        partitions = [one for one in self.stage.partitions() if one.topic == name]
        replicas = sum(broker in of for one, of in self._assignment().items() if one.topic == name)
        return replicas, sum(self.stage.leader_of(one) == broker for one in partitions)

    # Expecting

    def _do_expect(self, words: Sequence[str]) -> None:
        """expect WHAT .. = VALUES; see the README for what there is."""
        if words[0] in ("said", "never"):
            found = any(words[1] in line for line in [*self.everything, *self.lines])
            if found != (words[0] == "said"):
                raise ScenarioError(f"{words[1]!r} was {'never said' if not found else 'said'}")
            return
        if words[0] == "rest":
            if (unrest := self.stage.unrest()) is not None:
                raise ScenarioError(f"not at rest: {unrest[0]}")
            return
        if "=" not in words:
            raise ScenarioError("an expectation needs an = between what and values, with a space on either side")
        at = words.index("=")
        (kind, *of), wanted = words[:at], [word for word in words[at + 1 :] if word != "none"]
        for who, found_words in self._facts(kind, of):
            if found_words != wanted:
                raise ScenarioError(f"{kind} {who} is {_list(found_words)}, not {_list(wanted)}")

    def _facts(self, kind: str, of: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
        """(of whom, what it is) for each one that an expectation is about."""
        match kind:
            case "log" | "hw" | "epochs" | "role" | "believes":
                partition = TopicPartition.parse(of[0])
                for word in of[1:]:
                    yield f"{partition} on b{word}", self._replica_fact(kind, int(word), partition)
            case "leader" | "epoch" | "isr" | "eligible" | "replicas":
                for word in of:
                    yield word, self._partition_fact(kind, TopicPartition.parse(word))
            case "load" | "leads":
                for word in of[1:]:
                    yield f"{of[0]} of b{word}", [str(self._load(of[0], int(word))[kind == "leads"])]
            case "acked" | "waiting" | "refused":
                producer = self._producers[of[0]]
                waiting = [value for batch in producer.waiting for value in batch.values]
                yield of[0], {"acked": producer.acked, "refused": producer.refused}.get(kind, waiting)
            case "consumed":
                yield of[0], self._consumed.get(of[0], [])
            case "controller":
                yield "", _shown([self.stage.controller()])
            case "controller-epoch":
                node = self.stage.store.store.peek(nodes.CONTROLLER_EPOCH)
                yield "", [] if node is None else [node.data.decode()]
            case "topics":
                yield "", sorted(self.stage.topics())
            case "disk":
                yield f"of b{of[0]}", [str(one) for one in self.stage.machines[int(of[0])].disk.on_disk()]
            case "registered":
                node = self.stage.store.store.peek(nodes.broker(int(of[0])))
                yield of[0], [] if node is None else [str(json.loads(node.data)["stopping"]).lower()]
            case _:
                raise ScenarioError(f"nothing is known of {kind}")

    def _replica_fact(self, kind: str, broker: int, partition: TopicPartition) -> list[str]:
        replica = self._replica(broker, partition)
        if replica is None:
            return []
        match kind:
            case "log":
                return self._log(broker, partition)
            case "hw":
                return [str(replica.high_watermark)]
            case "epochs":
                return [f"{epoch}@{start}" for epoch, start in replica.log.epochs]
            case "role":
                return [replica.role.name.lower()]
            case _:
                return _shown(replica.isr)

    def _partition_fact(self, kind: str, partition: TopicPartition) -> list[str]:
        if kind == "replicas":
            return _shown(self._assignment().get(partition, ()))
        one = self.stage.state_of(partition) or LeaderAndIsr(-1, -1, ())
        match kind:
            case "leader":
                return _shown([one.leader])
            case "epoch":
                return [str(one.leader_epoch)]
            case "isr":
                return _shown(one.isr)
            case _:
                return _shown(one.eligible)

    # Finding

    def _process(self, word: str) -> BrokerProcess:
        process = self.stage.machines[int(word)].process
        if process is None:
            raise ScenarioError(f"broker {word} is down")
        return process

    def _replica(self, broker: int, partition: TopicPartition) -> Partition | None:
        return self.stage.replica_of(broker, partition)

    def _log(self, broker: int, partition: TopicPartition) -> list[str]:
        log = self.stage.machines[broker].disk.log(partition)
        replica = self._replica(broker, partition)
        if log is None or replica is None or replica.role is Role.OFFLINE:
            return []
        found = log.state()
        return self.stage.values(log.read(found.log_start, found.leo, 1 << 30))

    def _topic_id(self, partition: TopicPartition) -> str:
        topic = self.stage.topics().get(partition.topic)
        return "" if topic is None else topic.topic_id


def _plan() -> Plan:
    """A cluster in which nothing happens by itself, with short times."""
    config = ReplicationConfig(
        replica_lag_time_max_ms=1000,
        replica_fetch_wait_max_ms=100,
        replica_fetch_backoff_ms=50,
        auto_leader_rebalance_enable=False,
    )
    return Plan(
        seed=0,
        brokers=0,
        racks=0,
        topics=(),
        config=config,
        session_timeout_ms=1000,
        fence_late_ms=0,
        quick_notice=True,
        native=False,
        producers=0,
        consumers=0,
        duration_ms=0,
        late=0.0,
        starved=(),
        kinds=(),
        actions=(),
    )


def _settings(words: Iterable[str]) -> dict[str, str]:
    """name=value, with Kafka's dots."""
    return {name.replace(".", "_"): value for name, _, value in (word.partition("=") for word in words) if value}


def _setting(config: TopicConfig | ReplicationConfig, name: str, value: str) -> dict[str, Any]:
    return {name: value == "true" if isinstance(getattr(config, name), bool) else int(value)}


def _ms(word: str) -> int:
    found = re.fullmatch(r"(\d+)(ms|s)", word)
    if found is None:
        raise ScenarioError(f"{word!r} is no time: write 20ms or 3s")
    return int(found[1]) * (1000 if found[2] == "s" else 1)


def _ids(word: str) -> tuple[int, ...]:
    return tuple(int(one) for one in word.split(","))


def _host(word: str) -> str:
    return f"b{word}" if word.isdigit() else word


def _links(words: Sequence[str]) -> list[tuple[str, str]]:
    if not words:
        return []
    source, arrow, destination = words[0].partition("->")
    if arrow:
        return [(_host(source), _host(destination))]
    one, other = _host(words[0]), _host(words[1])
    return [(one, other), (other, one)]


def _way(words: Sequence[str]) -> Way:
    """1->2 fetch; 1->2 fetch-answers."""
    ((source, destination),) = _links(words[:1])
    channel, dash, _ = words[1].partition("-")
    return Way(source, destination, channel, bool(dash))


def _broker(broker: int) -> str:
    return f"b{broker}" if broker >= 0 else "nobody"


def _shown(ids: Iterable[int]) -> list[str]:
    return [str(one) for one in ids if one >= 0]


def _list(values: Sequence[str]) -> str:
    return " ".join(values) or "nothing"
