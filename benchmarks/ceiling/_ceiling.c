/* The ceiling: what a log in Kafka's v2 format cannot do without, called from Python, and nothing besides.
 *
 * Writer formats records into 64 KiB batches, reads the clock for their timestamps, computes CRC-32C and calls pwrite.
 * Reader maps a file, checks CRC-32C, walks the records and makes bytes objects, or fills Arrow's columns, in memory that
 * it uses again for the next 4 MiB. There is no recovery, index file, lock,
 * segment roll, validation of hostile bytes or error but the operating system's: each of those is what a real log adds,
 * and the ratio of its rate to this one is what they cost it.
 *
 * Batch: base_offset i64, length i32, leader_epoch i32, magic i8, crc u32, attributes i16, last_offset_delta i32,
 * base_timestamp i64, max_timestamp i64, producer_id i64, producer_epoch i16, base_sequence i32, count i32, records.
 * The CRC covers attributes to the end. Record: varint length, attributes i8, varint timestamp_delta, varint
 * offset_delta, varint key length (-1: null), key, varint value length, value, varint header count, headers. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "crc32c.h"

#ifndef MAP_POPULATE
#define MAP_POPULATE 0
#endif

enum { CRC_AT = 17, ATTRIBUTES_AT = 21, COUNT_AT = 57, HEADER = 61, PREFIX = 12, RECORD_OVERHEAD = 32 };

static inline uint8_t *put_32(uint8_t *p, uint32_t value) {
    value = __builtin_bswap32(value);
    memcpy(p, &value, 4);
    return p + 4;
}

static inline uint8_t *put_64(uint8_t *p, uint64_t value) {
    value = __builtin_bswap64(value);
    memcpy(p, &value, 8);
    return p + 8;
}

static inline uint8_t *put_varint(uint8_t *p, int64_t value) {
    uint64_t rest = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    for (; rest >= 0x80; rest >>= 7) *p++ = (uint8_t)(rest | 0x80);
    *p++ = (uint8_t)rest;
    return p;
}

static inline int varint_size(int64_t value) {
    uint64_t rest = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    return (63 - __builtin_clzll(rest | 1)) / 7 + 1;
}

static inline uint32_t get_32(const uint8_t *p) {
    uint32_t value;
    memcpy(&value, p, 4);
    return __builtin_bswap32(value);
}

static inline uint64_t get_64(const uint8_t *p) {
    uint64_t value;
    memcpy(&value, p, 8);
    return __builtin_bswap64(value);
}

static inline const uint8_t *get_varint(const uint8_t *p, int64_t *value) {
    uint64_t rest = *p++;
    if (__builtin_expect(rest >= 0x80, 0)) {
        rest &= 0x7F;
        for (int shift = 7; ; shift += 7) {
            uint64_t byte = *p++;
            rest |= (byte & 0x7F) << shift;
            if (byte < 0x80) break;
        }
    }
    *value = (int64_t)(rest >> 1) ^ -(int64_t)(rest & 1);
    return p;
}

/* ---- Writer ---- */

typedef struct {
    PyObject_HEAD
    int fd;
    int64_t position;          /* of the open batch in the file */
    int64_t base_offset;       /* of the open batch */
    int64_t base_timestamp, max_timestamp;
    uint32_t count;            /* records in the open batch */
    size_t used, capacity;     /* of the buffer, header included */
    uint8_t *buffer;
} Writer;

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Finish the open batch and write it. */
static int seal(Writer *self) {
    if (!self->count) return 0;
    uint8_t *p = put_64(self->buffer, (uint64_t)self->base_offset);
    p = put_32(p, (uint32_t)(self->used - PREFIX));
    p = put_32(p, 0);
    *p++ = 2;
    p += 4;
    *p++ = 0;
    *p++ = 0;
    p = put_32(p, self->count - 1);
    p = put_64(p, (uint64_t)self->base_timestamp);
    p = put_64(p, (uint64_t)self->max_timestamp);
    memset(p, 0xFF, 14);
    put_32(self->buffer + COUNT_AT, self->count);
    put_32(self->buffer + CRC_AT, crc32c(self->buffer + ATTRIBUTES_AT, self->used - ATTRIBUTES_AT));
    for (size_t written = 0; written < self->used;) {
        ssize_t n = pwrite(self->fd, self->buffer + written, self->used - written, self->position + (off_t)written);
        if (n >= 0) written += (size_t)n;
        else if (errno != EINTR) return PyErr_SetFromErrno(PyExc_OSError), -1;
    }
    self->position += (int64_t)self->used;
    self->base_offset += self->count;
    self->count = 0;
    self->used = HEADER;
    return 0;
}

