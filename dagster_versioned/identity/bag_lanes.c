/* bag-xxh64x2 of rows (docs/reference/digest.md), and their hashes under a key, read through the Arrow C data interface.
 *
 * Each function computes both lanes at once: XXH64 with seed 0 and with seed 1, or, where there is a key, SipHash-2-4
 * with its first and with its second half. Rows go through in blocks that stay in the first-level cache. A type without a case in `parse` ends the call with UNSUPPORTED, and the caller digests with
 * numpy (identity/digest.py), which is the same function of the same values.
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "The canonical bytes are read as they lie in memory: little-endian."
#endif

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define HOT __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define HOT
#endif
#define INLINE static inline __attribute__((always_inline))

enum { DONE = 0, UNSUPPORTED = 1, NO_MEMORY = 2 };
enum { BLOCK = 512, MOST_ITEMS = 1 << 16, DEEPEST = 100 };

/* --- the Arrow C data interface --------------------------------------------------------------------------------- */

struct ArrowSchema {
    const char *format, *name, *metadata;
    int64_t flags, n_children;
    struct ArrowSchema **children, *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};

struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children, *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

/* --- XXH64 ------------------------------------------------------------------------------------------------------ */

#define P1 0x9E3779B185EBCA87ULL
#define P2 0xC2B2AE3D27D4EB4FULL
#define P3 0x165667B19E3779F9ULL
#define P4 0x85EBCA77C2B2AE63ULL
#define P5 0x27D4EB2F165667C5ULL

typedef struct { uint64_t of[2]; } lanes; /* with seed 0, with seed 1 */

INLINE uint64_t rotated(uint64_t word, int by) { return word << by | word >> (64 - by); }
INLINE uint64_t round_of(uint64_t lane, uint64_t word) { return rotated(lane + word * P2, 31) * P1; }
INLINE uint64_t mixed(uint64_t word) { return rotated(word * P2, 31) * P1; }
INLINE uint64_t folded(uint64_t hash, uint64_t mixed_word) { return rotated(hash ^ mixed_word, 27) * P1 + P4; }
INLINE uint64_t converged(uint64_t hash, uint64_t lane) { return (hash ^ mixed(lane)) * P1 + P4; }

INLINE uint64_t avalanche(uint64_t hash) {
    hash = (hash ^ hash >> 33) * P2;
    hash = (hash ^ hash >> 29) * P3;
    return hash ^ hash >> 32;
}

INLINE uint64_t word_at(const uint8_t *data) {
    uint64_t word;
    memcpy(&word, data, 8);
    return word;
}

INLINE uint64_t joined(const uint64_t lane[4]) {
    uint64_t hash = rotated(lane[0], 1) + rotated(lane[1], 7) + rotated(lane[2], 12) + rotated(lane[3], 18);
    for (int i = 0; i < 4; i++) hash = converged(hash, lane[i]);
    return hash;
}

/* --- SipHash-2-4 ------------------------------------------------------------------------------------------------ */

#define SIP_ROUND(a, b, c, d)                                                                                          \
    do {                                                                                                               \
        a += b; c += d;                                                                                                \
        b = rotated(b, 13) ^ a; d = rotated(d, 16) ^ c;                                                                \
        a = rotated(a, 32);                                                                                            \
        c += b; a += d;                                                                                                \
        b = rotated(b, 17) ^ c; d = rotated(d, 21) ^ a;                                                                \
        c = rotated(c, 32);                                                                                            \
    } while (0)

typedef struct { uint64_t a, b, c, d; } sip;

INLINE sip sip_begun(const uint64_t key[2]) {
    return (sip){key[0] ^ 0x736f6d6570736575ULL, key[1] ^ 0x646f72616e646f6dULL, key[0] ^ 0x6c7967656e657261ULL,
                 key[1] ^ 0x7465646279746573ULL};
}

INLINE sip sip_added(sip of, uint64_t word) {
    of.d ^= word;
    SIP_ROUND(of.a, of.b, of.c, of.d);
    SIP_ROUND(of.a, of.b, of.c, of.d);
    of.a ^= word;
    return of;
}

