// SPDX-License-Identifier: Apache-2.0
/*
 * Calls that wait for a connection.
 *
 * Theory of operation
 *
 * A call is kept with a duplicate of its listener: as in the kernel, a listener that another thread
 * closes lives on as long as calls wait on it, and takes connections. While calls wait, the serving
 * thread waits for their listeners besides notifications (poll(2)). The call that came first gets
 *the first connection (accepts.c). A call ends with
 *
 *   a connection,	or an error of the kernel's accept(2), such as EINVAL after shutdown(2)
 *   EAGAIN		when the time of SO_RCVTIMEO is over
 *   its caller		the gate looks every WAITING_LOOK_MS whether it still waits, and when a
 *program binds: a listener that is kept has its port
 *   a signal		the kernel lets the call wait (Linux 5.19, intercept/notify/pending.go). The
 *			gate cannot see signals; the supervisor looks for those of threads that wait
 *longer than WAITING_LOOK_MS
 *
 * A call that has a connection may wait for the name of the peer. Then it has the connection in the
 * place of the listener, and ends with the name: the supervisor tells the thread that talks with
 * it, which wakes the serving thread (an eventfd).
 */
#define _GNU_SOURCE
#include "waiting.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "answer.h"
#include "caller.h"
#include "gate.h"
#include "pending.h"

#define WAITING_LOOK_MS 250
#define WAITING_MS	1000000ull /* in nanoseconds */
/* Seconds of SO_RCVTIMEO. Longer ones are no limit: their nanoseconds may overflow. */
#define WAITING_LIMIT_MAX 1000000000

/* The lock covers all of these. Nothing waits while it is held. */
static struct gate_waiting waiting_calls[GATE_WAITING_MAX];
static unsigned int waiting_used; /* entries that were ever used */
static uint64_t waiting_turns;
static uint64_t waiting_looked; /* when the gate has looked after the calls */
static pthread_mutex_t waiting_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint waiting_count; /* entries in use */
static int waiting_event;	  /* eventfd: a name has come */

void gate_waiting_start(void)
{
	waiting_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

static uint64_t waiting_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 * WAITING_MS + (uint64_t)t.tv_nsec;
}

/* The time that SO_RCVTIMEO leaves a call, in nanoseconds; 0: it has no limit. */
static uint64_t waiting_limit(int listener)
{
	struct timeval t = {0};
	socklen_t length = sizeof(t);

	if (getsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &t, &length) != 0)
		return 0;
	if (t.tv_sec > WAITING_LIMIT_MAX)
		return 0;
	return (uint64_t)t.tv_sec * 1000 * WAITING_MS + (uint64_t)t.tv_usec * 1000;
}

/* A free entry, or NULL. With the lock. */
static struct gate_waiting *waiting_find_free(void)
{
	for (unsigned int i = 0; i < waiting_used; i++)
		if (!waiting_calls[i].used)
			return &waiting_calls[i];
	return waiting_used < GATE_WAITING_MAX ? &waiting_calls[waiting_used++] : NULL;
}

bool gate_waiting_keep(const struct gate_waiting *call)
{
	struct gate_waiting *free;

	pthread_mutex_lock(&waiting_lock);
	free = waiting_find_free();
	if (free != NULL) {
		*free = *call;
		free->used = true;
		atomic_fetch_add(&waiting_count, 1);
	}
	pthread_mutex_unlock(&waiting_lock);
	return free != NULL;
}

/* Takes an entry out, with its listener. With the lock. */
static struct gate_waiting waiting_remove(struct gate_waiting *c)
{
	c->used = false;
	atomic_fetch_sub(&waiting_count, 1);
	return *c;
}

bool gate_wait_on(struct gate_worker *w, int listener)
{
	struct gate_waiting call = {.n = w->n, .request = w->request, .file = listener};
	socklen_t length = sizeof(call.cookie);
	uint64_t limit = waiting_limit(listener);

	if (getsockopt(listener, SOL_SOCKET, SO_COOKIE, &call.cookie, &length) != 0)
		return false;
	call.came = waiting_now();
	call.end = limit == 0 ? 0 : call.came + limit;
	pthread_mutex_lock(&waiting_lock);
	call.turn = waiting_turns++;
	pthread_mutex_unlock(&waiting_lock);
	return gate_waiting_keep(&call);
}

bool gate_wait_for_name(struct gate_worker *w, int connection)
{
	const struct gate_waiting call = {
		.n = w->n,
		.request = w->request,
		.accepted = true,
		.watched = true, /* it ends soon, if there is a supervisor */
		.file = connection,
	};

	return waiting_event >= 0 && atomic_load(&gate.board->names_peers) &&
	       gate_waiting_keep(&call);
}

void gate_name_came(uint64_t id, uint32_t name)
{
	pthread_mutex_lock(&waiting_lock);
	for (struct gate_waiting *c = waiting_calls; c < &waiting_calls[waiting_used]; c++) {
		if (!c->used || !c->accepted || c->n.id != id)
			continue;
		c->name = name;
		c->named = true;
	}
	pthread_mutex_unlock(&waiting_lock);
	eventfd_write(waiting_event, 1);
}

bool gate_waits(void)
{
	return atomic_load(&waiting_count) > 0;
}

static void waiting_resume(struct gate_worker *w, const struct gate_waiting *call)
{
	w->n = call->n;
	w->request = call->request;
	w->outcome = GATE_BY_NOBODY;
}

