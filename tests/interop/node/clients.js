// Clients by kafkajs, as processes of their own: a member of a group, or a loop that copies a topic in transactions.
//
//   member BOOTSTRAP GROUP TOPIC
//   copy BOOTSTRAP SOURCE TARGET GROUP    the group is the transactional id too
//
// A member prints the value of each record that it has read, and commits after each batch. SIGTERM has it leave its
// group.
"use strict";

const { Kafka, logLevel } = require("kafkajs");

const SESSION_MS = 6000;
const RECORDS = 5; // of a transaction, at most

const [program, bootstrap, ...names] = process.argv.slice(2);
const kafka = new Kafka({ brokers: bootstrap.split(","), logLevel: logLevel.WARN, retry: { initialRetryTime: 50 } });

function consumerOf(group) {
  const consumer = kafka.consumer({
    groupId: group,
    sessionTimeout: SESSION_MS,
    heartbeatInterval: 200,
    maxWaitTimeInMs: 100,
    readUncommitted: false,
  });
  consumer.on(consumer.events.CRASH, ({ payload }) => {
    if (!payload.restart) process.exit(1);
  });
  process.on("SIGTERM", () => consumer.disconnect().then(() => process.exit(0)));
  return consumer;
}

async function member(group, topic) {
  const consumer = consumerOf(group);
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  await consumer.run({ eachMessage: async ({ message }) => console.log(String(message.value)) });
}

async function copy(source, target, group) {
  const producer = kafka.producer({ transactionalId: group, maxInFlightRequests: 1, idempotent: true });
  await producer.connect(); // ends what the process before has left open, before offsets are read
  const consumer = consumerOf(group);
  await consumer.connect();
  await consumer.subscribe({ topics: [source], fromBeginning: true });
  await consumer.run({
    autoCommit: false,
    eachBatch: async ({ batch, resolveOffset, heartbeat, isRunning, isStale }) => {
      const { partition, messages } = batch;
      for (let first = 0; first < messages.length && isRunning() && !isStale(); first += RECORDS) {
        const found = messages.slice(first, first + RECORDS);
        const last = BigInt(found[found.length - 1].offset);
        const transaction = await producer.transaction();
        try {
          await transaction.send({ topic: target, messages: found.map(({ value }) => ({ value, partition })) });
          const partitions = [{ partition, offset: String(last + 1n) }];
          await transaction.sendOffsets({ consumerGroupId: group, topics: [{ topic: source, partitions }] });
          await transaction.commit();
        } catch (error) {
          await transaction.abort();
          throw error;
        }
        resolveOffset(String(last));
        await heartbeat();
      }
    },
  });
}

({ member, copy })[program](...names).catch((error) => {
  console.error(error);
  process.exit(1);
});
