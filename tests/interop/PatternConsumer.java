// Consumes so many records of the topics that match an expression, matched by the coordinator, and prints their values.
// Arguments: bootstrap servers, group, expression, count.
import java.time.Duration;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.serialization.StringDeserializer;

public class PatternConsumer {
    public static void main(String[] arguments) {
        Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0], "group.id", arguments[1],
            "group.protocol", "consumer", "auto.offset.reset", "earliest");
        StringDeserializer text = new StringDeserializer();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings, text, text)) {
            consumer.subscribe(new SubscriptionPattern(arguments[2]));
            for (int left = Integer.parseInt(arguments[3]); left > 0; )
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
                    System.out.println(record.value());
                    left--;
                }
        }
    }
}
