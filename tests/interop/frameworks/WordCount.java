// Kafka Streams with exactly_once_v2: counts the words of the topic "lines" into "counts", one record for each word that
// it reads. Arguments: brokers, directory for its state. Takes 2 ms for a word. Runs until it is killed.
import java.util.Arrays;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;

public class WordCount {
    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.putAll(Map.of(
            "application.id", "word-count",
            "bootstrap.servers", arguments[0],
            "state.dir", arguments[1],
            "processing.guarantee", "exactly_once_v2",
            "replication.factor", "3",
            "commit.interval.ms", "700",
            "statestore.cache.max.bytes", "0",
            "default.key.serde", Serdes.String().getClass().getName(),
            "default.value.serde", Serdes.String().getClass().getName()));
        settings.put("consumer.auto.offset.reset", "earliest");
        settings.put("consumer.session.timeout.ms", "6000");
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream("lines")
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word)
            .count()
            .toStream()
            .mapValues(WordCount::written)
            .to("counts");
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setStateListener((now, before) -> System.out.println("state " + now));
        streams.start();
    }

    private static String written(long count) {
        try {
            Thread.sleep(2);  // so that it is killed in its work, between two transactions
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
        return String.valueOf(count);
    }
}
