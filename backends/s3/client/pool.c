/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A pool is a thread that runs libcurl's transfers by its socket interface over
 * epoll: what an idle connection costs then does not depend on how many there are.
 * Requests come by a queue and an eventfd; easy handles are kept and used again.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <curl/curl.h>
#include <openssl/evp.h>

#include "backends/s3/client/client.h"
#include "backends/s3/client/credentials.h"
#include "backends/s3/client/internal.h"
#include "backends/s3/client/keyring.h"

/* ---- the loop of a pool ------------------------------------------------------------- */

static int on_timer(CURLM *multi, long ms, void *opaque)
{
	struct s3_connections *p = opaque;

	(void)multi;
	p->timer = ms < 0 ? 0 : s3_client_now() + (uint64_t)ms * 1000000;
	return 0;
}

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *opaque, void *registered)
{
	struct s3_connections *p = opaque;
	struct epoll_event event = {.data.fd = fd};

	(void)easy;
	if (what == CURL_POLL_REMOVE) {
		epoll_ctl(p->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
		return 0;
	}
	if (what & CURL_POLL_IN)
		event.events |= EPOLLIN;
	if (what & CURL_POLL_OUT)
		event.events |= EPOLLOUT;
	if (epoll_ctl(p->epoll_fd, registered ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) < 0)
		return -1;
	if (!registered)
		curl_multi_assign(p->multi, fd, p);
	return 0;
}

/* Ends what libcurl is through with. Anything? */
static bool collect(struct s3_connections *p)
{
	bool any = false;
	CURLMsg *message;
	int left;

	while ((message = curl_multi_info_read(p->multi, &left))) {
		struct s3_transfer *t;
		CURLcode code = message->data.result;

		curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &t);
		curl_multi_remove_handle(p->multi, t->easy);
		s3_transfer_complete(t, code);
		any = true;
	}
	return any;
}

/* Moves what was submitted to the ready ones. Is the thread to end? */
static bool take_incoming(struct s3_connections *p)
{
	bool ending;

	pthread_mutex_lock(&p->lock);
	if (p->incoming.head) {
		*p->ready.tail = p->incoming.head;
		p->ready.tail = p->incoming.tail;
		s3_queue_init(&p->incoming);
	}
	ending = p->ending;
	pthread_mutex_unlock(&p->lock);
	return ending;
}

/* Ends all requests that the store has, or those that can be dropped. */
static void cancel(struct s3_connections *p, bool all)
{
	struct s3_request *req, **link = &p->delayed;
	struct s3_queue ready = p->ready;

	for (unsigned i = 0; i < p->store->connections; i++) {
		struct s3_transfer *t = &p->transfers[i];

		req = t->req;
		if (!req || !(all || req->droppable))
			continue;
		s3_hedge_cancel_twin(t);
		curl_multi_remove_handle(p->multi, t->easy);
		s3_transfer_release(t);
		s3_request_finish_stopped(p, req);
	}
	s3_queue_init(&p->ready);
	while ((req = s3_queue_take(&ready)))
		if (all || req->droppable)
			s3_request_finish_stopped(p, req);
		else
			s3_queue_add(&p->ready, req);
	while ((req = *link))
		if (all || req->droppable) {
			*link = req->next;
			s3_request_finish_stopped(p, req);
		} else {
			link = &req->next;
		}
}

/* Moves what is due to the ready ones. When the next one is; 0: none. */
static uint64_t promote_delayed(struct s3_connections *p)
{
	struct s3_request **link = &p->delayed;
	uint64_t next = 0, now = p->delayed ? s3_client_now() : 0;

	while (*link) {
		struct s3_request *req = *link;

		if (req->due <= now) {
			*link = req->next;
			s3_queue_add(&p->ready, req);
		} else {
			if (!next || req->due < next)
				next = req->due;
			link = &req->next;
		}
	}
	return next;
}

static bool timer_due(const struct s3_connections *p)
{
	return p->timer && p->timer <= s3_client_now();
}