/* `rest` are the bytes after the last whole word. */
INLINE uint64_t sip_ended(sip of, uint64_t size, uint64_t rest) {
    of = sip_added(of, size << 56 | rest);
    of.c ^= 0xff;
    for (int i = 0; i < 4; i++) SIP_ROUND(of.a, of.b, of.c, of.d);
    return of.a ^ of.b ^ of.c ^ of.d;
}

INLINE lanes sip_bytes(const uint64_t *key, const uint8_t *data, int64_t size) {
    const uint8_t *end = data + size;
    sip first = sip_begun(key), second = sip_begun(key + 2);
    uint64_t rest = 0;
    for (; end - data >= 8; data += 8) {
        uint64_t word = word_at(data);
        first = sip_added(first, word);
        second = sip_added(second, word);
    }
    for (int at = 0; data < end; data++, at += 8) rest |= (uint64_t)*data << at;
    return (lanes){{sip_ended(first, (uint64_t)size, rest), sip_ended(second, (uint64_t)size, rest)}};
}

/* The hashes of `size` bytes, under the key if there is one. */
INLINE lanes hash_bytes(const uint64_t *key, const uint8_t *data, int64_t size) {
    if (key) return sip_bytes(key, data, size);
    const uint8_t *end = data + size;
    uint64_t first = P5, second = P5 + 1;
    if (size >= 32) {
        uint64_t a[4] = {P1 + P2, P2, 0, 0 - P1}, b[4] = {P1 + P2 + 1, P2 + 1, 1, 1 - P1};
        for (; end - data >= 32; data += 32)
            for (int i = 0; i < 4; i++) {
                uint64_t word = word_at(data + 8 * i) * P2;
                a[i] = rotated(a[i] + word, 31) * P1;
                b[i] = rotated(b[i] + word, 31) * P1;
            }
        first = joined(a);
        second = joined(b);
    }
    first += (uint64_t)size;
    second += (uint64_t)size;
    for (; end - data >= 8; data += 8) {
        uint64_t word = mixed(word_at(data));
        first = folded(first, word);
        second = folded(second, word);
    }
    if (end - data >= 4) {
        uint32_t half;
        memcpy(&half, data, 4);
        uint64_t product = half * P1;
        first = rotated(first ^ product, 23) * P2 + P3;
        second = rotated(second ^ product, 23) * P2 + P3;
        data += 4;
    }
    for (; data < end; data++) {
        uint64_t product = *data * P5;
        first = rotated(first ^ product, 11) * P1;
        second = rotated(second ^ product, 11) * P1;
    }
    return (lanes){{avalanche(first), avalanche(second)}};
}

/* --- types ------------------------------------------------------------------------------------------------------ */

enum kind {
    BOOLEAN, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, FLOAT, DOUBLE, DECIMAL, FIXED, TEXT, LARGE_TEXT,
    LIST, LARGE_LIST, FIXED_LIST, MAP, STRUCT,
};

typedef struct node {
    enum kind kind;
    int64_t offset; /* of the array, beside that of its parent */
    const uint8_t *valid; /* NULL where there is no null */
    const void *values; /* offsets, of texts and lists */
    const uint8_t *bytes; /* of texts */
    int64_t size; /* bytes of a fixed-size value, items of a fixed-size list */
    int64_t times, divisor; /* of times: ticks to microseconds */
    const uint64_t *key; /* four words, or NULL */
    int64_t count;
    struct node *children;
} node;

static void freed(node *of) {
    for (int64_t i = 0; i < of->count && of->children; i++) freed(&of->children[i]);
    free(of->children);
    of->children = NULL;
}

static int unit(node *to, char letter) {
    switch (letter) {
    case 's': to->times = 1000000; return DONE;
    case 'm': to->times = 1000; return DONE;
    case 'u': return DONE;
    case 'n': to->divisor = 1000; return DONE;
    default: return UNSUPPORTED;
    }
}

static int64_t number(const char *text) {
    int64_t value = 0;
    if (!*text) return -1;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || value > 1 << 30) return -1;
        value = 10 * value + (*text - '0');
    }
    return value;
}

