package headrace.benchmarks;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueBytesStoreSupplier;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * The assembly as a platform team would write it: events of a trajectory are kept in a state store until its end comes,
 * then go out as one record, exactly once.
 *
 * <p>Each event has a store key of its own, {@code trajectory 0x00 seq}: appending to one value a trajectory would write
 * the whole of it to the changelog at every event, and takes twice the time. Nothing is parsed, and there is no rule for
 * holes, duplicates, late events or timeouts: what headrace does on top of this is not asked of it.
 */
public final class Assembly {
    private static final String STORE = "open-events";
    private static final String ENDED = "headrace.trajectory.ended.v1";

    private Assembly() {}

    /** Arguments: bootstrap, application id, output topic, store (memory or rocksdb), threads, state folder. */
    public static void main(String[] args) {
        Topology topology = topology(args[2], store(args[3]));
        KafkaStreams streams = new KafkaStreams(topology, settings(args[0], args[1], args[4], args[5]));
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            // Not a new thread: a benchmark that lost one must fail.
            return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse
                    .SHUTDOWN_CLIENT;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }

    static Topology topology(String output, KeyValueBytesStoreSupplier supplier) {
        var passThrough = Serdes.ByteArray();
        return new Topology()
                .addSource("events", passThrough.deserializer(), passThrough.deserializer(), "events")
                .addProcessor("assemble", Assemble::new, "events")
                .addStateStore(
                        Stores.keyValueStoreBuilder(supplier, Serdes.Bytes(), passThrough)
                                .withLoggingEnabled(Map.of()),
                        "assemble")
                .addSink("trajectories", output, passThrough.serializer(), passThrough.serializer(), "assemble");
    }

    private static KeyValueBytesStoreSupplier store(String kind) {
        return switch (kind) {
            case "memory" -> Stores.inMemoryKeyValueStore(STORE);
            case "rocksdb" -> Stores.persistentKeyValueStore(STORE);
            default -> throw new IllegalArgumentException("store is memory or rocksdb, not " + kind);
        };
    }

    private static Properties settings(String bootstrap, String application, String threads, String folder) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, application);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, threads);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, folder);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 150);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.MAX_POLL_RECORDS_CONFIG), 2_000);
        // A named member that was killed has its partitions back at once, as headrace's assembler has.
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.GROUP_INSTANCE_ID_CONFIG), application);
        settings.put(StreamsConfig.producerPrefix(ProducerConfig.BATCH_SIZE_CONFIG), 256 * 1024);
        settings.put(StreamsConfig.producerPrefix(ProducerConfig.LINGER_MS_CONFIG), 20);
        return settings;
    }

    private static final class Assemble implements Processor<byte[], byte[], byte[], byte[]> {
        private ProcessorContext<byte[], byte[]> context;
        private KeyValueStore<Bytes, byte[]> open;

        @Override
        public void init(ProcessorContext<byte[], byte[]> context) {
            this.context = context;
            this.open = context.getStateStore(STORE);
        }

        @Override
        public void process(Record<byte[], byte[]> event) {
            Headers headers = event.headers();
            open.put(key(event.key(), Integer.parseInt(text(headers, "ce_sequence"))), event.value());
            if (text(headers, "ce_type").equals(ENDED)) {
                finish(event);
            }
        }

        /** One record of all events in the order of their sequence; then nothing is left of them in the store. */
        private void finish(Record<byte[], byte[]> end) {
            ByteArrayOutputStream trajectory = new ByteArrayOutputStream(16 * 1024);
            List<Bytes> keys = new ArrayList<>();
            try (KeyValueIterator<Bytes, byte[]> events =
                    open.range(key(end.key(), 0), key(end.key(), Integer.MAX_VALUE))) {
                while (events.hasNext()) {
                    KeyValue<Bytes, byte[]> event = events.next();
                    trajectory.writeBytes(event.value);
                    keys.add(event.key);
                }
            }
            keys.forEach(open::delete);
            context.forward(end.withValue(trajectory.toByteArray()));
        }

        private static Bytes key(byte[] trajectory, int sequence) {
            return Bytes.wrap(ByteBuffer.allocate(trajectory.length + 5)
                    .put(trajectory).put((byte) 0).putInt(sequence).array());
        }

        private static String text(Headers headers, String name) {
            return new String(headers.lastHeader(name).value(), StandardCharsets.UTF_8);
        }
    }
}
