// Prints messages of KIP-848 as Kafka writes them, a line each: name, version and body in hexadecimal.
// tests/wire/test_consumer_protocol.py has the same messages.
import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.List;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.*;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;

public class GroupMessages {
    static final Uuid TOPIC = new Uuid(0x0001020304050607L, 0x08090a0b0c0d0e0fL);

    static void print(String name, int version, Message message) {
        ByteBuffer buffer = MessageUtil.toByteBufferAccessor(message, (short) version).buffer();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        System.out.println(name + " " + version + " " + HexFormat.of().formatHex(bytes));
    }

    static ConsumerGroupHeartbeatRequestData heartbeat() {
        return new ConsumerGroupHeartbeatRequestData().setGroupId("g").setMemberId("m").setMemberEpoch(4)
            .setInstanceId("i").setRackId("r").setRebalanceTimeoutMs(300000)
            .setSubscribedTopicNames(List.of("t", "u")).setServerAssignor("uniform")
            .setTopicPartitions(List.of(new ConsumerGroupHeartbeatRequestData.TopicPartitions().setTopicId(TOPIC)
                .setPartitions(List.of(0, 300))));
    }

    static List<ConsumerGroupDescribeResponseData.TopicPartitions> topics() {
        return List.of(new ConsumerGroupDescribeResponseData.TopicPartitions().setTopicId(TOPIC).setTopicName("t")
            .setPartitions(List.of(0, 300)));
    }

    static ConsumerGroupDescribeResponseData described(boolean typed) {
        ConsumerGroupDescribeResponseData.Member member = new ConsumerGroupDescribeResponseData.Member()
            .setMemberId("m").setInstanceId("i").setRackId("r").setMemberEpoch(4).setClientId("c")
            .setClientHost("/h").setSubscribedTopicNames(List.of("t")).setSubscribedTopicRegex("x.*")
            .setAssignment(new ConsumerGroupDescribeResponseData.Assignment().setTopicPartitions(topics()))
            .setTargetAssignment(new ConsumerGroupDescribeResponseData.Assignment());
        return new ConsumerGroupDescribeResponseData().setGroups(List.of(
            new ConsumerGroupDescribeResponseData.DescribedGroup().setGroupId("g").setGroupState("Stable")
                .setGroupEpoch(5).setAssignmentEpoch(4).setAssignorName("uniform")
                .setMembers(List.of(typed ? member.setMemberType((byte) 1) : member)),
            new ConsumerGroupDescribeResponseData.DescribedGroup().setGroupId("h").setErrorCode((short) 69)
                .setErrorMessage("none")));
    }

    public static void main(String[] arguments) {
        print("request", 0, heartbeat());
        print("request", 1, heartbeat().setSubscribedTopicRegex("x.*"));
        ConsumerGroupHeartbeatRequestData same =
            new ConsumerGroupHeartbeatRequestData().setGroupId("g").setMemberId("m").setMemberEpoch(4);
        for (int version = 0; version < 2; version++) {
            print("request", version, same);
            print("response", version, new ConsumerGroupHeartbeatResponseData().setMemberId("m").setMemberEpoch(4)
                .setHeartbeatIntervalMs(5000).setAssignment(new ConsumerGroupHeartbeatResponseData.Assignment()
                    .setTopicPartitions(List.of(new ConsumerGroupHeartbeatResponseData.TopicPartitions()
                        .setTopicId(TOPIC).setPartitions(List.of(0, 300))))));
            print("response", version, new ConsumerGroupHeartbeatResponseData().setErrorCode((short) 110)
                .setErrorMessage("why"));
            print("described", version, described(version > 0));
        }
    }
}