static inline int add(Writer *self, PyObject *value, int64_t timestamp) {
    if (!PyBytes_CheckExact(value)) return PyErr_SetString(PyExc_TypeError, "the ceiling takes bytes only"), -1;
    const size_t length = (size_t)PyBytes_GET_SIZE(value);
    if (self->used + length + RECORD_OVERHEAD > self->capacity) {
        if (seal(self) < 0) return -1;
        if (HEADER + length + RECORD_OVERHEAD > self->capacity)
            return PyErr_SetString(PyExc_ValueError, "a record must fit into one batch"), -1;
    }
    if (!self->count) self->base_timestamp = self->max_timestamp = timestamp;
    else if (timestamp > self->max_timestamp) self->max_timestamp = timestamp;
    const int64_t timestamp_delta = timestamp - self->base_timestamp;
    const int64_t body = 3 + varint_size(timestamp_delta) + varint_size(self->count) + varint_size((int64_t)length)
                         + (int64_t)length;
    uint8_t *p = put_varint(self->buffer + self->used, body);
    *p++ = 0;
    p = put_varint(p, timestamp_delta);
    p = put_varint(p, self->count);
    *p++ = 1;
    p = put_varint(p, (int64_t)length);
    memcpy(p, PyBytes_AS_STRING(value), length);
    p += length;
    *p++ = 0;
    self->used = (size_t)(p - self->buffer);
    self->count++;
    return 0;
}

static PyObject *writer_append(Writer *self, PyObject *value) {
    if (add(self, value, now_ms()) < 0) return NULL;
    return PyLong_FromLongLong(self->base_offset + self->count - 1);
}

/* As append, but the clock is read once a batch, for its first record. */
static PyObject *writer_append_stamped(Writer *self, PyObject *value) {
    const size_t most = PyBytes_CheckExact(value) ? (size_t)PyBytes_GET_SIZE(value) + RECORD_OVERHEAD : 0;
    const int opens_batch = !self->count || self->used + most > self->capacity;
    if (add(self, value, opens_batch ? now_ms() : self->base_timestamp) < 0) return NULL;
    return PyLong_FromLongLong(self->base_offset + self->count - 1);
}

static PyObject *writer_append_visible(Writer *self, PyObject *value) {
    if (add(self, value, now_ms()) < 0 || seal(self) < 0) return NULL;
    return PyLong_FromLongLong(self->base_offset - 1);
}

static PyObject *writer_append_many(Writer *self, PyObject *values) {
    if (!PyList_CheckExact(values)) return PyErr_SetString(PyExc_TypeError, "the ceiling takes a list only"), NULL;
    const Py_ssize_t count = PyList_GET_SIZE(values);
    const int64_t timestamp = now_ms();
    for (Py_ssize_t i = 0; i < count; i++) {
        if (i + 8 < count) {
            const char *later = (const char *)PyList_GET_ITEM(values, i + 8);
            __builtin_prefetch(later);
            __builtin_prefetch(later + 64);
        }
        if (add(self, PyList_GET_ITEM(values, i), timestamp) < 0) return NULL;
    }
    if (seal(self) < 0) return NULL;
    return PyLong_FromLongLong(self->base_offset);
}

