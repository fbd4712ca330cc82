/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What an S3 volume stores: names of objects, the super object, log and GC
 * objects. Summaries and checkpoints are in checkpoint.h. Everything is little
 * endian and carries a CRC32C. Decoders take (data, length) from a store that is
 * not trusted: they check everything, and never read beyond length.
 *
 * Units: blocks are of the volume's block size (super), bytes are said.
 */
#ifndef USERBLK_S3_FORMAT_H
#define USERBLK_S3_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/s3/base/bytes.h"

#define S3_UUID 16

/*
 * Limits that hold for writers and readers: a reader accepts whatever a writer may store. If a
 * parameter sets the writer's value, such as the size of batches, a reader accepts the largest.
 */
#define S3_BLOCK_MIN  9		   /* log2 of the smallest block: 512 bytes */
#define S3_BLOCK_MAX  16	   /* and of the largest */
#define S3_BLOCKS_MAX (1ull << 37) /* blocks of a volume: 65536 regions (map.h) */
#define S3_ALIGN      4096u	   /* a header is a multiple of it, data follows */
#define S3_OBJECT_MAX 65536u	   /* blocks of data in one object, */
#define S3_DATA_MAX   (256u << 20) /* and bytes of it */
#define S3_HEADER_MAX (16u << 20)  /* bytes of an object's header */
#define S3_BATCH_MIN  (1u << 20)   /* bytes of data that make an object of the log */
#define S3_BATCH_MAX  (16u << 20)
/* Records of an object beyond one for each block: trims and relocations have no data. */
#define S3_EXTRA_RECORDS 4096u
#define S3_RECORDS_MAX	 ((S3_BATCH_MAX >> S3_BLOCK_MIN) + S3_EXTRA_RECORDS)
#define S3_PATH_MAX	 512 /* bytes of <prefix>/<volume> */
#define S3_NAME_MAX	 63  /* characters of a snapshot's name */
#define S3_KEY_ROOM	 192 /* bytes of any key below the volume's, with its NUL */
#define S3_PARENTS_MAX	 255 /* length of a chain of clones */

#define S3_UNIT	     (64u << 10) /* bytes of data before compression and encryption */
#define S3_TAG	     16u	 /* bytes that encryption adds to a unit */
#define S3_KEY_BYTES 32u	 /* of a key of the encryption, */
#define S3_SALT	     16u	 /* and of what is drawn for each use of it */

/*
 * The number of an object. A log object's is its sequence number, from 1 on; a
 * GC object's has the bit S3_GC and counts by itself. Neither is used twice for data that
 * was acknowledged.
 */
#define S3_GC (1ull << 63)
/*
 * The first number of a writer's GC objects, by its epoch: no two writers use the same one. Older
 * programs numbered them from 1 on, as if in epoch 0.
 */
#define S3_GC_FIRST(epoch) (S3_GC | (uint64_t)(epoch) << 32 | 1)
#define S3_EPOCH_MAX	   UINT64_C(0x7fffffff)

/* Why something stored was not accepted. */
enum s3_check {
	S3_GOOD = 0,
	S3_SHORT,	 /* it ends before what it says it holds */
	S3_NOT_OURS,	 /* no magic of ours */
	S3_CHECKSUM,	 /* the CRC does not match: damaged */
	S3_NEWER,	 /* a version this program does not know */
	S3_UNKNOWN_FLAG, /* a feature this program does not know */
	S3_OTHER_VOLUME, /* another volume's uuid */
	S3_INVALID,	 /* the CRC matches, yet the content contradicts itself */
	S3_NO_MEMORY,
};

/* "is damaged: checksum differs": completes a sentence that names the object. */
const char *s3_check_text(enum s3_check check);

/* ---- names ------------------------------------------------------------------- */

/*
 * Keys below <prefix>/<volume>/. The low byte of a number precedes it, which spreads
 * keys over 256 prefixes. No key is a prefix of another at a "/": stores on file systems
 * cannot hold both.
 *   super                        deleted (a copy of it, while a volume is being deleted)
 *   log/<hh>/<16 hex>            gc/<hh>/<16 hex>           chunk/<hh>/<16 hex> (layout=direct)
 *   ckpt/<16 hex>/root           ckpt/<16 hex>/<4 hex>      ckpt/<16 hex>/summary
 *   snap/<name>/root-<16 hex>    snap/<name>/child/<32 hex uuid>
 *   probe/<32 hex>
 */
enum s3_name_kind {
	S3_NAME_SUPER,
	S3_NAME_LOG,	  /* number: sequence number */
	S3_NAME_GC,	  /* number: object number, with S3_GC */
	S3_NAME_CHUNK,	  /* number: chunk */
	S3_NAME_ROOT,	  /* number: frontier */
	S3_NAME_REGION,	  /* number: frontier; region */
	S3_NAME_SUMMARY,  /* number: last sequence number in it */
	S3_NAME_SNAPSHOT, /* name; number: its sequence number, 0: by an older program, without */
	S3_NAME_CHILD,	  /* name; uuid */
	S3_NAME_PROBE,	  /* uuid */
	S3_NAME_DELETED,
};