static int format(node *to, const char *text) {
    static const char letters[] = "bcsilCSIfg";
    static const enum kind kinds[] = {BOOLEAN, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, FLOAT, DOUBLE};
    const char *found;
    if (text[0] && !text[1] && (found = strchr(letters, text[0]))) {
        to->kind = kinds[found - letters];
        return DONE;
    }
    if (!strcmp(text, "u") || !strcmp(text, "z")) to->kind = TEXT;
    else if (!strcmp(text, "U") || !strcmp(text, "Z")) to->kind = LARGE_TEXT;
    else if (!strcmp(text, "+l")) to->kind = LIST;
    else if (!strcmp(text, "+L")) to->kind = LARGE_LIST;
    else if (!strcmp(text, "+m")) to->kind = MAP;
    else if (!strcmp(text, "+s")) to->kind = STRUCT;
    else if (!strcmp(text, "tdD")) to->kind = INT32;
    else if (!strcmp(text, "tdm")) {
        to->kind = INT64;
        to->divisor = 86400000;
    } else if (text[0] == 't' && text[1] == 't' && text[2] && !text[3]) {
        to->kind = text[2] == 's' || text[2] == 'm' ? INT32 : INT64;
        return unit(to, text[2]);
    } else if (text[0] == 't' && text[1] == 's' && text[2] && text[3] == ':') {
        to->kind = INT64;
        return unit(to, text[2]);
    } else if (text[0] == 'd' && text[1] == ':') {
        const char *comma = strchr(text, ',');
        to->kind = DECIMAL;
        return comma && !strchr(comma + 1, ',') ? DONE : UNSUPPORTED; /* a third number is another width than 128 */
    } else if (text[0] == 'w' && text[1] == ':') {
        to->kind = FIXED;
        return (to->size = number(text + 2)) < 0 ? UNSUPPORTED : DONE;
    } else if (!strncmp(text, "+w:", 3)) {
        to->kind = FIXED_LIST;
        return (to->size = number(text + 3)) < 0 ? UNSUPPORTED : DONE;
    } else return UNSUPPORTED;
    return DONE;
}

static int parse(node *to, const struct ArrowSchema *schema, const struct ArrowArray *array, const uint64_t *key, int depth) {
    memset(to, 0, sizeof *to);
    to->key = key;
    to->times = to->divisor = 1;
    if (depth > DEEPEST || schema->dictionary || schema->n_children != array->n_children) return UNSUPPORTED;
    int ended = format(to, schema->format);
    if (ended != DONE) return ended;
    int is_nested = to->kind >= LIST;
    if (is_nested ? !schema->n_children : schema->n_children) return UNSUPPORTED;
    to->offset = array->offset;
    to->valid = array->null_count && array->n_buffers ? array->buffers[0] : NULL;
    to->values = array->n_buffers > 1 ? array->buffers[1] : NULL;
    to->bytes = array->n_buffers > 2 ? array->buffers[2] : NULL;
    if (!is_nested) return DONE;
    if (!(to->children = calloc((size_t)schema->n_children, sizeof(node)))) return NO_MEMORY;
    to->count = schema->n_children;
    for (int64_t i = 0; i < to->count && ended == DONE; i++)
        ended = parse(&to->children[i], schema->children[i], array->children[i], key, depth + 1);
    if (ended == DONE && to->kind == MAP && (to->children[0].kind != STRUCT || to->children[0].count != 2))
        ended = UNSUPPORTED;
    return ended;
}

/* --- lanes ------------------------------------------------------------------------------------------------------ */

/* Values are numbered from the beginning of the array's offset; `first` and `second` have room for `count`. */
static int value_lanes(const node *of, int64_t start, int64_t count, uint64_t *first, uint64_t *second);

INLINE int is_valid(const uint8_t *valid, int64_t at) { return valid[at >> 3] >> (at & 7) & 1; }

HOT static void hash_words(const uint64_t *words, int64_t count, uint64_t *first, uint64_t *second) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t word = mixed(words[i]);
        first[i] = avalanche(folded(P5 + 8, word));
        second[i] = avalanche(folded(P5 + 1 + 8, word));
    }
}

HOT static void sip_words(const uint64_t *key, const uint64_t *words, int64_t count, uint64_t *lane) {
    for (int64_t i = 0; i < count; i++) lane[i] = sip_ended(sip_added(sip_begun(key), words[i]), 8, 0);
}