static PyObject *writer_flush(Writer *self, PyObject *Py_UNUSED(unused)) {
    if (seal(self) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *writer_close(Writer *self, PyObject *Py_UNUSED(unused)) {
    if (self->fd >= 0) {
        const int failed = seal(self);
        close(self->fd);
        self->fd = -1;
        if (failed) return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *writer_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs)) {
    PyObject *path;
    Py_ssize_t capacity = 65536;
    if (!PyArg_ParseTuple(args, "O&|n", PyUnicode_FSConverter, &path, &capacity)) return NULL;
    Writer *self = (Writer *)type->tp_alloc(type, 0);
    if (self) {
        self->fd = open(PyBytes_AS_STRING(path), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        self->used = HEADER;
        self->capacity = (size_t)capacity;
        self->buffer = PyMem_RawMalloc(self->capacity);
        if (self->fd < 0 || !self->buffer) {
            PyErr_SetFromErrno(PyExc_OSError);
            Py_CLEAR(self);
        }
    }
    Py_DECREF(path);
    return (PyObject *)self;
}

static void writer_dealloc(Writer *self) {
    if (self->fd >= 0) close(self->fd);
    PyMem_RawFree(self->buffer);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef writer_methods[] = {
    {"append", (PyCFunction)writer_append, METH_O, NULL},
    {"append_stamped", (PyCFunction)writer_append_stamped, METH_O, NULL},
    {"append_visible", (PyCFunction)writer_append_visible, METH_O, NULL},
    {"append_many", (PyCFunction)writer_append_many, METH_O, NULL},
    {"flush", (PyCFunction)writer_flush, METH_NOARGS, NULL},
    {"close", (PyCFunction)writer_close, METH_NOARGS, NULL},
    {NULL},
};

static PyTypeObject WriterType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "_ceiling.Writer",
    .tp_basicsize = sizeof(Writer),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = writer_new,
    .tp_dealloc = (destructor)writer_dealloc,
    .tp_methods = writer_methods,
};

/* ---- Reader ---- */

typedef struct {
    int64_t base_offset;
    const uint8_t *start;
} Entry;

typedef struct {
    PyObject_HEAD
    int fd;
    const uint8_t *data, *end;   /* the mapping, made by the first read and kept until close */
    Entry *index;                /* one entry a batch, made by the first seek */
    Py_ssize_t entries;
} Reader;

/* A place among the records of a file: the rest of one checked batch, and where the next one starts. */
typedef struct {
    const uint8_t *record, *batch_end, *end;
} Cursor;

static int map_file(Reader *self) {
    struct stat status;
    if (self->data) return 0;
    if (self->fd < 0) return PyErr_SetString(PyExc_ValueError, "the reader is closed"), -1;
    if (fstat(self->fd, &status) < 0) return PyErr_SetFromErrno(PyExc_OSError), -1;
    if (!status.st_size) return 0;
    void *data = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED | MAP_POPULATE, self->fd, 0);
    if (data == MAP_FAILED) return PyErr_SetFromErrno(PyExc_OSError), -1;
    self->data = data;
    self->end = self->data + status.st_size;
    return 0;
}

/* The end of the batch at `start`, or NULL where the log ends: at a header cut short or a length of zero. */
static inline const uint8_t *batch_end(const uint8_t *start, const uint8_t *end) {
    if (end - start < HEADER) return NULL;
    const int64_t size = (int32_t)get_32(start + 8) + (int64_t)PREFIX;
    return size < HEADER || size > end - start ? NULL : start + size;
}

static inline int crc_matches(const uint8_t *start, const uint8_t *end) {
    return get_32(start + CRC_AT) == crc32c(start + ATTRIBUTES_AT, (size_t)(end - start - ATTRIBUTES_AT));
}

/* 1: the cursor stands at the next batch's records; 0: no more batches; -1: CRC mismatch, with the exception set. */
static int next_batch(Cursor *cursor) {
    const uint8_t *start = cursor->batch_end, *end = batch_end(start, cursor->end);
    if (!end) return 0;
    if (!crc_matches(start, end)) return PyErr_SetString(PyExc_ValueError, "a batch fails its CRC-32C"), -1;
    cursor->record = start + HEADER;
    cursor->batch_end = end;
    return 1;
}

/* Parse the record at the cursor, every varint of it, and step past it. */
static inline const uint8_t *next_record(Cursor *cursor, int64_t *offset_delta, int64_t *length) {
    int64_t size, number, headers;
    const uint8_t *p = get_varint(cursor->record, &size);
    const uint8_t *next = p + size;
    p = get_varint(p + 1, &number);
    p = get_varint(p, offset_delta);
    p = get_varint(p, &number);
    p = get_varint(p + (number > 0 ? number : 0), length);
    const uint8_t *value = p;
    p = get_varint(p + (*length > 0 ? *length : 0), &headers);
    while (headers-- > 0) {
        p = get_varint(p, &number);
        p = get_varint(p + number, &number);
        p += number > 0 ? number : 0;
    }
    if (p != next || next > cursor->batch_end) return NULL;
    cursor->record = next;
    return value;
}

static PyObject *malformed(void) {
    PyErr_SetString(PyExc_ValueError, "a record does not end where its length says");
    return NULL;
}

static inline PyObject *as_bytes(const uint8_t *value, int64_t length) {
    if (length < 0) Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((const char *)value, (Py_ssize_t)length);
}

typedef struct {
    PyObject_HEAD
    Reader *reader;
    Cursor cursor;
} Values;

static PyObject *values_next(Values *self) {
    int64_t offset_delta, length;
    while (self->cursor.record == self->cursor.batch_end)
        if (next_batch(&self->cursor) <= 0) return NULL;
    const uint8_t *value = next_record(&self->cursor, &offset_delta, &length);
    return value ? as_bytes(value, length) : malformed();
}

static void values_dealloc(Values *self) {
    Py_XDECREF(self->reader);
    PyObject_Free(self);
}

static PyTypeObject ValuesType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "_ceiling.Values",
    .tp_basicsize = sizeof(Values),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = (destructor)values_dealloc,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = (iternextfunc)values_next,
};

static Cursor first_batch(const Reader *self) {
    return (Cursor){self->data, self->data, self->end};
}

static PyObject *reader_values(Reader *self, PyObject *Py_UNUSED(unused)) {
    if (map_file(self) < 0) return NULL;
    Values *values = PyObject_New(Values, &ValuesType);
    if (!values) return NULL;
    values->reader = (Reader *)Py_NewRef((PyObject *)self);
    values->cursor = first_batch(self);
    return (PyObject *)values;
}

static PyObject *reader_scan(Reader *self, PyObject *Py_UNUSED(unused)) {
    int64_t records = 0, bytes = 0, offset_delta, length;
    int found;
    if (map_file(self) < 0) return NULL;
    Cursor cursor = first_batch(self);
    while ((found = next_batch(&cursor)) > 0)
        for (; cursor.record != cursor.batch_end; records++, bytes += length)
            if (!next_record(&cursor, &offset_delta, &length)) return malformed();
    return found < 0 ? NULL : Py_BuildValue("LL", (long long)records, (long long)bytes);
}

/* Arrow's columns of a piece: offsets, timestamps, and of keys and values the ends of each, bytes, and bits of the keys
 * that are not null. Those of the last piece are overwritten. */
typedef struct {
    int64_t *offsets, *timestamps;
    int32_t *key_ends, *value_ends;
    uint8_t *valid, *keys, *values;
    Py_ssize_t rows;
} Columns;

enum { PIECE_BYTES = 4 << 20, PIECE_ROWS = 1 << 20, LONGEST_BATCH = 1 << 20 };

static int allocate_columns(Columns *columns) {
    columns->offsets = PyMem_RawMalloc(8 * PIECE_ROWS);
    columns->timestamps = PyMem_RawMalloc(8 * PIECE_ROWS);
    columns->key_ends = PyMem_RawMalloc(4 * (PIECE_ROWS + 1));
    columns->value_ends = PyMem_RawMalloc(4 * (PIECE_ROWS + 1));
    columns->valid = PyMem_RawMalloc(PIECE_ROWS / 8);
    columns->keys = PyMem_RawMalloc(PIECE_BYTES + LONGEST_BATCH);
    columns->values = PyMem_RawMalloc(PIECE_BYTES + LONGEST_BATCH);
    return columns->offsets && columns->timestamps && columns->key_ends && columns->value_ends && columns->valid
           && columns->keys && columns->values;
}

static void free_columns(Columns *columns) {
    PyMem_RawFree(columns->offsets);
    PyMem_RawFree(columns->timestamps);
    PyMem_RawFree(columns->key_ends);
    PyMem_RawFree(columns->value_ends);
    PyMem_RawFree(columns->valid);
    PyMem_RawFree(columns->keys);
    PyMem_RawFree(columns->values);
}

static inline void start_piece(Columns *columns) {
    columns->rows = 0;
    columns->key_ends[0] = columns->value_ends[0] = 0;
}

static inline size_t piece_bytes(const Columns *columns) {
    return 24 * (size_t)columns->rows + (size_t)columns->key_ends[columns->rows]
           + (size_t)columns->value_ends[columns->rows];
}

/* Add the rest of the cursor's batch; 0 for a malformed record. */
static int add_rows(Columns *columns, Cursor *cursor) {
    const uint8_t *header = cursor->record - HEADER;
    const int64_t base_offset = (int64_t)get_64(header), base_timestamp = (int64_t)get_64(header + 27);
    Py_ssize_t row = columns->rows;
    int32_t keys = columns->key_ends[row], values = columns->value_ends[row];
    for (; cursor->record != cursor->batch_end; row++) {
        int64_t size, timestamp_delta, offset_delta, key, value, headers, number;
        const uint8_t *p = get_varint(cursor->record, &size), *next = p + size;
        p = get_varint(p + 1, &timestamp_delta);
        p = get_varint(p, &offset_delta);
        p = get_varint(p, &key);
        if (key > 0) {
            memcpy(columns->keys + keys, p, (size_t)key);
            p += key;
            keys += (int32_t)key;
        }
        p = get_varint(p, &value);
        if (value > 0) {
            memcpy(columns->values + values, p, (size_t)value);
            p += value;
            values += (int32_t)value;
        }
        p = get_varint(p, &headers);
        while (headers-- > 0) {
            p = get_varint(p, &number);
            p = get_varint(p + number, &number);
            p += number > 0 ? number : 0;
        }
        if (p != next || next > cursor->batch_end) return 0;
        columns->offsets[row] = base_offset + offset_delta;
        columns->timestamps[row] = base_timestamp + timestamp_delta;
        columns->key_ends[row + 1] = keys;
        columns->value_ends[row + 1] = values;
        columns->valid[row >> 3] = (uint8_t)((row & 7 ? columns->valid[row >> 3] : 0) | (key >= 0) << (row & 7));
        cursor->record = next;
    }
    columns->rows = row;
    return 1;
}

static PyObject *give_piece(const Columns *columns, PyObject *taker) {
    const Py_ssize_t rows = columns->rows;
    return PyObject_CallFunction(taker, "y#y#y#y#", (const char *)columns->offsets, 8 * rows,
                                 (const char *)columns->timestamps, 8 * rows, (const char *)columns->value_ends,
                                 4 * (rows + 1), (const char *)columns->values, (Py_ssize_t)columns->value_ends[rows]);
}

/* columns(taker=None): all records as columns; `taker` gets copies of each piece's offsets, timestamps, ends of values
 * and values. Returns how many records there are. */
static PyObject *reader_columns(Reader *self, PyObject *args) {
    PyObject *taker = Py_None, *answer;
    Columns columns = {0};
    int64_t records = 0;
    int found = 0;
    if (!PyArg_ParseTuple(args, "|O", &taker) || map_file(self) < 0) return NULL;
    if (!allocate_columns(&columns)) {
        free_columns(&columns);
        return PyErr_NoMemory();
    }
    start_piece(&columns);
    Cursor cursor = first_batch(self);
    while ((found = next_batch(&cursor)) > 0) {
        if (!add_rows(&columns, &cursor)) {
            malformed();
            found = -1;
            break;
        }
        if (piece_bytes(&columns) < PIECE_BYTES && cursor.batch_end != cursor.end) continue;
        records += columns.rows;
        if (taker != Py_None) {
            if (!(answer = give_piece(&columns, taker))) {
                found = -1;
                break;
            }
            Py_DECREF(answer);
        }
        start_piece(&columns);
    }
    records += columns.rows;
    free_columns(&columns);
    return found < 0 ? NULL : PyLong_FromLongLong(records);
}

static PyObject *reader_check(Reader *self, PyObject *Py_UNUSED(unused)) {
    int64_t batches = 0;
    int found;
    if (map_file(self) < 0) return NULL;
    Cursor cursor = first_batch(self);
    while ((found = next_batch(&cursor)) > 0) batches++;
    return found < 0 ? NULL : PyLong_FromLongLong(batches);
}

static int build_index(Reader *self) {
    Py_ssize_t room = 0;
    if (self->index) return 0;
    for (const uint8_t *start = self->data, *end; (end = batch_end(start, self->end)); start = end) {
        if (self->entries == room) {
            room = room ? 2 * room : 1024;
            Entry *larger = PyMem_RawRealloc(self->index, (size_t)room * sizeof(Entry));
            if (!larger) return PyErr_NoMemory(), -1;
            self->index = larger;
        }
        self->index[self->entries++] = (Entry){(int64_t)get_64(start), start};
    }
    return 0;
}

static PyObject *reader_seek(Reader *self, PyObject *args) {
    long long offset;
    Py_ssize_t count, made = 0;
    if (!PyArg_ParseTuple(args, "Ln", &offset, &count)) return NULL;
    if (map_file(self) < 0 || build_index(self) < 0) return NULL;
    Py_ssize_t low = 0, high = self->entries;
    while (low < high) {
        const Py_ssize_t middle = (low + high) / 2;
        if (self->index[middle].base_offset <= offset) low = middle + 1;
        else high = middle;
    }
    PyObject *values = PyList_New(count);
    if (!values) return NULL;
    const uint8_t *start = low ? self->index[low - 1].start : self->end;
    Cursor cursor = {start, start, self->end};
    int found = 0;
    while (made < count && (found = next_batch(&cursor)) > 0) {
        const int64_t base_offset = (int64_t)get_64(cursor.record - HEADER);
        while (made < count && cursor.record != cursor.batch_end) {
            int64_t offset_delta, length;
            const uint8_t *value = next_record(&cursor, &offset_delta, &length);
            if (!value) {
                Py_DECREF(values);
                return malformed();
            }
            if (base_offset + offset_delta < offset) continue;
            PyObject *item = as_bytes(value, length);
            if (!item) {
                Py_DECREF(values);
                return NULL;
            }
            PyList_SET_ITEM(values, made++, item);
        }
    }
    if (found < 0 || (made < count && PyList_SetSlice(values, made, count, NULL) < 0)) Py_CLEAR(values);
    return values;
}

static PyObject *reader_close(Reader *self, PyObject *Py_UNUSED(unused)) {
    if (self->data) munmap((void *)self->data, (size_t)(self->end - self->data));
    if (self->fd >= 0) close(self->fd);
    PyMem_RawFree(self->index);
    self->data = self->end = NULL;
    self->index = NULL;
    self->entries = 0;
    self->fd = -1;
    Py_RETURN_NONE;
}

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs)) {
    PyObject *path;
    if (!PyArg_ParseTuple(args, "O&", PyUnicode_FSConverter, &path)) return NULL;
    Reader *self = (Reader *)type->tp_alloc(type, 0);
    if (self && (self->fd = open(PyBytes_AS_STRING(path), O_RDONLY | O_CLOEXEC)) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_CLEAR(self);
    }
    Py_DECREF(path);
    return (PyObject *)self;
}

