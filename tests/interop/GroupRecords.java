// Prints records of consumer groups as Kafka writes them, a line each: type of the key, key and value in hexadecimal
// ("null" for a tombstone). tests/wire/test_consumer_group_records.py has the same records.
import java.util.HexFormat;
import java.util.List;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.coordinator.group.generated.*;

public class GroupRecords {
    static final Uuid FIRST = new Uuid(0x0001020304050607L, 0x08090a0b0c0d0e0fL);
    static final Uuid SECOND = new Uuid(0x1011121314151617L, 0x18191a1b1c1d1e1fL);

    static void print(ApiMessage key, ApiMessage value) {
        String content = value == null ? "null" : hex(MessageUtil.toVersionPrefixedBytes((short) 0, value));
        System.out.println(hex(MessageUtil.toCoordinatorTypePrefixedBytes(key)) + " " + content);
    }

    static String hex(byte[] bytes) {
        return HexFormat.of().formatHex(bytes);
    }

    public static void main(String[] arguments) {
        ConsumerGroupMetadataKey group = new ConsumerGroupMetadataKey().setGroupId("g");
        print(group, new ConsumerGroupMetadataValue().setEpoch(7));
        print(group, new ConsumerGroupMetadataValue().setEpoch(7).setMetadataHash(-2));
        print(group, null);

        ConsumerGroupMemberMetadataKey member =
            new ConsumerGroupMemberMetadataKey().setGroupId("g").setMemberId("m");
        print(member, new ConsumerGroupMemberMetadataValue().setInstanceId("i").setRackId("r").setClientId("c")
            .setClientHost("/h").setSubscribedTopicNames(List.of("t", "u")).setSubscribedTopicRegex("x.*")
            .setRebalanceTimeoutMs(300000).setServerAssignor("range"));
        print(member, new ConsumerGroupMemberMetadataValue().setInstanceId(null).setRackId(null).setClientId("c")
            .setClientHost("/h").setSubscribedTopicNames(List.of()).setSubscribedTopicRegex(null)
            .setRebalanceTimeoutMs(-1).setServerAssignor(null).setClassicMemberMetadata(
                new ConsumerGroupMemberMetadataValue.ClassicMemberMetadata().setSessionTimeoutMs(45000)
                    .setSupportedProtocols(List.of(new ConsumerGroupMemberMetadataValue.ClassicProtocol()
                        .setName("range").setMetadata(new byte[] {1, 2})))));
        print(member, null);

        ConsumerGroupTargetAssignmentMetadataKey target =
            new ConsumerGroupTargetAssignmentMetadataKey().setGroupId("g");
        print(target, new ConsumerGroupTargetAssignmentMetadataValue().setAssignmentEpoch(6));
        print(target, null);

        ConsumerGroupTargetAssignmentMemberKey assigned =
            new ConsumerGroupTargetAssignmentMemberKey().setGroupId("g").setMemberId("m");
        print(assigned, new ConsumerGroupTargetAssignmentMemberValue().setTopicPartitions(List.of(
            new ConsumerGroupTargetAssignmentMemberValue.TopicPartition().setTopicId(FIRST)
                .setPartitions(List.of(0, 300)),
            new ConsumerGroupTargetAssignmentMemberValue.TopicPartition().setTopicId(SECOND)
                .setPartitions(List.of(1)))));
        print(assigned, new ConsumerGroupTargetAssignmentMemberValue().setTopicPartitions(List.of()));
        print(assigned, null);

        ConsumerGroupCurrentMemberAssignmentKey current =
            new ConsumerGroupCurrentMemberAssignmentKey().setGroupId("g").setMemberId("m");
        printCurrent(current, List.of(5), List.of(6, 7));
        print(current, null);

        ConsumerGroupRegularExpressionKey expression =
            new ConsumerGroupRegularExpressionKey().setGroupId("g").setRegularExpression("x.*");
        print(expression, new ConsumerGroupRegularExpressionValue().setTopics(List.of("xa", "xb")).setVersion(12)
            .setTimestamp(1000));
        print(expression, null);

        // With a tag of Kafka's own, which is read over; without assignment epochs, and with as many as do not fit.
        print(target, new ConsumerGroupTargetAssignmentMetadataValue().setAssignmentEpoch(6)
            .setAssignmentTimestamp(1000));
        printCurrent(current, List.of(), List.of());
        printCurrent(current, List.of(5, 6), List.of(6));
    }

    static void printCurrent(ApiMessage key, List<Integer> assigned, List<Integer> pendingRevocation) {
        print(key, new ConsumerGroupCurrentMemberAssignmentValue().setMemberEpoch(7).setPreviousMemberEpoch(6)
            .setState((byte) 1)
            .setAssignedPartitions(List.of(new ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions()
                .setTopicId(FIRST).setPartitions(List.of(0)).setAssignmentEpochs(assigned)))
            .setPartitionsPendingRevocation(List.of(new ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions()
                .setTopicId(SECOND).setPartitions(List.of(1, 2)).setAssignmentEpochs(pendingRevocation))));
    }
}
