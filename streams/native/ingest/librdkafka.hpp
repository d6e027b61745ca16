// The used part of librdkafka's C interface. The functions are looked up in the library bundled with confluent-kafka,
// so that nothing needs to be installed to build or run this.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace headrace::rdkafka {

struct Client;
struct Config;
struct Queue;
struct Topic;
struct HeaderList;
struct PartitionList;

// rd_kafka_message_t
struct Message {
    int error;
    Topic* topic;
    int32_t partition;
    void* payload;
    size_t length;
    void* key;
    size_t key_length;
    int64_t offset;
    void* internal;
};

inline constexpr int kConsumer = 1;          // RD_KAFKA_CONSUMER
inline constexpr int kConfigOk = 0;          // RD_KAFKA_CONF_OK
inline constexpr int kPartitionEof = -191;   // RD_KAFKA_RESP_ERR__PARTITION_EOF

struct Library {
    Config* (*conf_new)();
    void (*conf_destroy)(Config*);
    int (*conf_set)(Config*, const char* name, const char* value, char* error, size_t error_size);
    Client* (*create)(int type, Config*, char* error, size_t error_size);
    void (*destroy)(Client*);
    int (*poll_set_consumer)(Client*);
    Queue* (*queue_get_consumer)(Client*);
    void (*queue_destroy)(Queue*);
    PartitionList* (*partition_list_new)(int size);
    void* (*partition_list_add)(PartitionList*, const char* topic, int32_t partition);
    int (*partition_list_set_offset)(PartitionList*, const char* topic, int32_t partition, int64_t offset);
    void (*partition_list_destroy)(PartitionList*);
    int (*assign)(Client*, const PartitionList*);
    int (*consumer_close)(Client*);
    ptrdiff_t (*consume_batch_queue)(Queue*, int timeout_ms, Message** messages, size_t count);
    void (*message_destroy)(Message*);
    int64_t (*message_timestamp)(const Message*, int* type);
    int (*message_headers)(const Message*, HeaderList** headers);
    int (*header_get_all)(const HeaderList*, size_t index, const char** name, const void** value, size_t* size);
    int (*get_watermark_offsets)(Client*, const char* topic, int32_t partition, int64_t* low, int64_t* high);
    const char* (*error_text)(int error);

    // Empty, or the reason why it cannot be used. `path`: a library that is linked with librdkafka.
    std::string load(const char* path) {
        void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) return dlerror();
        std::string missing;
        const auto find = [&](auto& function, const char* name) {
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
            if (function == nullptr) missing = std::string(path) + " knows no " + name;
        };
        find(conf_new, "rd_kafka_conf_new");
        find(conf_destroy, "rd_kafka_conf_destroy");
        find(conf_set, "rd_kafka_conf_set");
        find(create, "rd_kafka_new");
        find(destroy, "rd_kafka_destroy");
        find(poll_set_consumer, "rd_kafka_poll_set_consumer");
        find(queue_get_consumer, "rd_kafka_queue_get_consumer");
        find(queue_destroy, "rd_kafka_queue_destroy");
        find(partition_list_new, "rd_kafka_topic_partition_list_new");
        find(partition_list_add, "rd_kafka_topic_partition_list_add");
        find(partition_list_set_offset, "rd_kafka_topic_partition_list_set_offset");
        find(partition_list_destroy, "rd_kafka_topic_partition_list_destroy");
        find(assign, "rd_kafka_assign");
        find(consumer_close, "rd_kafka_consumer_close");
        find(consume_batch_queue, "rd_kafka_consume_batch_queue");
        find(message_destroy, "rd_kafka_message_destroy");
        find(message_timestamp, "rd_kafka_message_timestamp");
        find(message_headers, "rd_kafka_message_headers");
        find(header_get_all, "rd_kafka_header_get_all");
        find(get_watermark_offsets, "rd_kafka_get_watermark_offsets");
        find(error_text, "rd_kafka_err2str");
        return missing;  // the library stays loaded
    }
};

}  // namespace headrace::rdkafka