struct s3_name {
	enum s3_name_kind kind;
	uint64_t number;
	uint32_t region;
	char name[S3_NAME_MAX + 1];
	uint8_t uuid[S3_UUID];
};

/* Writes the key below the volume's; key has S3_KEY_ROOM bytes. */
void s3_name_format(const struct s3_name *name, char *key);
/* The same of a log or GC object by its number. */
void s3_name_object(uint64_t id, char *key);
/* False: no key that s3_name_format() writes, byte for byte. */
bool s3_name_parse(const char *key, struct s3_name *name);
/* Is it, of kind S3_NAME_CHILD, no clone but the mark of a deletion? */
bool s3_name_is_mark(const struct s3_name *name);
/* A snapshot's or volume's name: 1 to 63 of a-z 0-9 . _ -, beginning with a letter or digit. */
bool s3_name_valid(const char *name);

/* ---- super ------------------------------------------------------------------- */

#define S3_FEATURE_ZSTD (1u << 0) /* data compressed in units */
#define S3_FEATURE_AES	(1u << 1) /* data encrypted in units, AES-256-GCM */
#define S3_FEATURES	(S3_FEATURE_ZSTD | S3_FEATURE_AES)
/* Only in what is stored of the super object: it has a write_back. */
#define S3_FEATURE_WRITE_BACK (1u << 2)
/* Only in what is stored of the super object: it has wrapped keys. */
#define S3_FEATURE_WRAPPED (1u << 3)
/* The same: snapshots' own roots have their number in the key. */
#define S3_FEATURE_NUMBERED (1u << 4)

enum s3_layout { S3_LAYOUT_LOG = 0, S3_LAYOUT_DIRECT = 1 };

/* Where the blocks of a clone's ancestor are. Origin n of an object is parents[n - 1]. */
struct s3_parent {
	uint8_t uuid[S3_UUID];
	uint64_t last_seq; /* of the snapshot */
	char snapshot[S3_NAME_MAX + 1];
	char *path; /* <prefix>/<volume>, in the same bucket */
};

/* Bytes of the wrapped keys of a volume and its ancestors (transform.h). */
#define S3_WRAPPED(n_parents) (S3_SALT + (1 + (size_t)(n_parents)) * S3_KEY_BYTES + S3_TAG)

struct s3_super {
	uint8_t uuid[S3_UUID];
	uint32_t features; /* S3_FEATURE_ */
	enum s3_layout layout;
	unsigned block_shift;  /* log2 of the block size in bytes */
	uint64_t blocks;       /* size of the volume */
	uint32_t chunk_blocks; /* layout direct: blocks of a chunk; else 0 */
	uint64_t epoch;	       /* of the last writer that rewrote it */
	uint64_t created;      /* s since 1970 */
	uint64_t checkpoint;   /* frontier of the newest root known; a hint, 0: none */
	uint8_t key_check[16]; /* s3_transform_key_check(); zero without S3_FEATURE_AES */
	/* Instance of the writer whose write-back log may hold what the store lacks; zero: none. */
	uint8_t write_back[S3_UUID];
	bool numbered; /* S3_FEATURE_NUMBERED */
	unsigned n_parents;
	struct s3_parent *parents; /* the nearest first */
	/* S3_WRAPPED(n_parents) bytes; NULL: without S3_FEATURE_AES, or made by an older program,
	 * whose volumes' keys are derived from the user's key */
	uint8_t *wrapped;
};

void s3_super_encode(const struct s3_super *super, struct s3_buffer *out);
/* Fills *super, to be freed with s3_super_free(), only when the answer is S3_GOOD. */
enum s3_check s3_super_decode(const void *data, size_t length, struct s3_super *super);
void s3_super_free(struct s3_super *super);

/* ---- log and GC objects --------------------------------------------------------- */

enum s3_type {
	S3_TYPE_DATA = 1, /* log: a batch */
	S3_TYPE_FENCE,	  /* log: a writer took over; no records, no data */
	S3_TYPE_CLEAN,	  /* log: closed in order; no records, no data */
	S3_TYPE_GC,	  /* data that RELOCATE records refer to; its WRITE records say whence */
};

enum s3_record_op {
	S3_RECORD_WRITE = 1, /* blocks of this object's data */
	S3_RECORD_ZERO,	     /* reads as zeroes; count has 48 bits */
	S3_RECORD_DISCARD,   /* the same: only the log distinguishes them */
	S3_RECORD_GC_OBJECT, /* describes the GC object that the following RELOCATE records name */
	S3_RECORD_RELOCATE,  /* moves what still is where source says */
	S3_RECORD_RESET,     /* rollback: from here on the map is that of the snapshot at seq */
};