HOT static void sip_add(uint64_t lane[4][BLOCK], const uint64_t *words, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        sip of = sip_added((sip){lane[0][i], lane[1][i], lane[2][i], lane[3][i]}, words[i]);
        lane[0][i] = of.a;
        lane[1][i] = of.b;
        lane[2][i] = of.c;
        lane[3][i] = of.d;
    }
}

HOT static void sip_end(uint64_t *hash, uint64_t lane[4][BLOCK], int64_t count, uint64_t size) {
    for (int64_t i = 0; i < count; i++)
        hash[i] = sip_ended((sip){lane[0][i], lane[1][i], lane[2][i], lane[3][i]}, size, 0);
}

HOT static void add_round(uint64_t *lane, const uint64_t *words, int64_t count) {
    for (int64_t i = 0; i < count; i++) lane[i] = round_of(lane[i], words[i]);
}

HOT static void add_fold(uint64_t *hash, const uint64_t *words, int64_t count) {
    for (int64_t i = 0; i < count; i++) hash[i] = folded(hash[i], mixed(words[i]));
}

HOT static void join_lanes(uint64_t *hash, uint64_t lane[4][BLOCK], int64_t count, uint64_t size) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t total = rotated(lane[0][i], 1) + rotated(lane[1][i], 7) + rotated(lane[2][i], 12) + rotated(lane[3][i], 18);
        for (int j = 0; j < 4; j++) total = converged(total, lane[j][i]);
        hash[i] = total + size;
    }
}

HOT static void end(uint64_t *hash, int64_t count) {
    for (int64_t i = 0; i < count; i++) hash[i] = avalanche(hash[i]);
}

/* The three steps of XXH64 below 32 bytes, of many values of one size side by side. */
HOT static void fold_words(uint64_t *first, uint64_t *second, const uint64_t *words, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t word = mixed(words[i]);
        first[i] = folded(first[i], word);
        second[i] = folded(second[i], word);
    }
}

HOT static void fold_halves(uint64_t *first, uint64_t *second, const uint64_t *halves, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t product = halves[i] * P1;
        first[i] = rotated(first[i] ^ product, 23) * P2 + P3;
        second[i] = rotated(second[i] ^ product, 23) * P2 + P3;
    }
}

HOT static void fold_bytes(uint64_t *first, uint64_t *second, const uint64_t *bytes, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t product = bytes[i] * P5;
        first[i] = rotated(first[i] ^ product, 11) * P1;
        second[i] = rotated(second[i] ^ product, 11) * P1;
    }
}

/* The hashes of `count` texts of `size` bytes, below 32: no branch depends on a text. */
static void hash_alike(const uint8_t **texts, int64_t size, int64_t count, uint64_t *first, uint64_t *second) {
    uint64_t words[BLOCK];
    int64_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        first[i] = P5 + (uint64_t)size;
        second[i] = P5 + 1 + (uint64_t)size;
    }
    for (; size - at >= 8; at += 8) {
        for (int64_t i = 0; i < count; i++) words[i] = word_at(texts[i] + at);
        fold_words(first, second, words, count);
    }
    if (size - at >= 4) {
        for (int64_t i = 0; i < count; i++) {
            uint32_t half;
            memcpy(&half, texts[i] + at, 4);
            words[i] = half;
        }
        fold_halves(first, second, words, count);
        at += 4;
    }
    for (; at < size; at++) {
        for (int64_t i = 0; i < count; i++) words[i] = texts[i][at];
        fold_bytes(first, second, words, count);
    }
    end(first, count);
    end(second, count);
}

/* One lane of a block of rows, a column of words at a time. */
typedef struct { int64_t words, striped, position; int keyed; uint64_t lane[4][BLOCK], *hash; } rows_hash;

static void begin_rows(rows_hash *of, const uint64_t *key, int64_t words, uint64_t seed, int64_t count, uint64_t *hash) {
    uint64_t start[4] = {seed + P1 + P2, seed + P2, seed, seed - P1};
    if (key) {
        sip begun = sip_begun(key + 2 * seed);
        memcpy(start, &begun, sizeof start);
    }
    of->keyed = key != NULL;
    of->words = words;
    of->striped = words / 4 * 4;
    of->position = 0;
    of->hash = hash;
    for (int64_t i = 0; i < count; i++) {
        for (int j = 0; j < 4; j++) of->lane[j][i] = start[j];
        hash[i] = seed + P5 + 8 * (uint64_t)words;
    }
}