bool gate_waiting_take(struct gate_worker *w, uint64_t cookie, struct gate_waiting *call)
{
	struct gate_waiting *first = NULL;

	pthread_mutex_lock(&waiting_lock);
	for (struct gate_waiting *c = waiting_calls; c < &waiting_calls[waiting_used]; c++)
		if (c->used && c->cookie == cookie && (first == NULL || c->turn < first->turn))
			first = c;
	if (first != NULL)
		*call = waiting_remove(first);
	pthread_mutex_unlock(&waiting_lock);
	if (first != NULL)
		waiting_resume(w, call);
	return first != NULL;
}

bool gate_waiting_take_named(struct gate_worker *w, struct gate_waiting *call)
{
	bool taken = false;

	pthread_mutex_lock(&waiting_lock);
	for (unsigned int i = 0; i < waiting_used && !taken; i++) {
		taken = waiting_calls[i].used && waiting_calls[i].named;
		if (taken)
			*call = waiting_remove(&waiting_calls[i]);
	}
	pthread_mutex_unlock(&waiting_lock);
	if (taken)
		waiting_resume(w, call);
	return taken;
}

void gate_waiting_forget(void)
{
	if (!gate_waits())
		return;
	pthread_mutex_lock(&waiting_lock);
	for (struct gate_waiting *c = waiting_calls; c < &waiting_calls[waiting_used]; c++)
		if (c->used && !gate_valid(&c->n))
			close(waiting_remove(c).file);
	pthread_mutex_unlock(&waiting_lock);
}

/* Fills in P for a listener of each cookie, and returns their number. */
static nfds_t waiting_listeners(struct pollfd p[GATE_WAITING_MAX],
				uint64_t cookies[GATE_WAITING_MAX])
{
	nfds_t count = 0;

	pthread_mutex_lock(&waiting_lock);
	for (unsigned int i = 0; i < waiting_used; i++) {
		const struct gate_waiting *c = &waiting_calls[i];
		nfds_t at = 0;

		while (c->used && at < count && cookies[at] != c->cookie)
			at++;
		if (!c->used || c->accepted || at < count)
			continue;
		p[count] = (struct pollfd){.fd = c->file, .events = POLLIN};
		cookies[count++] = c->cookie;
	}
	pthread_mutex_unlock(&waiting_lock);
	return count;
}

/* In how many milliseconds the calls have to be looked after. */
static int waiting_next(uint64_t now)
{
	uint64_t next;

	pthread_mutex_lock(&waiting_lock);
	next = waiting_looked + WAITING_LOOK_MS * WAITING_MS;
	for (const struct gate_waiting *c = waiting_calls; c < &waiting_calls[waiting_used]; c++)
		if (c->used && c->end != 0 && c->end < next)
			next = c->end;
	pthread_mutex_unlock(&waiting_lock);
	return next <= now ? 0 : (int)((next - now + WAITING_MS - 1) / WAITING_MS);
}

enum waiting_task { WAITING_ON, WAITING_OVER, WAITING_TO_WATCH };

/* Finds out what is to be done for a call. Takes the call out if its time is over. */
static enum waiting_task waiting_task_of(struct gate_waiting *c, uint64_t now,
					 struct gate_waiting *call)
{
	enum waiting_task task = WAITING_ON;

	pthread_mutex_lock(&waiting_lock);
	if (c->used && c->end != 0 && c->end <= now) {
		task = WAITING_OVER;
		*call = waiting_remove(c);
	} else if (c->used && !c->watched && now - c->came >= WAITING_LOOK_MS * WAITING_MS) {
		task = WAITING_TO_WATCH;
		c->watched = true;
		*call = *c;
	}
	pthread_mutex_unlock(&waiting_lock);
	return task;
}

/* Looks after the calls that wait: for their callers, their time, and their signals. */
static void waiting_look(struct gate_worker *w, uint64_t now)
{
	pthread_mutex_lock(&waiting_lock);
	waiting_looked = now;
	pthread_mutex_unlock(&waiting_lock);
	gate_waiting_forget();
	for (unsigned int i = 0; i < GATE_WAITING_MAX; i++) {
		struct gate_waiting call;
		enum waiting_task task = waiting_task_of(&waiting_calls[i], now, &call);

		if (task == WAITING_ON)
			continue;
		waiting_resume(w, &call);
		if (task == WAITING_OVER) {
			close(call.file);
			gate_answer(w, -EAGAIN);
		} else {
			w->request.name = GATE_NAME_WAITS;
			gate_ask_for_memory(w);
			gate_pass(w);
		}
	}
}

bool gate_waiting_poll(struct gate_worker *w, struct gate_ready *ready)
{
	struct pollfd p[2 + GATE_WAITING_MAX] = {{.fd = gate.listener, .events = POLLIN},
						 {.fd = waiting_event, .events = POLLIN}};
	uint64_t cookies[GATE_WAITING_MAX], now = waiting_now();
	nfds_t count = waiting_listeners(&p[2], cookies);
	int left = waiting_next(now);
	eventfd_t events;

	ready->count = 0;
	ready->named = false;
	if (left == 0) {
		waiting_look(w, now);
		return false;
	}
	if (poll(p, 2 + count, left) <= 0)
		return false;
	ready->named = p[1].revents && eventfd_read(waiting_event, &events) == 0;
	for (nfds_t i = 0; i < count; i++)
		if (p[2 + i].revents)
			ready->cookies[ready->count++] = cookies[i];
	return p[0].revents;
}
