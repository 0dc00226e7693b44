// Prints what Kafka's own classes read from a data directory (first argument) and its partition directories (the
// others), a line each: the offset checkpoints, the leader epochs, the topic id.
import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import kafka.server.checkpoints.OffsetCheckpointFile;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.storage.internals.checkpoint.LeaderEpochCheckpointFile;
import org.apache.kafka.storage.internals.checkpoint.PartitionMetadataFile;
import org.apache.kafka.storage.internals.log.EpochEntry;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import scala.jdk.javaapi.CollectionConverters;

public class Checkpoints {
    public static void main(String[] arguments) throws Exception {
        LogDirFailureChannel failures = new LogDirFailureChannel(1);
        for (String name : new String[] {"replication", "recovery-point", "log-start"}) {
            File file = new File(arguments[0], name + "-offset-checkpoint");
            if (!file.exists()) continue;
            Map<TopicPartition, Object> offsets =
                CollectionConverters.asJava(new OffsetCheckpointFile(file, failures).read());
            offsets.forEach((partition, offset) -> System.out.println(name + " " + partition + " " + offset));
        }
        for (int i = 1; i < arguments.length; i++) {
            Path directory = Path.of(arguments[i]);
            String name = directory.getFileName().toString();
            File epochs = LeaderEpochCheckpointFile.newFile(directory.toFile());
            if (Files.exists(epochs.toPath()))
                for (EpochEntry entry : new LeaderEpochCheckpointFile(epochs, failures).read())
                    System.out.println("epoch " + name + " " + entry.epoch + " " + entry.startOffset);
            File metadata = PartitionMetadataFile.newFile(directory.toFile());
            System.out.println("topic " + name + " " + new PartitionMetadataFile(metadata, failures).read().topicId());
        }
    }
}
