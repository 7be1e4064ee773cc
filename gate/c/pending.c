// SPDX-License-Identifier: Apache-2.0
/*
 * Pending requests: calls that the supervisor has to answer.
 *
 * Theory of operation
 *
 * A notification that was received is never received again. So the gate records each call that it
 * passes on, and keeps the entry until nobody waits for the call any more. An entry is
 *
 *   free
 *   due	to be sent to this supervisor, or to the next one
 *   sent	sent to this supervisor
 *
 * The supervisor answers the kernel and not the gate, so nobody says when an entry is over. The
 * gate finds out (NOTIF_ID_VALID) when it needs the entry's room.
 *
 * When the supervisor is gone, sent entries are due again, marked as `again`: the supervisor may
 * have begun to answer them. An entry has what was read when the call came, so both supervisors
 * act on the same.
 *
 * One lock covers the change of an entry with its sending, and the change of the supervisor. So
 * each supervisor gets an entry once. Nothing waits while it holds the lock: where the socket has
 * no room, the entry stays due, and the thread that talks with the supervisor sends it when there
 * is room. (gate_end waits, when no program is left.)
 */
#define _GNU_SOURCE
#include "pending.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "caller.h"
#include "gate.h"
#include "messages.h"
#include "stats.h"

#define GATE_PENDING_MAX 1024
/* The number of entries to check for one that is over, before a new entry is used. */
#define GATE_PENDING_LOOK 8
/* The pause before a thread looks for room again: the supervisor may make room, or callers may
 * die. */
#define GATE_ROOM_MS	  20
#define GATE_ROOM_IDLE_MS 1000
/* How long a call waits until the supervisor has room for a report. */
#define GATE_REPORT_MS 100

enum gate_state { GATE_FREE, GATE_DUE, GATE_SENT };

struct gate_entry {
	struct gate_request request;
	enum gate_state state;
};

/* All of these are covered by the lock. */
static struct {
	struct gate_entry entries[GATE_PENDING_MAX]; /* pages that are not used cost nothing */
	unsigned int used;			     /* entries that were ever used */
	unsigned int hand;			     /* where to look next */
	unsigned int due;
	bool supervised;
} gate_pending;

static pthread_mutex_t gate_pending_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate_pending_room; /* a supervisor has come */
static int gate_pending_event_file;	 /* eventfd: there is a message to send, or work to watch */

void gate_pending_start(bool supervised)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&gate_pending_room, &attr);
	pthread_condattr_destroy(&attr);
	gate_pending_event_file = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	gate_pending.supervised = supervised;
}

static bool gate_send(const struct gate_request *request, int flags)
{
	return send(gate.control, request, sizeof(*request), flags | MSG_NOSIGNAL) >= 0;
}

static void gate_set(struct gate_entry *e, enum gate_state state)
{
	gate_pending.due += state == GATE_DUE;
	gate_pending.due -= e->state == GATE_DUE;
	e->state = state;
}

/* Frees an entry if nobody waits for it any more. */
static bool gate_is_free(struct gate_entry *e)
{
	if (e->state != GATE_FREE && !gate_valid_id(e->request.id))
		gate_set(e, GATE_FREE);
	return e->state == GATE_FREE;
}

static struct gate_entry *gate_look(unsigned int count)
{
	for (; count > 0; count--) {
		gate_pending.hand = (gate_pending.hand + 1) % gate_pending.used;
		if (gate_is_free(&gate_pending.entries[gate_pending.hand]))
			return &gate_pending.entries[gate_pending.hand];
	}
	return NULL;
}

/* A free entry, or NULL. */
static struct gate_entry *gate_find(void)
{
	unsigned int used = gate_pending.used;
	struct gate_entry *e = gate_look(used < GATE_PENDING_LOOK ? used : GATE_PENDING_LOOK);

	if (e != NULL)
		return e;
	if (used < GATE_PENDING_MAX)
		return &gate_pending.entries[gate_pending.used++];
	return gate_look(used);
}

/* Waits for a while, without the lock. */
static void gate_wait_for_room(void)
{
	long ms = gate_pending.supervised ? GATE_ROOM_MS : GATE_ROOM_IDLE_MS;
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += ms / 1000;
	until.tv_nsec += ms % 1000 * 1000000;
	if (until.tv_nsec >= 1000000000) {
		until.tv_sec++;
		until.tv_nsec -= 1000000000;
	}
	pthread_cond_timedwait(&gate_pending_room, &gate_pending_lock, &until);
}

/* Waits until there is a free entry. */
static struct gate_entry *gate_wait_for_entry(struct gate_worker *w)
{
	struct gate_entry *e = NULL;

	GATE_COUNT(full, 1);
	atomic_store(&w->waits, true);
	while (e == NULL) {
		gate_wait_for_room();
		e = gate_find();
	}
	atomic_store(&w->waits, false);
	return e;
}

void gate_wake_control(void)
{
	eventfd_write(gate_pending_event_file, 1);
}

