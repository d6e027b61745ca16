// Reads one partition's committed records with librdkafka, which fetches, unpacks and checks on its own threads.

#include "partition_log.hpp"

#include <string>
#include <vector>

#include "arrival.hpp"
#include "librdkafka.hpp"
#include "utf8.hpp"

namespace headrace {
namespace {

struct Reading {
    rdkafka::Library library;
    rdkafka::Client* client = nullptr;
    rdkafka::Queue* queue = nullptr;
    std::vector<rdkafka::Message*> messages;
    RawRecord record;
};

struct PartitionLog {
    PyObject_HEAD
    PyObject* topic;
    int32_t partition;
    long long position;
    Reading* reading;
};

PartitionLog* self_of(PyObject* object) { return reinterpret_cast<PartitionLog*>(object); }

void close_reading(Reading* reading) {
    if (reading->queue) reading->library.queue_destroy(std::exchange(reading->queue, nullptr));
    if (reading->client == nullptr) return;
    rdkafka::Client* client = std::exchange(reading->client, nullptr);
    const rdkafka::Library& library = reading->library;
    Py_BEGIN_ALLOW_THREADS
    library.consumer_close(client);
    library.destroy(client);
    Py_END_ALLOW_THREADS
}

bool configure(const rdkafka::Library& library, rdkafka::Config* config, PyObject* settings) {
    PyObject *name, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(settings, &at, &name, &value)) {
        const char* name_text = PyUnicode_AsUTF8(name);
        const char* value_text = name_text ? PyUnicode_AsUTF8(value) : nullptr;
        if (value_text == nullptr) return false;
        char error[512];
        if (library.conf_set(config, name_text, value_text, error, sizeof error) != rdkafka::kConfigOk) {
            PyErr_Format(PyExc_ValueError, "librdkafka: %s", error);
            return false;
        }
    }
    return true;
}

bool open_reading(PartitionLog* self, const char* path, PyObject* settings) {
    Reading* reading = self->reading;
    const std::string problem = reading->library.load(path);
    if (!problem.empty()) {
        PyErr_Format(PyExc_ImportError, "librdkafka cannot be used: %s", problem.c_str());
        return false;
    }
    const rdkafka::Library& library = reading->library;
    rdkafka::Config* config = library.conf_new();
    if (!configure(library, config, settings)) {
        library.conf_destroy(config);
        return false;
    }
    char error[512];
    reading->client = library.create(rdkafka::kConsumer, config, error, sizeof error);
    if (reading->client == nullptr) {
        library.conf_destroy(config);
        PyErr_Format(PyExc_RuntimeError, "librdkafka: %s", error);
        return false;
    }
    library.poll_set_consumer(reading->client);
    reading->queue = library.queue_get_consumer(reading->client);
    const char* topic = PyUnicode_AsUTF8(self->topic);
    if (topic == nullptr) return false;
    rdkafka::PartitionList* places = library.partition_list_new(1);
    library.partition_list_add(places, topic, self->partition);
    library.partition_list_set_offset(places, topic, self->partition, self->position);
    const int failed = library.assign(reading->client, places);
    library.partition_list_destroy(places);
    if (failed) PyErr_Format(PyExc_RuntimeError, "librdkafka: %s", library.error_text(failed));
    return !failed;
}

std::optional<std::string_view> view(const void* data, size_t length) {
    if (data == nullptr) return std::nullopt;
    return std::string_view(static_cast<const char*>(data), length);
}

// Headers of `message`; none if a name is not valid text.
void read_headers(const rdkafka::Library& library, const rdkafka::Message* message, std::vector<RawHeader>& headers) {
    headers.clear();
    rdkafka::HeaderList* list = nullptr;
    if (library.message_headers(message, &list)) return;
    const char* name;
    const void* value;
    size_t size;
    for (size_t index = 0; library.header_get_all(list, index, &name, &value, &size) == 0; ++index) {
        if (!is_utf8(name)) {
            headers.clear();
            return;
        }
        headers.push_back({name, view(value, size)});
    }
}

// The arrival in `message`; an empty reference at the log end. For any other message `failed` is set to its error.
Ref arrival_in(PartitionLog* self, const rdkafka::Message* message, int& failed) {
    Reading* reading = self->reading;
    if (message->error == rdkafka::kPartitionEof) {
        self->position = message->offset;
        return {};
    }
    if (message->error) {
        failed = message->error;
        return {};
    }
    RawRecord& record = reading->record;
    record.topic = self->topic;
    record.partition = self->partition;
    record.offset = message->offset;
    int type;
    record.timestamp = reading->library.message_timestamp(message, &type);
    record.key = view(message->key, message->key_length);
    record.value = view(message->payload, message->length);
    read_headers(reading->library, message, record.headers);
    self->position = message->offset + 1;
    return Ref(arrival_of(record));
}

PyObject* read(PyObject* object, PyObject* argument) {
    PartitionLog* self = self_of(object);
    Reading* reading = self->reading;
    const Py_ssize_t most = PyLong_AsSsize_t(argument);
    if (most < 1) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "read at least one record at a time");
        return nullptr;
    }
    if (reading->queue == nullptr) {
        PyErr_SetString(PyExc_RuntimeError, "the log is closed");
        return nullptr;
    }
    return guarded([&]() -> PyObject* {
        reading->messages.resize(static_cast<size_t>(most));
        const rdkafka::Library& library = reading->library;
        // The call does not wait, so the GIL is kept.
        const ptrdiff_t count =
            library.consume_batch_queue(reading->queue, 0, reading->messages.data(), reading->messages.size());
        Ref arrivals(PyList_New(0));
        int failed = 0;
        for (ptrdiff_t index = 0; index < count; ++index) {
            rdkafka::Message* message = reading->messages[static_cast<size_t>(index)];
            if (arrivals && !failed) {
                const Ref arrival = arrival_in(self, message, failed);
                const bool added = arrival ? PyList_Append(arrivals.get(), arrival.get()) == 0 : !PyErr_Occurred();
                if (!added) arrivals = Ref();
            }
            library.message_destroy(message);
        }
        if (!arrivals) return nullptr;
        return Py_BuildValue("(Oi)", arrivals.get(), failed);
    }, static_cast<PyObject*>(nullptr));
}