static void add_column(rows_hash *to, const uint64_t *words, int64_t count) {
    int64_t position = to->position++;
    if (to->keyed) {
        sip_add(to->lane, words, count);
        return;
    }
    if (position >= to->striped) {
        add_fold(to->hash, words, count);
        return;
    }
    add_round(to->lane[position % 4], words, count);
    if (position + 1 == to->striped) join_lanes(to->hash, to->lane, count, 8 * (uint64_t)to->words);
}

static void end_rows(rows_hash *of, int64_t count) {
    if (of->keyed) sip_end(of->hash, of->lane, count, 8 * (uint64_t)of->words);
    else end(of->hash, count);
}

/* Rows whose columns are the children, numbered from `start` of each child's own. */
static int record_lanes(const node *children, int64_t columns, int64_t start, int64_t count, uint64_t *first, uint64_t *second) {
    int ended = DONE;
    int64_t validity = (columns + 63) / 64;
    rows_hash *hashes = malloc(2 * sizeof(rows_hash));
    uint64_t *words = malloc(2 * BLOCK * sizeof(uint64_t));
    if (!hashes || !words) ended = NO_MEMORY;
    for (int64_t done = 0; done < count && ended == DONE; done += BLOCK) {
        int64_t size = count - done < BLOCK ? count - done : BLOCK;
        begin_rows(&hashes[0], children->key, validity + columns, 0, size, first + done);
        begin_rows(&hashes[1], children->key, validity + columns, 1, size, second + done);
        for (int64_t group = 0; group < columns; group += 64) {
            int64_t bits = columns - group < 64 ? columns - group : 64;
            uint64_t all = bits == 64 ? ~0ULL : (1ULL << bits) - 1;
            for (int64_t i = 0; i < size; i++) words[i] = all;
            for (int64_t bit = 0; bit < bits; bit++) {
                const node *child = &children[group + bit];
                if (!child->valid) continue;
                int64_t at = child->offset + start + done;
                for (int64_t i = 0; i < size; i++)
                    words[i] ^= (uint64_t)!is_valid(child->valid, at + i) << bit;
            }
            for (int seed = 0; seed < 2; seed++) add_column(&hashes[seed], words, size);
        }
        for (int64_t i = 0; i < columns && ended == DONE; i++) {
            ended = value_lanes(&children[i], start + done, size, words, words + BLOCK);
            for (int seed = 0; seed < 2; seed++) add_column(&hashes[seed], words + seed * BLOCK, size);
        }
        for (int seed = 0; seed < 2; seed++) end_rows(&hashes[seed], size);
    }
    free(hashes);
    free(words);
    return ended;
}

#define EACH(type, expression)                                                                                         \
    do {                                                                                                               \
        const type *values = (const type *)of->values + at;                                                            \
        for (int64_t i = 0; i < count; i++) words[i] = (uint64_t)(int64_t)(expression);                                \
    } while (0)

INLINE uint64_t of_double(double value) {
    uint64_t word;
    value += 0.0; /* -0.0 as 0.0 */
    memcpy(&word, &value, 8);
    return value != value ? 0x7ff8000000000000ULL : word;
}

INLINE int64_t floor_of(int64_t value, int64_t divisor) {
    int64_t quotient = value / divisor;
    return quotient - (value % divisor < 0);
}

/* The canonical 8 bytes of at most BLOCK values. */
static void fixed_words(const node *of, int64_t at, int64_t count, uint64_t *words) {
    switch (of->kind) {
    case BOOLEAN:
        for (int64_t i = 0; i < count; i++) words[i] = (uint64_t)is_valid(of->values, at + i);
        return;
    case INT8: EACH(int8_t, values[i]); break;
    case INT16: EACH(int16_t, values[i]); break;
    case INT32: EACH(int32_t, values[i]); break;
    case INT64: EACH(int64_t, values[i]); break;
    case UINT8: EACH(uint8_t, values[i]); return;
    case UINT16: EACH(uint16_t, values[i]); return;
    case UINT32: EACH(uint32_t, values[i]); return;
    case FLOAT: EACH(float, of_double((double)values[i])); return;
    default: EACH(double, of_double(values[i])); return;
    }
    if (of->times != 1)
        for (int64_t i = 0; i < count; i++) words[i] *= (uint64_t)of->times;
    if (of->divisor != 1)
        for (int64_t i = 0; i < count; i++) words[i] = (uint64_t)floor_of((int64_t)words[i], of->divisor);
}

