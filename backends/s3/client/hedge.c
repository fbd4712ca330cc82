/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A second GET where the first one is late (hedge=). Whichever brings the first byte of the object
 * goes on, straight into the request's vectors; the other one is given up. A few requests that a
 * store answers late then cost little more than two ordinary ones, and a store that is slow
 * throughout is asked for one more GET in COST at most.
 */
#include <stdatomic.h>

#include "backends/s3/client/internal.h"

/* Latencies that are known before any is called late, and that are remembered. */
#define SAMPLES_MIN 100u
#define SAMPLES_MAX 2048u
/* GETs that pay for a hedge, and how many hedges may be saved up. */
#define COST  20u
#define SAVED 10u
/* A percentile is looked up again after so many latencies. */
#define REFRESH 32u

/* Requests of about the same size: up to 16 KiB, 64 KiB, and so on. */
static struct s3_latencies *latencies_of(struct s3_connections *p, uint64_t length)
{
	unsigned class = 0;

	while (class < S3_HEDGE_CLASSES - 1 && length > UINT64_C(16384) << 2 * class)
		class ++;
	return &p->hedging.classes[class];
}

/* Eight buckets for each doubling, from 64 us on: their upper ends, and which one holds ns. */
static uint64_t bucket_end(unsigned bucket)
{
	return UINT64_C(1000) * (9 + bucket % 8) << (bucket / 8 + 3);
}

static unsigned bucket_of(uint64_t ns)
{
	unsigned bucket = 0;

	while (bucket < S3_HEDGE_BUCKETS - 1 && bucket_end(bucket) < ns)
		bucket++;
	return bucket;
}

/* Half of what is remembered of each latency is forgotten. */
static void forget(struct s3_latencies *l)
{
	l->n = 0;
	for (unsigned i = 0; i < S3_HEDGE_BUCKETS; i++) {
		l->buckets[i] /= 2;
		l->n += l->buckets[i];
	}
}

static void record(struct s3_connections *p, const struct s3_transfer *first)
{
	struct s3_latencies *l = latencies_of(p, first->req->length);

	if (l->n == SAMPLES_MAX)
		forget(l);
	l->buckets[bucket_of(s3_client_now() - first->started)]++;
	l->n++;
	if (l->n >= SAMPLES_MIN && l->n % REFRESH == 0) {
		uint64_t wanted = (uint64_t)l->n * p->store->hedge, n = 0;
		unsigned i = 0;

		while (i < S3_HEDGE_BUCKETS - 1 && (n += 100u * l->buckets[i]) < wanted)
			i++;
		l->late = bucket_end(i);
	}
}

static bool hedges(const struct s3_connections *p, const struct s3_request *req)
{
	return p->store->hedge && p == &p->store->pools[S3_POOL_READ] && req->op == S3_GET;
}

void s3_hedge_began(struct s3_transfer *t)
{
	struct s3_hedging *h = &t->pool->hedging;
	uint64_t late;

	if (!hedges(t->pool, t->req))
		return;
	t->started = s3_client_now();
	if (h->credit < COST * SAVED)
		h->credit++;
	late = latencies_of(t->pool, t->req->length)->late;
	/* Those that had no credit are looked at again at once. */
	if (h->starved)
		h->next = t->started;
	else if (late && (!h->next || t->started + late < h->next))
		h->next = t->started + late;
}

bool s3_hedge_claim(struct s3_transfer *t)
{
	struct s3_connections *p = t->pool;

	if (t->lost)
		return false;
	if (t->answered || !hedges(p, t->req))
		return true;
	t->answered = true;
	/* A first one that lost is known to take longer. */
	record(p, t->hedge && t->twin ? t->twin : t);
	if (!t->twin)
		return true;
	if (t->hedge)
		s3_count_add(&p->hedges_won, 1);
	t->twin->lost = true;
	return true;
}

void s3_hedge_part(struct s3_transfer *t)
{
	if (t->twin)
		t->twin->twin = NULL;
	t->twin = NULL;
}

void s3_hedge_cancel_twin(struct s3_transfer *t)
{
	struct s3_transfer *twin = t->twin;

	if (!twin)
		return;
	curl_multi_remove_handle(t->pool->multi, twin->easy);
	s3_transfer_release(twin);
}

/* The request that is late for the longest time; NULL: none is. Tells when the next one will be. */
static struct s3_transfer *find_late(struct s3_connections *p, uint64_t now, uint64_t *next)
{
	struct s3_transfer *oldest = NULL;

	*next = 0;
	for (unsigned i = 0; i < p->store->connections; i++) {
		struct s3_transfer *t = &p->transfers[i];
		uint64_t late;

		if (!t->req || t->twin || t->answered || !hedges(p, t->req))
			continue;
		late = latencies_of(p, t->req->length)->late;
		if (!late)
			continue;
		if (t->started + late > now) {
			if (!*next || t->started + late < *next)
				*next = t->started + late;
		} else if (!oldest || t->started < oldest->started) {
			oldest = t;
		}
	}
	return oldest;
}

uint64_t s3_hedge_look(struct s3_connections *p)
{
	struct s3_hedging *h = &p->hedging;
	struct s3_transfer *first, *second;
	uint64_t now;

	if (!h->next || h->next > (now = s3_client_now()))
		return h->next;
	while ((first = find_late(p, now, &h->next)) && h->credit >= COST && p->idle) {
		second = s3_transfer_begin(p, first->req);
		if (!second)
			break;
		h->credit -= COST;
		second->hedge = true;
		second->started = now;
		second->twin = first;
		first->twin = second;
		s3_count_add(&p->hedges, 1);
	}
	h->starved = first != NULL;
	return h->next;
}
