// One member of a group whose read-process-write loop copies a topic until SIGTERM: what tests/integration/copy_member.py
// is by librdkafka. Each record goes to the partition that it was read from, as `outcome/offset/value`; one transaction in
// eight is aborted. Errors are printed, and the loop goes on.
// Arguments: bootstrap servers, the topic read, the topic written, the group, group.protocol, the transactional id.
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class CopyMember {
    private static volatile boolean leaving;

    private final Map<String, Object> connection;
    private final String target;
    private final String transactionalId;
    private final KafkaConsumer<String, String> consumer;
    private KafkaProducer<String, String> producer;

    public static void main(String[] arguments) {
        Thread copying = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            leaving = true;
            try {
                copying.join();
            } catch (InterruptedException ended) {
                Thread.currentThread().interrupt();
            }
        }));
        try {
            new CopyMember(arguments).run();
        } catch (Throwable unexpected) {
            unexpected.printStackTrace();
            Runtime.getRuntime().halt(1);  // an exit would wait for this thread
        }
    }

    private CopyMember(String[] arguments) {
        connection = Map.of("bootstrap.servers", arguments[0], "reconnect.backoff.ms", 10,
            "reconnect.backoff.max.ms", 200, "retry.backoff.ms", 20, "retry.backoff.max.ms", 200,
            "request.timeout.ms", 8000, "socket.connection.setup.timeout.ms", 2000, "metadata.max.age.ms", 2000);
        target = arguments[2];
        transactionalId = arguments[5];
        Map<String, Object> settings = new HashMap<>(connection);
        settings.putAll(Map.of("group.id", arguments[3], "group.protocol", arguments[4], "enable.auto.commit", false,
            "auto.offset.reset", "earliest", "isolation.level", "read_committed", "fetch.max.wait.ms", 100,
            "max.poll.records", 200, "default.api.timeout.ms", 30_000));
        if (arguments[4].equals("classic"))
            settings.putAll(Map.of("session.timeout.ms", 6000, "heartbeat.interval.ms", 500));
        consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(arguments[1]));
    }

    private void run() {
        for (int number = 0; !leaving; number++) {
            try {
                if (producer == null)
                    producer = newProducer();
                if (copy(number % 8 == 7))
                    continue;
            } catch (KafkaException error) {
                report(error);
                abort();
            }
            rewind();
        }
        consumer.close();
    }

    /** A producer that has fenced the one before it, whose transaction is ended. */
    private KafkaProducer<String, String> newProducer() {
        Map<String, Object> settings = new HashMap<>(connection);
        settings.putAll(Map.of("transactional.id", transactionalId, "transaction.timeout.ms", 8000,
            "delivery.timeout.ms", 9000, "max.block.ms", 30_000, "linger.ms", 2));
        KafkaProducer<String, String> made =
            new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        try {
            made.initTransactions();
        } catch (KafkaException error) {
            made.close(Duration.ZERO);
            throw error;
        }
        return made;
    }

    /** Whether to go on from here; else from the committed offsets. The offsets are committed as of the generation in
     * which the records were read: after a rebalance it is another, and so is the owner of their partitions. */
    private boolean copy(boolean aborts) {
        ConsumerGroupMetadata before = consumer.groupMetadata();
        ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
        if (records.isEmpty())
            return true;
        if (!consumer.groupMetadata().equals(before))
            return false;
        producer.beginTransaction();
        Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
        String outcome = aborts ? "abort" : "commit";
        for (ConsumerRecord<String, String> record : records) {
            ends.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
            String value = outcome + "/" + record.offset() + "/" + record.value();
            producer.send(new ProducerRecord<>(target, record.partition(), null, value));
        }
        producer.sendOffsetsToTransaction(ends, before);
        if (aborts) {
            producer.flush();
            producer.abortTransaction();
        } else {
            producer.commitTransaction();
        }
        return !aborts;
    }

    /** Where the producer cannot, the next one ends the transaction. */
    private void abort() {
        if (producer == null)
            return;
        try {
            producer.abortTransaction();
        } catch (KafkaException | IllegalStateException error) {  // the latter after a commit that has timed out
            report(error);
            producer.close(Duration.ZERO);
            producer = null;
        }
    }

    /** To the committed offsets, once no transaction may change them. */
    private void rewind() {
        while (!leaving) {
            try {
                consumer.committed(consumer.assignment()).forEach(
                    (partition, offset) -> consumer.seek(partition, offset == null ? 0 : offset.offset()));
                return;
            } catch (KafkaException error) {
                report(error);
                consumer.poll(Duration.ZERO);
            }
        }
    }

    private static void report(RuntimeException error) {
        System.err.println(error);
    }
}