INLINE int64_t offset_at(const node *of, int64_t at) {
    switch (of->kind) {
    case TEXT: case LIST: case MAP: return ((const int32_t *)of->values)[at];
    case LARGE_TEXT: case LARGE_LIST: return ((const int64_t *)of->values)[at];
    default: return at * of->size;
    }
}

/* Of rows that have at most MOST_ITEMS together, or of one row. */
static int some_list_lanes(const node *of, int64_t at, int64_t count, uint64_t *first, uint64_t *second) {
    const node *items = &of->children[0];
    int64_t from = offset_at(of, at), all = offset_at(of, at + count) - from, longest = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t length = offset_at(of, at + i + 1) - offset_at(of, at + i);
        if (length > longest) longest = length;
    }
    uint64_t *item = malloc(((size_t)all * 2 + 1) * sizeof(uint64_t));
    uint64_t *text = malloc(((size_t)longest + (size_t)(longest + 63) / 64 + 1) * sizeof(uint64_t));
    int ended = item && text ? DONE : NO_MEMORY;
    if (ended == DONE && all)
        ended = of->kind == MAP
            ? record_lanes(items->children, items->count, items->offset + from, all, item, item + all)
            : value_lanes(items, from, all, item, item + all);
    for (int64_t i = 0; i < count && ended == DONE; i++) {
        int64_t begin = offset_at(of, at + i), length = offset_at(of, at + i + 1) - begin;
        if (of->valid && !is_valid(of->valid, at + i)) continue;
        text[0] = (uint64_t)length;
        if (of->kind == MAP) {
            for (int seed = 0; seed < 2; seed++) {
                uint64_t sum = 0;
                for (int64_t j = 0; j < length; j++) sum += item[seed * all + begin - from + j];
                text[1] = sum;
                (seed ? second : first)[i] = hash_bytes(of->key, (const uint8_t *)text, 16).of[seed];
            }
            continue;
        }
        int64_t validity = (length + 63) / 64;
        for (int64_t j = 0; j < validity; j++) {
            int64_t bits = length - 64 * j;
            text[1 + j] = bits >= 64 ? ~0ULL : (1ULL << bits) - 1;
        }
        if (items->valid)
            for (int64_t j = 0; j < length; j++)
                if (!is_valid(items->valid, items->offset + begin + j)) text[1 + j / 64] ^= 1ULL << (j & 63);
        for (int seed = 0; seed < 2; seed++) {
            memcpy(text + 1 + validity, item + seed * all + begin - from, (size_t)length * 8);
            (seed ? second : first)[i] = hash_bytes(of->key, (const uint8_t *)text, 8 * (1 + validity + length)).of[seed];
        }
    }
    free(item);
    free(text);
    return ended;
}

static int list_lanes(const node *of, int64_t at, int64_t count, uint64_t *first, uint64_t *second) {
    int ended = DONE;
    for (int64_t done = 0, size; done < count && ended == DONE; done += size) {
        int64_t from = offset_at(of, at + done);
        size = count - done;
        while (size > 1 && offset_at(of, at + done + size) - from > MOST_ITEMS) size /= 2;
        ended = some_list_lanes(of, at + done, size, first + done, second + done);
    }
    return ended;
}

