// SPDX-License-Identifier: Apache-2.0
/*
 * Sockets that are made while nobody waits for them.
 *
 * A shim that has got a batch of sockets will want another. A thread makes it
 * meanwhile, so that the next batch is at hand when it is asked for. It keeps as
 * many as were asked for at once, and closes them when for GATE_STOCK_SECONDS nobody
 * has wanted any.
 *
 * (For sockets that are asked for one by one it gained nothing that could be told
 * from noise.)
 */
#define _GNU_SOURCE
#include "stock.h"

#include <errno.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../../bpf/options.h"

#define GATE_STOCK_SECONDS 10
#define GATE_KINDS	   4

struct gate_stock {
	struct gate_kind kind;
	unsigned int wanted; /* 0: nobody has asked yet */
	unsigned int count;
	int file[MARK_BATCH_MAX];
};

static struct gate_stock gate_stocks[GATE_KINDS];
static pthread_mutex_t gate_stock_lock = PTHREAD_MUTEX_INITIALIZER;

/* Counts the times that some was taken; a futex. */
static _Atomic uint32_t gate_stock_taken;

/* Whether the kernel programs police a socket. */
static bool gate_policed(int file)
{
	return setsockopt(file, 0 /* SOL_IP */, OPTIONS_PROOF, NULL, 0) != 0 && errno == EPERM;
}

int gate_make(const struct gate_kind *kind)
{
	int file = socket(kind->family, kind->type | SOCK_CLOEXEC, kind->protocol);

	if (file >= 0 && !gate_policed(file)) {
		close(file);
		errno = EXDEV;
		return -1;
	}
	return file;
}

static struct gate_stock *gate_stock_of(const struct gate_kind *kind)
{
	return &gate_stocks[(kind->family == AF_INET6) * 2 + (kind->protocol == IPPROTO_UDP)];
}

unsigned int gate_stock_take(const struct gate_kind *kind, int *files, unsigned int count)
{
	struct gate_stock *s = gate_stock_of(kind);
	unsigned int got = 0;

	/* If the thread is at it, this is no place to wait. */
	if (pthread_mutex_trylock(&gate_stock_lock) == 0) {
		s->kind = *kind;
		s->wanted = count;
		while (got < count && s->count > 0)
			files[got++] = s->file[--s->count];
		pthread_mutex_unlock(&gate_stock_lock);
	}
	while (got < count && (files[got] = gate_make(kind)) >= 0)
		got++;
	return got;
}

void gate_stock_refill(void)
{
	atomic_fetch_add(&gate_stock_taken, 1);
	syscall(SYS_futex, &gate_stock_taken, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Puts one more where one is missing. Returns whether there was such a place. */
static bool gate_stock_add(void)
{
	for (struct gate_stock *s = gate_stocks; s < &gate_stocks[GATE_KINDS]; s++) {
		struct gate_kind kind;
		bool missing;
		int file;

		pthread_mutex_lock(&gate_stock_lock);
		missing = s->count < s->wanted;
		kind = s->kind;
		pthread_mutex_unlock(&gate_stock_lock);
		if (!missing)
			continue;
		file = gate_make(&kind);
		if (file < 0)
			return false; /* when some is taken the next time */
		pthread_mutex_lock(&gate_stock_lock);
		s->file[s->count++] = file; /* nobody else adds */
		pthread_mutex_unlock(&gate_stock_lock);
		return true;
	}
	return false;
}

static void gate_stock_drop(void)
{
	pthread_mutex_lock(&gate_stock_lock);
	for (struct gate_stock *s = gate_stocks; s < &gate_stocks[GATE_KINDS]; s++) {
		s->wanted = 0;
		while (s->count > 0)
			close(s->file[--s->count]);
	}
	pthread_mutex_unlock(&gate_stock_lock);
}

void *gate_stock_run(void *unused)
{
	const struct timespec patience = {.tv_sec = GATE_STOCK_SECONDS};

	(void)unused;
	for (;;) {
		uint32_t seen = atomic_load(&gate_stock_taken);

		while (gate_stock_add())
			continue;
		if (syscall(SYS_futex, &gate_stock_taken, FUTEX_WAIT_PRIVATE, seen, &patience, NULL,
			    0) != 0 &&
		    errno == ETIMEDOUT)
			gate_stock_drop();
	}
	return NULL;
}