struct s3_record {
	enum s3_record_op op;
	uint64_t lba;	 /* blocks; all but GC_OBJECT and RESET */
	uint64_t count;	 /* blocks, at least 1 */
	uint32_t offset; /* WRITE, RELOCATE (of the destination): block in the data */
	/* RELOCATE: whence; in the WRITE records of a GC object 0. */
	uint64_t source;
	uint8_t source_origin; /* 0, or of an ancestor's object: super.parents[n - 1] */
	uint32_t source_offset;
	/* RELOCATE, GC_OBJECT: the GC object. */
	uint64_t object;
	/* GC_OBJECT: what s3_objects_add() wants to know. */
	uint32_t bytes, blocks, header_bytes;
	/* RESET: the snapshot's. */
	uint64_t seq;
};

struct s3_object_header {
	enum s3_type type;
	uint32_t flags; /* S3_FEATURE_ of this object's data */
	unsigned block_shift;
	uint8_t uuid[S3_UUID];
	uint64_t id; /* log: sequence number; GC: with S3_GC */
	uint64_t epoch;
	uint8_t instance[S3_UUID]; /* of the writer */
	uint64_t batch;		   /* number of the batch in that instance */
	uint64_t frontier;	   /* durable when it was built */
	uint64_t checkpoint;	   /* newest root, 0: none */
	uint64_t cache_record;	   /* newest entry of a write-back log replayed into it, 0: none */
	uint64_t time;		   /* us since 1970 */
	uint8_t salt[S3_SALT];	   /* random; of the object's key, zero without S3_FEATURE_AES */
	uint32_t blocks;	   /* of data */
	uint32_t header_bytes;	   /* where data begins; a multiple of S3_ALIGN */
	uint32_t data_bytes;	   /* as stored; blocks << block_shift without features */
	uint32_t n_records;
	uint32_t n_crc; /* one per block of data, or per unit when data is transformed */
	/* Decoded headers only; into the caller's data. */
	const uint8_t *records, *crcs;
	size_t records_bytes;
};

/* A transformed unit of data as it is stored. */
struct s3_unit {
	uint32_t bytes; /* stored, with the tag of the encryption */
	bool raw;	/* did not shrink: not compressed */
	uint32_t crc;	/* of the stored bytes */
};

/* Bytes that a header needs at most: for n_records of any kind and blocks of data. */
size_t s3_header_room(size_t n_records, uint32_t blocks, unsigned block_shift, uint32_t flags);

/*
 * Builds a header step by step in buffer (room bytes, S3_ALIGN-aligned size):
 *   begin, record..., then crcs (plain data) or units (transformed), finish.
 * finish sets header_bytes, data_bytes, n_records, n_crc and answers header_bytes,
 * or 0 when room does not suffice.
 */
struct s3_header_writer {
	struct s3_object_header header;
	uint8_t *buffer;
	size_t room, length;
	uint32_t n_records;
	bool overflow;
};

void s3_header_begin(struct s3_header_writer *w, const struct s3_object_header *header,
	void *buffer, size_t room);
void s3_header_add(struct s3_header_writer *w, const struct s3_record *record);
/* crcs: one per block of header->blocks. */
size_t s3_header_finish(struct s3_header_writer *w, const uint32_t *crcs);
size_t s3_header_finish_units(struct s3_header_writer *w, const struct s3_unit *units);

/*
 * Checks a header completely, its records included. length: bytes that were read, which
 * may be less than the object or, when the answer is S3_SHORT, than the header: then
 * header->header_bytes says how much to read (0: not even that is known). uuid: the
 * volume's; NULL: any. Whether header->id is that of the key, the caller compares.
 */
enum s3_check s3_header_decode(
	const void *data, size_t length, const uint8_t *uuid, struct s3_object_header *header);

/*
 * Does a header that s3_header_decode() answers with S3_NEWER or S3_UNKNOWN_FLAG name that volume
 * and that writer, as all versions do?
 */
bool s3_header_names(const void *data, size_t length, const uint8_t *uuid, const uint8_t *instance);

/* What s3_header_decode() checks of fields and records, for who encodes them otherwise. */
bool s3_header_valid(const struct s3_object_header *header);
bool s3_record_valid(const struct s3_record *record, const struct s3_object_header *header);

/* Walks the records of a decoded header: start with cursor 0; false: no more. */
bool s3_header_next(
	const struct s3_object_header *header, size_t *cursor, struct s3_record *record);
/* CRC32C of block index of plain data. */
uint32_t s3_header_crc(const struct s3_object_header *header, uint32_t index);
/* Unit index of transformed data. */
struct s3_unit s3_header_unit(const struct s3_object_header *header, uint32_t index);

#endif