/* The sooner of two times, either of which may be 0: none. */
static uint64_t sooner(uint64_t a, uint64_t b)
{
	return a && (!b || a < b) ? a : b;
}

/* Milliseconds until then; 0: forever. */
static int wait_time(uint64_t soon)
{
	uint64_t now = s3_client_now();

	if (!soon)
		return -1;
	return soon <= now ? 0 : (int)((soon - now + 999999) / 1000000);
}

static void *pool_main(void *opaque)
{
	struct s3_connections *p = opaque;
	bool ending;

	for (;;) {
		struct epoll_event events[64];
		uint64_t next_due;
		int n, running;

		ending = take_incoming(p);
		if (atomic_load(&p->store->stopping))
			cancel(p, true);
		else if (atomic_load(&p->store->dropping))
			cancel(p, false);
		promote_delayed(p);
		while (p->idle && p->ready.head)
			s3_transfer_start(p, s3_queue_take(&p->ready));
		/* One that could not be started is delayed again. */
		next_due = sooner(promote_delayed(p), s3_hedge_look(p));
		if (timer_due(p)) {
			p->timer = 0;
			curl_multi_socket_action(p->multi, CURL_SOCKET_TIMEOUT, 0, &running);
		}
		if (collect(p))
			continue;
		if (ending) /* and nothing in flight */
			break;

		n = epoll_wait(p->epoll_fd, events, 64, wait_time(sooner(p->timer, next_due)));
		for (int i = 0; i < n; i++) {
			int fd = events[i].data.fd, action = 0;
			eventfd_t unused;

			if (fd == p->wake_fd) {
				eventfd_read(fd, &unused);
				continue;
			}
			if (events[i].events & EPOLLIN)
				action |= CURL_CSELECT_IN;
			if (events[i].events & EPOLLOUT)
				action |= CURL_CSELECT_OUT;
			if (events[i].events & (EPOLLERR | EPOLLHUP))
				action |= CURL_CSELECT_ERR;
			curl_multi_socket_action(p->multi, fd, action, &running);
		}
		collect(p);
	}
	return NULL;
}

/* ---- the life of a pool --------------------------------------------------------------- */

/* What does not change between requests. */
static int set_up_easy(struct s3_transfer *t)
{
	const struct s3_store *s = t->pool->store;
	CURL *e = curl_easy_init();
	CURLcode code = CURLE_OK;

	t->easy = e;
	if (!e)
		return -ENOMEM;
	code |= curl_easy_setopt(e, CURLOPT_PRIVATE, t);
	code |= curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
	code |= curl_easy_setopt(e, CURLOPT_ERRORBUFFER, t->error);
	code |= curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, s->endpoint.tls ? "https" : "http");
	code |= curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	code |= curl_easy_setopt(e, CURLOPT_USERAGENT, "userblk/" USERBLK_VERSION);
	code |= curl_easy_setopt(e, CURLOPT_PATH_AS_IS, 1L);
	code |= curl_easy_setopt(e, CURLOPT_TCP_KEEPALIVE, 1L);
	code |= curl_easy_setopt(e, CURLOPT_UPLOAD_BUFFERSIZE, S3_BUFFER_LARGE);
	code |= curl_easy_setopt(e, CURLOPT_READFUNCTION, s3_transfer_on_read);
	code |= curl_easy_setopt(e, CURLOPT_READDATA, t);
	code |= curl_easy_setopt(e, CURLOPT_SEEKFUNCTION, s3_transfer_on_seek);
	code |= curl_easy_setopt(e, CURLOPT_SEEKDATA, t);
	code |= curl_easy_setopt(e, CURLOPT_PREREQFUNCTION, s3_transfer_on_send);
	code |= curl_easy_setopt(e, CURLOPT_PREREQDATA, t);
	code |= curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, s3_transfer_on_header);
	code |= curl_easy_setopt(e, CURLOPT_HEADERDATA, t);
	code |= curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, s3_transfer_on_write);
	code |= curl_easy_setopt(e, CURLOPT_WRITEDATA, t);
	if (s->endpoint.tls) {
		code |= curl_easy_setopt(e, CURLOPT_SSL_VERIFYPEER, s->tls_verify ? 1L : 0L);
		code |= curl_easy_setopt(e, CURLOPT_SSL_VERIFYHOST, s->tls_verify ? 2L : 0L);
		if (s->ca_file) {
			code |= curl_easy_setopt(e, CURLOPT_CAINFO, s->ca_file);
			code |= curl_easy_setopt(e, CURLOPT_CAPATH, NULL);
		}
	}
	return code == CURLE_OK ? 0 : -ENOMEM;
}