static void reader_dealloc(Reader *self) {
    Py_DECREF(reader_close(self, NULL));
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef reader_methods[] = {
    {"values", (PyCFunction)reader_values, METH_NOARGS, NULL},
    {"scan", (PyCFunction)reader_scan, METH_NOARGS, NULL},
    {"columns", (PyCFunction)reader_columns, METH_VARARGS, NULL},
    {"check", (PyCFunction)reader_check, METH_NOARGS, NULL},
    {"seek", (PyCFunction)reader_seek, METH_VARARGS, NULL},
    {"close", (PyCFunction)reader_close, METH_NOARGS, NULL},
    {NULL},
};

static PyTypeObject ReaderType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "_ceiling.Reader",
    .tp_basicsize = sizeof(Reader),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = reader_new,
    .tp_dealloc = (destructor)reader_dealloc,
    .tp_methods = reader_methods,
};

/* ---- module ---- */

static PyObject *module_crc32c(PyObject *Py_UNUSED(module), PyObject *data) {
    Py_buffer view;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0) return NULL;
    const uint32_t crc = crc32c(view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(crc);
}

static PyObject *module_implementation(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
    return PyUnicode_FromString(crc32c_name);
}

static PyMethodDef module_methods[] = {
    {"crc32c", module_crc32c, METH_O, NULL},
    {"implementation", module_implementation, METH_NOARGS, NULL},
    {NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, "_ceiling", "The unavoidable work of a log, in C.", -1, module_methods,
};

PyMODINIT_FUNC PyInit__ceiling(void) {
    crc32c_init();
    if (PyType_Ready(&ValuesType) < 0) return NULL;
    PyObject *module = PyModule_Create(&module_definition);
    if (!module) return NULL;
    if (PyModule_AddType(module, &WriterType) < 0 || PyModule_AddType(module, &ReaderType) < 0) Py_CLEAR(module);
    return module;
}