PyObject* close(PyObject* object, PyObject*) {
    close_reading(self_of(object)->reading);
    Py_RETURN_NONE;
}

PyObject* get_position(PyObject* object, void*) { return PyLong_FromLongLong(self_of(object)->position); }

PyObject* get_end(PyObject* object, void*) {
    const PartitionLog* self = self_of(object);
    const Reading* reading = self->reading;
    int64_t low, high;
    const char* topic = PyUnicode_AsUTF8(self->topic);
    if (topic == nullptr) return nullptr;
    if (reading->client == nullptr ||
        reading->library.get_watermark_offsets(reading->client, topic, self->partition, &low, &high) || high < 0) {
        Py_RETURN_NONE;
    }
    return PyLong_FromLongLong(high);
}

PyObject* make(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
    static const char* names[] = {"library", "settings", "topic", "partition", "offset", nullptr};
    const char* library;
    PyObject *settings, *topic;
    int partition;
    long long offset;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "sO!UiL", const_cast<char**>(names), &library, &PyDict_Type,
                                     &settings, &topic, &partition, &offset)) {
        return nullptr;
    }
    Ref made(type->tp_alloc(type, 0));
    if (!made) return nullptr;
    PartitionLog* self = self_of(made.get());
    self->topic = Py_NewRef(topic);
    self->partition = partition;
    self->position = offset;
    const bool opened = guarded([&] {
        self->reading = new Reading();
        return open_reading(self, library, settings);
    }, false);
    return opened ? made.release() : nullptr;
}

void destroy(PyObject* object) {
    PartitionLog* self = self_of(object);
    if (self->reading) {
        close_reading(self->reading);
        delete self->reading;
    }
    Py_XDECREF(self->topic);
    Py_TYPE(object)->tp_free(object);
}

PyMethodDef kMethods[] = {
    {"read", read, METH_O, "At most so many arrivals that are there, without waiting, and the error after them or 0."},
    {"close", close, METH_NOARGS, "Close the connection; may wait for it."},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef kAttributes[] = {
    {"position", get_position, nullptr, "Next offset to read.", nullptr},
    {"end", get_end, nullptr, "The log's end as of the last fetch; None before it.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyTypeObject partition_log_type() {
    PyTypeObject type = type_of<PartitionLog>(
        "headrace.streams.native.speedups.PartitionLog",
        "Reads one partition from an offset on, through librdkafka.", make, destroy);
    type.tp_methods = kMethods;
    type.tp_getset = kAttributes;
    return type;
}

}  // namespace

PyTypeObject PartitionLogType = partition_log_type();

}  // namespace headrace
