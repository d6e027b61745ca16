import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.github.luben.zstd.Zstd;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Every trajectory with its sampled tokens and their mean log-probability. */
public final class Trajectories {

    private static final int MAX_BYTES = 16 << 20; // Largest decoded array: a limit against decompression bombs.

    /** Decodes a token array: base64 of little-endian bytes, compressed after {@code zstd:}. */
    static ByteBuffer decoded(JsonNode text) {
        if (text.isNull()) {
            return ByteBuffer.allocate(0);
        }
        boolean packed = text.textValue().startsWith("zstd:");
        byte[] raw = Base64.getDecoder().decode(packed ? text.textValue().substring(5) : text.textValue());
        if (packed) {
            long size = Zstd.getFrameContentSize(raw);
            if (size < 0 || size > MAX_BYTES) {
                throw new IllegalArgumentException("an array of " + size + " bytes");
            }
            raw = Zstd.decompress(raw, (int) size);
        }
        return ByteBuffer.wrap(raw).order(ByteOrder.LITTLE_ENDIAN);
    }

    static String header(ConsumerRecord<byte[], byte[]> record, String name) {
        return new String(record.headers().lastHeader(name).value(), StandardCharsets.UTF_8);
    }

    static String line(ConsumerRecord<byte[], byte[]> record, ObjectMapper json) throws Exception {
        int sampled = 0;
        int count = 0;
        double sum = 0;
        for (JsonNode segment : json.readTree(record.value()).get("segments")) {
            for (ByteBuffer mask = decoded(segment.get("loss_mask")); mask.hasRemaining(); ) {
                sampled += mask.get(); // int8
            }
            for (ByteBuffer logprobs = decoded(segment.get("logprobs")); logprobs.hasRemaining(); count++) {
                sum += logprobs.getFloat(); // float32; token_ids are int32: getInt
            }
        }
        String mean = count == 0 ? "none" : String.format(Locale.ROOT, "%.4f", sum / count);
        return header(record, "ce_subject") + " " + sampled + " tokens, mean log-prob " + mean;
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> settings = Map.of(
                ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0],
                ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest",
                ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed", // The default also returns aborted records.
                ConsumerConfig.KEY_DESERIALIZER_CLASS_CONFIG, ByteArrayDeserializer.class,
                ConsumerConfig.VALUE_DESERIALIZER_CLASS_CONFIG, ByteArrayDeserializer.class);
        Map<String, String> lines = new HashMap<>(); // By ce_id: records with equal ids are duplicates.
        ObjectMapper json = new ObjectMapper();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            List<TopicPartition> partitions = consumer.partitionsFor("trajectories").stream()
                    .map(info -> new TopicPartition(info.topic(), info.partition()))
                    .toList();
            consumer.assign(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            while (partitions.stream().anyMatch(each -> consumer.position(each) < ends.get(each))) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofSeconds(1));
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    if (header(record, "ce_type").equals("headrace.trajectory.assembled.v1")) {
                        lines.put(header(record, "ce_id"), line(record, json));
                    }
                }
            }
        }
        lines.values().stream().sorted().forEach(System.out::println);
    }
}