void gate_pass(struct gate_worker *w)
{
	struct gate_entry *e;

	w->outcome = GATE_BY_SUPERVISOR;
	pthread_mutex_lock(&gate_pending_lock);
	e = gate_find();
	if (e == NULL)
		e = gate_wait_for_entry(w);
	/* This comes before the supervisor can answer: the container may end with the answer. */
	GATE_COUNT(calls[w->request.call].passed, 1);
	e->request = w->request;
	gate_set(e, GATE_DUE);
	if (gate_pending.supervised && gate_pending.due == 1 &&
	    gate_send(&e->request, MSG_DONTWAIT))
		gate_set(e, GATE_SENT);
	else if (gate_pending.supervised)
		gate_wake_control();
	pthread_mutex_unlock(&gate_pending_lock);
}

/* A slow supervisor slows down the calls that it wants reports of. A supervisor that receives
 * nothing gets no report. */
void gate_report(struct gate_worker *w)
{
	struct pollfd p = {.fd = gate.control, .events = POLLOUT};
	bool told, again;

	if (!atomic_load_explicit(&gate.board->traced, memory_order_relaxed))
		return;
	w->request.answered = 1;
	do {
		pthread_mutex_lock(&gate_pending_lock);
		told = !gate_pending.supervised || gate_send(&w->request, MSG_DONTWAIT);
		again = !told && (errno == EAGAIN || errno == ENOBUFS);
		pthread_mutex_unlock(&gate_pending_lock);
	} while (again && poll(&p, 1, GATE_REPORT_MS) > 0);
	if (!told)
		GATE_COUNT(unreported, 1);
	w->request.answered = 0;
}

bool gate_pending_any_due(void)
{
	bool wait;

	pthread_mutex_lock(&gate_pending_lock);
	wait = gate_pending.due > 0;
	pthread_mutex_unlock(&gate_pending_lock);
	return wait;
}

/* With the lock. */
static void gate_send_due(void)
{
	for (unsigned int i = 0; i < gate_pending.used && gate_pending.due > 0; i++) {
		struct gate_entry *e = &gate_pending.entries[i];

		if (e->state != GATE_DUE || gate_is_free(e))
			continue;
		if (!gate_send(&e->request, MSG_DONTWAIT))
			return; /* sent when there is room, or another supervisor */
		if (e->request.again)
			GATE_COUNT(again, 1);
		gate_set(e, GATE_SENT);
	}
}

void gate_pending_send(void)
{
	pthread_mutex_lock(&gate_pending_lock);
	if (gate_pending.supervised)
		gate_send_due();
	pthread_mutex_unlock(&gate_pending_lock);
}

int gate_pending_event(void)
{
	return gate_pending_event_file;
}

bool gate_supervisor_is_there(void)
{
	bool there;

	pthread_mutex_lock(&gate_pending_lock);
	there = gate_pending.supervised;
	pthread_mutex_unlock(&gate_pending_lock);
	return there;
}

static const struct gate_request gate_hello = {.version = GATE_VERSION, .call = GATE_HELLO};

void gate_greet(void)
{
	(void)gate_send(&gate_hello, 0);
}

/*
 * Greets a new supervisor, and sends the supervisor's files. Descriptors in messages count against
 * root, on the whole machine, and a container of root may have any number of them. If there is no
 * room, the greeting has the files' numbers, and the supervisor takes them out of our table
 * (pidfd_getfd(2)).
 */
static bool gate_greet_next(int file)
{
	const int files[] = {gate.listener, gate.netns};
	struct gate_request numbers = gate_hello;

	if (gate_send_files(file, &gate_hello, sizeof(gate_hello), files, 2, MSG_DONTWAIT))
		return true;
	if (errno != ETOOMANYREFS)
		return false;
	numbers.number = gate.listener;
	numbers.backlog = gate.netns;
	return gate_send_files(file, &numbers, sizeof(numbers), NULL, 0, MSG_DONTWAIT);
}

bool gate_supervisor_came(int file)
{
	pthread_mutex_lock(&gate_pending_lock);
	/* The supervisor tells the ports anew, or it is of an older version and tells none. */
	atomic_store(&gate.board->served, 0);
	gate_pending.supervised = gate_greet_next(file) && dup3(file, gate.control, O_CLOEXEC) >= 0;
	if (gate_pending.supervised) {
		gate_send_due();
		pthread_cond_broadcast(&gate_pending_room);
	}
	pthread_mutex_unlock(&gate_pending_lock);
	return gate_pending.supervised;
}

void gate_supervisor_left(void)
{
	pthread_mutex_lock(&gate_pending_lock);
	gate_pending.supervised = false;
	for (unsigned int i = 0; i < gate_pending.used; i++) {
		struct gate_entry *e = &gate_pending.entries[i];

		if (e->state != GATE_SENT || gate_is_free(e))
			continue;
		e->request.again = 1;
		gate_set(e, GATE_DUE);
	}
	pthread_mutex_unlock(&gate_pending_lock);
}

/* With the lock. */
static bool gate_nothing_waits(void)
{
	for (unsigned int i = 0; i < gate_pending.used; i++)
		if (!gate_is_free(&gate_pending.entries[i]))
			return false;
	return true;
}

void gate_pending_hand_over(bool (*hand_over)(bool supervised))
{
	pthread_mutex_lock(&gate_pending_lock);
	if (gate_nothing_waits() && hand_over(gate_pending.supervised))
		_exit(0);
	pthread_mutex_unlock(&gate_pending_lock);
}

_Noreturn void gate_end(void)
{
	pthread_mutex_lock(&gate_pending_lock);
	if (gate_pending.supervised)
		(void)gate_say_bye(gate.board, gate.control, 0);
	_exit(0);
}
