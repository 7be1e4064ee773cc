// SPDX-License-Identifier: Apache-2.0
/*
 * The gate's threads.
 *
 * One thread serves: callers and it take turns on one CPU, and a second would
 * only be woken on another. But a program's memory can take for ever to read (it
 * may be a file of a file system that answers when it likes), and that must not
 * delay other programs' calls. So a watchdog looks, while there is work, every
 * GATE_TICK_MS; if no thread has finished what it was at the last time, it starts
 * another. A thread that was given up so ends when it comes back.
 *
 * The gate ends with the last process of the container.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "worker.h"

#define GATE_THREADS_MAX 64
#define GATE_STACK	 (64 * 1024)
#define GATE_TICK_MS	 20
/* Ticks without work after which the watchdog sleeps until there is some. */
#define GATE_QUIET_TICKS 4

static struct gate_worker gate_workers[GATE_THREADS_MAX];

/* 1 while the watchdog sleeps; a futex. */
static _Atomic uint32_t gate_watchdog_sleeps;

/* Whether the last process that the filter is on is gone. */
static bool gate_abandoned(void)
{
	struct pollfd p = {.fd = gate.listener};

	return poll(&p, 1, 0) > 0 && (p.revents & POLLHUP);
}

static void gate_wake_watchdog(void)
{
	if (atomic_load(&gate_watchdog_sleeps) && atomic_exchange(&gate_watchdog_sleeps, 0))
		syscall(SYS_futex, &gate_watchdog_sleeps, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static uint64_t gate_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void *gate_serve(void *worker)
{
	struct gate_worker *w = worker;
	uint64_t came;

	while (!atomic_load(&w->given_up)) {
		memset(&w->n, 0, sizeof(w->n));
		if (ioctl(gate.listener, SECCOMP_IOCTL_NOTIF_RECV, &w->n) != 0) {
			/* ENOENT: the caller died before we woke up, or all
			 * are gone (6.11; before, the control thread sees it). */
			if (errno == EINTR || (errno == ENOENT && !gate_abandoned()))
				continue;
			if (errno == ENOENT)
				gate_end();
			_exit(1);
		}
		came = gate_now();
		atomic_fetch_add(&w->turn, 1);
		gate_wake_watchdog();
		gate_handle(w);
		gate_count(w, w->outcome == GATE_BY_SUPERVISOR ? 0 : gate_now() - came);
		atomic_fetch_add(&w->turn, 1);
	}
	if (w->pidfd >= 0)
		close(w->pidfd);
	atomic_store(&w->free, true);
	return NULL;
}

static void gate_start_thread(void)
{
	struct gate_worker *w = gate_workers;
	pthread_attr_t attr;
	pthread_t thread;

	while (w < &gate_workers[GATE_THREADS_MAX] && !atomic_load(&w->free))
		w++;
	if (w == &gate_workers[GATE_THREADS_MAX])
		return; /* those that there are have to do */
	atomic_store(&w->free, false);
	atomic_store(&w->given_up, false);
	w->pidfd = -1;
	w->seen = atomic_load(&w->turn);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, GATE_STACK);
	if (pthread_create(&thread, &attr, gate_serve, w) != 0)
		atomic_store(&w->free, true); /* at the next tick */
	pthread_attr_destroy(&attr);
}

/* One look at all threads. Returns whether any has done something since the
 * last. */
static bool gate_tick(void)
{
	struct gate_worker *stuck = NULL;
	bool serving = false, worked = false;

	for (struct gate_worker *w = gate_workers; w < &gate_workers[GATE_THREADS_MAX]; w++) {
		unsigned int turn = atomic_load(&w->turn);

		if (atomic_load(&w->free))
			continue;
		worked = worked || turn != w->seen || turn % 2;
		if (!atomic_load(&w->given_up)) {
			if (turn % 2 && turn == w->seen && !atomic_load(&w->waits))
				stuck = w;
			else
				serving = true;
		}
		w->seen = turn;
	}
	if (!serving) {
		if (stuck != NULL)
			atomic_store(&stuck->given_up, true);
		gate_start_thread();
	}
	return worked;
}

void gate_start_helper(void *(*run)(void *))
{
	pthread_attr_t attr;
	pthread_t thread;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, GATE_STACK);
	if (pthread_create(&thread, &attr, run, NULL) != 0)
		_exit(1);
	pthread_attr_destroy(&attr);
}

_Noreturn void gate_watch(void)
{
	const struct timespec tick = {.tv_nsec = GATE_TICK_MS * 1000000};
	int quiet = 0;

	for (;;) {
		quiet = gate_tick() ? 0 : quiet + 1;
		if (quiet > GATE_QUIET_TICKS) {
			atomic_store(&gate_watchdog_sleeps, 1);
			/* A thread that began before it could see that is seen
			 * here; one that begins after it wakes us. */
			if (!gate_tick())
				syscall(SYS_futex, &gate_watchdog_sleeps, FUTEX_WAIT_PRIVATE, 1,
					NULL, NULL, 0);
			atomic_store(&gate_watchdog_sleeps, 0);
			quiet = 0;
		}
		nanosleep(&tick, NULL);
	}
}

void gate_start_threads(void)
{
	for (struct gate_worker *w = gate_workers; w < &gate_workers[GATE_THREADS_MAX]; w++)
		atomic_store(&w->free, true);
	gate_start_thread();
}