/* Frees what set_up_pool() made, whole or not. */
static void tear_down_pool(struct s3_connections *p)
{
	for (unsigned i = 0; p->transfers && i < p->store->connections; i++) {
		struct s3_transfer *t = &p->transfers[i];

		curl_easy_cleanup(t->easy);
		curl_slist_free_all(t->headers);
		free(t->text);
	}
	if (p->multi)
		curl_multi_cleanup(p->multi);
	if (p->epoll_fd >= 0)
		close(p->epoll_fd);
	if (p->wake_fd >= 0)
		close(p->wake_fd);
	free(p->transfers);
	s3_credentials_clear(&p->credentials);
	OPENSSL_cleanse(&p->signer, sizeof p->signer);
	p->transfers = p->idle = NULL;
	p->multi = NULL;
	p->epoll_fd = p->wake_fd = -1;
	p->generation = 0;
}

static int set_up_pool(struct s3_connections *p)
{
	unsigned n = p->store->connections;
	struct epoll_event event = {.events = EPOLLIN};
	int r = 0;

	s3_queue_init(&p->ready);
	p->delayed = NULL;
	p->busy = 0;
	p->timer = 0;
	p->hedging = (struct s3_hedging){0};
	p->random = s3_client_now() ^ ((uint64_t)getpid() << 32) ^ (uint64_t)(uintptr_t)p;
	p->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	p->wake_fd = p->epoll_fd < 0 ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (p->wake_fd < 0) {
		r = -errno;
		goto fail;
	}
	event.data.fd = p->wake_fd;
	if (epoll_ctl(p->epoll_fd, EPOLL_CTL_ADD, p->wake_fd, &event) < 0) {
		r = -errno;
		goto fail;
	}
	r = -ENOMEM;
	p->multi = curl_multi_init();
	p->transfers = calloc(n, sizeof *p->transfers);
	if (!p->multi || !p->transfers)
		goto fail;
	curl_multi_setopt(p->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
	curl_multi_setopt(p->multi, CURLMOPT_SOCKETDATA, p);
	curl_multi_setopt(p->multi, CURLMOPT_TIMERFUNCTION, on_timer);
	curl_multi_setopt(p->multi, CURLMOPT_TIMERDATA, p);
	curl_multi_setopt(p->multi, CURLMOPT_MAXCONNECTS, (long)n);
	for (unsigned i = 0; i < n; i++) {
		struct s3_transfer *t = &p->transfers[i];

		t->pool = p;
		if (set_up_easy(t))
			goto fail;
		t->next = p->idle;
		p->idle = t;
	}
	return 0;
fail:
	tear_down_pool(p);
	return r;
}

int s3_pool_start(struct s3_connections *p)
{
	sigset_t all, old;
	int r;

	if (p->running)
		return 0;
	r = s3_keyring_start(p->store->keyring);
	if (r == 0)
		r = set_up_pool(p);
	if (r)
		return r;
	p->ending = false;
	/* Other threads handle the process's signals. */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	r = -pthread_create(&p->thread, NULL, pool_main, p);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r)
		tear_down_pool(p);
	else
		p->running = true;
	return r;
}

void s3_pool_end(struct s3_connections *p)
{
	pthread_mutex_lock(&p->lock);
	if (!p->running) {
		pthread_mutex_unlock(&p->lock);
		return;
	}
	p->ending = true;
	eventfd_write(p->wake_fd, 1);
	pthread_mutex_unlock(&p->lock);
	pthread_join(p->thread, NULL);
	tear_down_pool(p);
	p->running = false;
}