/* Of at most BLOCK texts: those of one size below 32 together, so that their sizes, which nobody foresees, cost little. */
static void text_lanes(const node *of, int64_t at, int64_t count, uint64_t *first, uint64_t *second) {
    int64_t begun[33] = {0}, placed[BLOCK];
    const uint8_t *texts[BLOCK];
    uint64_t found[2][BLOCK];
    uint8_t sizes[BLOCK]; /* 32: hashed at once, or null */
    for (int64_t i = 0; i < count; i++) {
        int64_t from = offset_at(of, at + i), size = offset_at(of, at + i + 1) - from;
        sizes[i] = 32;
        if (of->valid && !is_valid(of->valid, at + i)) continue;
        if (size < 32 && !of->key) {
            sizes[i] = (uint8_t)size;
            begun[size + 1]++;
            continue;
        }
        lanes hashed = hash_bytes(of->key, of->bytes + from, size);
        first[i] = hashed.of[0];
        second[i] = hashed.of[1];
    }
    for (int size = 1; size <= 32; size++) begun[size] += begun[size - 1];
    int64_t next[32];
    memcpy(next, begun, sizeof next);
    for (int64_t i = 0; i < count; i++) {
        if (sizes[i] == 32) continue;
        int64_t place = next[sizes[i]]++;
        placed[place] = i;
        texts[place] = of->bytes + offset_at(of, at + i);
    }
    for (int64_t size = 0; size < 32; size++)
        if (begun[size + 1] > begun[size])
            hash_alike(texts + begun[size], size, begun[size + 1] - begun[size], found[0] + begun[size], found[1] + begun[size]);
    for (int64_t place = 0; place < begun[32]; place++) {
        first[placed[place]] = found[0][place];
        second[placed[place]] = found[1][place];
    }
}

static int block_lanes(const node *of, int64_t start, int64_t count, uint64_t *first, uint64_t *second) {
    int ended = DONE;
    int64_t at = of->offset + start;
    switch (of->kind) {
    case STRUCT: ended = record_lanes(of->children, of->count, at, count, first, second); break;
    case LIST: case LARGE_LIST: case FIXED_LIST: case MAP: ended = list_lanes(of, at, count, first, second); break;
    case TEXT: case LARGE_TEXT: text_lanes(of, at, count, first, second); break;
    case DECIMAL: case FIXED: {
        const uint8_t *bytes = of->values;
        for (int64_t i = 0; i < count; i++) {
            if (of->valid && !is_valid(of->valid, at + i)) continue;
            int64_t from = of->kind == DECIMAL ? 16 * (at + i) : offset_at(of, at + i);
            int64_t size = of->kind == DECIMAL ? 16 : offset_at(of, at + i + 1) - from;
            lanes found = hash_bytes(of->key, bytes + from, size);
            first[i] = found.of[0];
            second[i] = found.of[1];
        }
        break;
    }
    default: {
        uint64_t words[BLOCK];
        fixed_words(of, at, count, words);
        if (of->key) {
            sip_words(of->key, words, count, first);
            sip_words(of->key + 2, words, count, second);
        } else hash_words(words, count, first, second);
    }
    }
    if (of->valid)
        for (int64_t i = 0; i < count; i++) {
            uint64_t keep = 0 - (uint64_t)is_valid(of->valid, at + i);
            first[i] &= keep;
            second[i] &= keep;
        }
    return ended;
}

static int value_lanes(const node *of, int64_t start, int64_t count, uint64_t *first, uint64_t *second) {
    int ended = DONE;
    for (int64_t done = 0; done < count && ended == DONE; done += BLOCK) {
        int64_t size = count - done < BLOCK ? count - done : BLOCK;
        ended = block_lanes(of, start + done, size, first + done, second + done);
    }
    return ended;
}

/* --- what is called --------------------------------------------------------------------------------------------- */

/* The two hashes of each row of a batch, in row order. `key` has four words, or is NULL: here and below. */
int lanes_of_rows(const struct ArrowSchema *schema, const struct ArrowArray *batch, const uint64_t *key, uint64_t *first, uint64_t *second) {
    node root;
    int ended = parse(&root, schema, batch, key, 0);
    if (ended == DONE && root.kind != STRUCT) ended = UNSUPPORTED;
    if (ended == DONE) ended = record_lanes(root.children, root.count, root.offset, batch->length, first, second);
    freed(&root);
    return ended;
}

