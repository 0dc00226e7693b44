// Prints the APIs that Kafka's brokers offer to clients, a line each: key, name, first and last version.
import org.apache.kafka.common.message.ApiMessageType;

public class Apis {
    public static void main(String[] arguments) {
        for (ApiMessageType api : ApiMessageType.values())
            if (api.listeners().contains(ApiMessageType.ListenerType.BROKER))
                System.out.println(api.apiKey() + " " + api.name + " " + api.lowestSupportedVersion() + " "
                    + api.highestSupportedVersion(false));
    }
}
