/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * When a modelled SSD completes a request: a queueing model, without a clock or memory of its own.
 * The kernel module and the unit test include the same code.
 *
 *   controller  takes one request at a time, command_ns each
 *   channels    reads: the first byte's page decides which one; a request holds it for read_ns and
 *               read_ps a byte. A read that continues one of the last SSD_STREAMS sequential
 *               streams was prefetched: it takes stream_ns and stream_ps instead, and no channel
 *   link        moves read_link_ps or write_link_ps a byte, one request after the other;
 *               with duplex reads and writes do not wait for each other
 *   buffer      writes end write_ns after they are in it; it holds buffer_bytes and empties at
 *               drain_ps a byte, so that writes in the long run are as fast as that
 *   flush       ends flush_ns after what the buffer holds at its arrival has left it
 *   discard     discard_ns each, after the controller
 *
 * Times are ns of one clock, lengths bytes, ps are picoseconds.
 */
#ifndef USERBLK_LAB_SSD_MODEL_H
#define USERBLK_LAB_SSD_MODEL_H

#ifdef __KERNEL__
#include <linux/math64.h>
#include <linux/types.h>
#define ssd_divide(a, b) div64_u64(a, b)
#else
#include <stdbool.h>
#include <stdint.h>
typedef uint64_t u64;
#define ssd_divide(a, b) ((a) / (b))
#endif

#define SSD_CHANNELS 256 /* at most */
#define SSD_STREAMS  32
#define SSD_PAGE     4096

enum ssd_operation { SSD_READ, SSD_WRITE, SSD_FLUSH, SSD_DISCARD };

struct ssd_parameters {
	u64 channels;
	u64 command_ns;
	u64 read_ns, read_ps, stream_ns, stream_ps;
	u64 read_link_ps, write_link_ps, duplex;
	u64 write_ns, buffer_bytes, drain_ps;
	u64 flush_ns, discard_ns;
};

struct ssd_model {
	struct ssd_parameters p;
	u64 controller_free, channel_free[SSD_CHANNELS], link_free[2];
	u64 drained; /* when the buffer will be empty */
	u64 stream_end[SSD_STREAMS];
	unsigned next_stream;
};

static inline u64 ssd_later(u64 a, u64 b)
{
	return a > b ? a : b;
}

/* Time in ns that bytes take at ps a byte. */
static inline u64 ssd_transfer(u64 bytes, u64 ps)
{
	return ssd_divide(bytes * ps, 1000);
}

/* Which channel holds the page at offset. Neighbours are on different ones, and no stride is on one
 * only. */
static inline unsigned ssd_channel(const struct ssd_model *m, u64 offset)
{
	u64 page = ssd_divide(offset, SSD_PAGE);

	/* The finalizer of MurmurHash3: what is random in any way stays so. */
	page = (page ^ (page >> 33)) * 0xff51afd7ed558ccdull;
	page = (page ^ (page >> 33)) * 0xc4ceb9fe1a85ec53ull;
	page ^= page >> 33;
	return (unsigned)(((page >> 32) * m->p.channels) >> 32);
}

/* Does a read at offset go on where an earlier one ended? It is remembered as the newest end. */
static inline bool ssd_continues(struct ssd_model *m, u64 offset, u64 bytes)
{
	for (unsigned i = 0; i < SSD_STREAMS; i++)
		if (m->stream_end[i] == offset && offset) {
			m->stream_end[i] = offset + bytes;
			return true;
		}
	m->stream_end[m->next_stream] = offset + bytes;
	m->next_stream = (m->next_stream + 1) % SSD_STREAMS;
	return false;
}

/* Moves bytes over the link from when on; answers the end. direction: 0 reads, 1 writes. */
static inline u64 ssd_link(struct ssd_model *m, unsigned direction, u64 bytes, u64 when)
{
	u64 *link = &m->link_free[m->p.duplex ? direction : 0];

	*link = ssd_later(*link, when) +
		ssd_transfer(bytes, direction ? m->p.write_link_ps : m->p.read_link_ps);
	return *link;
}

/*
 * A request arrives at now. The time at which it completes, but for reads: at that time they are
 * ready to be moved, for which ssd_move() must be called then. All calls come in the order of
 * time.
 */
static inline u64 ssd_arrive(
	struct ssd_model *m, enum ssd_operation operation, u64 offset, u64 bytes, u64 now)
{
	const struct ssd_parameters *p = &m->p;
	u64 at = ssd_later(m->controller_free, now) + p->command_ns;

	m->controller_free = at;
	switch (operation) {
	case SSD_READ:
		if (ssd_continues(m, offset, bytes)) {
			at += p->stream_ns + ssd_transfer(bytes, p->stream_ps);
		} else {
			u64 *channel = &m->channel_free[ssd_channel(m, offset)];

			at = ssd_later(*channel, at) + p->read_ns + ssd_transfer(bytes, p->read_ps);
			*channel = at;
		}
		return at;
	case SSD_WRITE: {
		u64 room = ssd_transfer(p->buffer_bytes, p->drain_ps);

		at = ssd_link(m, 1, bytes, at);
		m->drained = ssd_later(m->drained, at) + ssd_transfer(bytes, p->drain_ps);
		return ssd_later(at, m->drained > room ? m->drained - room : 0) + p->write_ns;
	}
	case SSD_FLUSH:
		return ssd_later(at, m->drained) + p->flush_ns;
	default:
		return at + p->discard_ns;
	}
}

/* The time at which a read completes that is ready now: the link takes them in that order. */
static inline u64 ssd_move(struct ssd_model *m, u64 bytes, u64 now)
{
	return ssd_link(m, 0, bytes, now);
}

#endif