/* Their sums modulo 2^64. */
int sums_of_rows(const struct ArrowSchema *schema, const struct ArrowArray *batch, const uint64_t *key, uint64_t sums[2]) {
    node root;
    int ended = parse(&root, schema, batch, key, 0);
    if (ended == DONE && root.kind != STRUCT) ended = UNSUPPORTED;
    sums[0] = sums[1] = 0;
    uint64_t block[2][BLOCK];
    for (int64_t done = 0; ended == DONE && done < batch->length; done += BLOCK) {
        int64_t size = batch->length - done < BLOCK ? batch->length - done : BLOCK;
        ended = record_lanes(root.children, root.count, root.offset + done, size, block[0], block[1]);
        for (int64_t i = 0; i < size; i++) {
            sums[0] += block[0][i];
            sums[1] += block[1][i];
        }
    }
    freed(&root);
    return ended;
}

/* --- rows of a frame among those of a table ----------------------------------------------------------------------- */

enum { REACH = 32, LOST_ROWS = 4096 };
static const uint32_t EMPTY = UINT32_MAX, EXHAUSTED = UINT32_MAX - 1;

typedef struct {
    const uint64_t *new0, *new1, *old0, *old1;
    uint8_t *known, *taken;
} sides;

static int same(const sides *of, int64_t row, int64_t at) {
    return of->new0[row] == of->old0[at] && of->new1[row] == of->old1[at];
}

static int claim(const sides *of, int64_t row, int64_t at) {
    if (of->taken[at] || !same(of, row, at)) return 0;
    of->known[row] = of->taken[at] = 1;
    return 1;
}

/* Both in their order, over short stretches that one has and the other has not; until too much is in no order. */
static void claim_in_order(const sides *of, int64_t count, int64_t size) {
    int64_t row = 0, at = 0, claimed = 0, lost = 0;
    while (row < count && at < size && lost < LOST_ROWS + claimed / 4) {
        if (claim(of, row, at)) {
            row++, at++, claimed++;
            continue;
        }
        int64_t further = of->taken[at] ? 1 : REACH, ahead = of->taken[at] ? 0 : REACH;
        for (int64_t distance = 1; ahead == REACH && distance < REACH; distance++) {
            for (int64_t i = 0; i <= distance; i++) {
                int64_t next = row + i, there = at + distance - i;
                if (next < count && there < size && !of->taken[there] && same(of, next, there)) {
                    ahead = i, further = distance - i;
                    break;
                }
            }
        }
        if (ahead == REACH) lost += REACH;
        row += ahead, at += further;
    }
}

/* Which rows of a frame a table has, by two hashes a row: each row of the table stands for one of them, the first of
 * equal ones first where they are not in order. `taken` has 1 for the rows of the table that are deleted, and has it
 * for those that stand for one afterwards; `known` for the rows of the frame that the table has. */
int match_rows(const uint64_t *new0, const uint64_t *new1, int64_t count, const uint64_t *old0, const uint64_t *old1, int64_t size, uint8_t *known, uint8_t *taken) {
    sides of = {new0, new1, old0, old1, known, taken};
    if (size >= EXHAUSTED) return UNSUPPORTED;
    memset(known, 0, count);
    claim_in_order(&of, count, size);
    int64_t left = 0, places = 16;
    for (int64_t at = 0; at < size; at++) left += !taken[at];
    if (!left || !memchr(known, 0, count)) return DONE;
    while (places < left + left / 2) places *= 2;
    uint32_t *first = malloc(places * sizeof *first), *next = malloc(size * sizeof *next);
    if (first == NULL || next == NULL) {
        free(first), free(next);
        return NO_MEMORY;
    }
    memset(first, 0xff, places * sizeof *first);
    for (int64_t at = size - 1; at >= 0; at--) {
        if (taken[at]) continue;
        int64_t place = old0[at] & (places - 1);
        while (first[place] != EMPTY && !(old0[first[place]] == old0[at] && old1[first[place]] == old1[at])) place = (place + 1) & (places - 1);
        next[at] = first[place];
        first[place] = at;
    }
    for (int64_t row = 0; row < count; row++) {
        if (known[row]) continue;
        int64_t place = new0[row] & (places - 1);
        while (first[place] != EMPTY && (first[place] == EXHAUSTED || !same(&of, row, first[place]))) place = (place + 1) & (places - 1);
        if (first[place] == EMPTY) continue;
        int64_t at = first[place];
        known[row] = taken[at] = 1;
        first[place] = next[at] == EMPTY ? EXHAUSTED : next[at];
    }
    free(first), free(next);
    return DONE;
}
