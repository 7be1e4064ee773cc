// SPDX-License-Identifier: Apache-2.0
/*
 * The threads of a gate.
 *
 * One thread serves: it takes turns with callers on one CPU, and a second thread would only be
 * woken on another CPU. But to read a program's memory can take for ever (it may be a file of a
 * file system that never answers), and that must not delay the calls of other programs. So the
 * thread that talks with the supervisor is also a watchdog (watchdog.c): while there is work, it
 * looks at the threads every GATE_TICK_MS. If no thread has finished its work since the last look,
 * the watchdog gives the thread up and starts another. A thread that was given up ends when it
 * comes back. (A watchdog with a thread of its own would cost each container a stack and a task.)
 *
 * The gate ends with the last process of the container.
 *
 * A gate of the pool also exits when it is idle. It must not exit with a received notification,
 * because no other process would receive the notification again. So the watchdog gives the serving
 * thread up, and a signal interrupts the thread's wait. The thread counts its turn up first, and
 * then looks whether it was given up. The watchdog sends the signal only while the turn is not
 * counted up. So one of the two sees the other. The signal is unblocked only while the thread
 * waits, because no ADDFD may be interrupted (see handle.c).
 */
#define _GNU_SOURCE
#include "threads.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "accepts.h"
#include "caller.h"
#include "gate.h"
#include "handle.h"
#include "messages.h"
#include "pending.h"
#include "sockets.h"
#include "stats.h"
#include "waiting.h"

#define GATE_STACK   (64 * 1024)
#define GATE_WAKE_UP SIGUSR1
/* A thread that is just about to wait misses a signal. */
#define GATE_STOP_TRIES 50

struct gate_worker gate_workers[GATE_THREADS_MAX];

static atomic_bool gate_watchdog_sleeps;
static atomic_uint gate_leaving; /* threads that were given up and have not ended */

/* Whether the last process with the filter has gone. */
static bool gate_abandoned(void)
{
	return gate_has(gate.listener, POLLHUP);
}

void gate_set_watchdog_sleeps(bool sleeps)
{
	atomic_store(&gate_watchdog_sleeps, sleeps);
}

static void gate_wake_watchdog(void)
{
	if (atomic_load(&gate_watchdog_sleeps) && atomic_exchange(&gate_watchdog_sleeps, false))
		gate_wake_control();
}

uint64_t gate_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void gate_wakes_up(int sig)
{
	(void)sig;
}

/* Unblocks or blocks the signal that interrupts this thread's wait. */
static void gate_open_signal(bool open)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, GATE_WAKE_UP);
	pthread_sigmask(open ? SIG_UNBLOCK : SIG_BLOCK, &set, NULL);
}

/* Counts the turn up: the thread is at work. */
static void gate_begin(struct gate_worker *w)
{
	atomic_fetch_add(&w->turn, 1);
	if (atomic_load(&w->given_up))
		gate_open_signal(false);
	gate_wake_watchdog();
}

/* Has a thread end when it comes back. */
static void gate_give_thread_up(struct gate_worker *w)
{
	atomic_fetch_add(&gate_leaving, 1);
	if (atomic_exchange(&w->given_up, true))
		atomic_fetch_sub(&gate_leaving, 1); /* it was already */
}

/* Whether a call of accept(2) waits, or may wait soon: a thread that was given up may keep one
 * before it ends. So the thread's end is looked at first. */
static bool gate_may_wait(void)
{
	return atomic_load(&gate_leaving) > 0 || gate_waits();
}

/* Waits while calls of accept(2) may wait. Returns whether there may be a notification. */
static bool gate_serve_accepts(struct gate_worker *w)
{
	struct gate_ready ready;
	bool notified = gate_waiting_poll(w, &ready);

	if (ready.count > 0 || ready.named) {
		gate_begin(w);
		gate_accept_for(w, &ready);
		atomic_fetch_add(&w->turn, 1);
	}
	return notified;
}

static void *gate_serve(void *worker)
{
	struct gate_worker *w = worker;
	uint64_t came;

	atomic_store(&w->id, (int)syscall(SYS_gettid));
	gate_open_signal(gate.pool >= 0);
	while (!atomic_load(&w->given_up)) {
		if (gate_may_wait() && !gate_serve_accepts(w))
			continue;
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
		gate_begin(w);
		gate_handle(w);
		if (w->outcome == GATE_BY_GATE || w->outcome == GATE_BY_GATE_REFUSED)
			gate_count_time(w, gate_now() - came);
		gate_make_spare();
		atomic_fetch_add(&w->turn, 1);
	}
	gate_forget_callers(w);
	gate_close_spare();
	atomic_fetch_sub(&gate_leaving, 1);
	atomic_store(&w->used, false);
	return NULL;
}

static void gate_start_thread(void)
{
	struct gate_worker *w = gate_workers;
	pthread_attr_t attr;
	pthread_t thread;

	while (w < &gate_workers[GATE_THREADS_MAX] && atomic_load(&w->used))
		w++;
	if (w == &gate_workers[GATE_THREADS_MAX])
		return; /* the existing threads have to suffice */
	atomic_store(&w->used, true);
	atomic_store(&w->given_up, false);
	atomic_store(&w->id, 0);
	w->seen = atomic_load(&w->turn);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, GATE_STACK);
	if (pthread_create(&thread, &attr, gate_serve, w) != 0)
		atomic_store(&w->used, false); /* at the next tick */
	pthread_attr_destroy(&attr);
}

bool gate_tick(void)
{
	struct gate_worker *stuck = NULL;
	bool serving = false, worked = false;

	for (struct gate_worker *w = gate_workers; w < &gate_workers[GATE_THREADS_MAX]; w++) {
		unsigned int turn = atomic_load(&w->turn);

		if (!atomic_load(&w->used))
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
			gate_give_thread_up(stuck);
		gate_start_thread();
	}
	return worked;
}

bool gate_stop_thread(void)
{
	const struct timespec pause = {.tv_nsec = 200000};
	struct gate_worker *serving = NULL;
	unsigned int turn;

	for (struct gate_worker *w = gate_workers; w < &gate_workers[GATE_THREADS_MAX]; w++) {
		if (!atomic_load(&w->used))
			continue;
		if (serving != NULL)
			return false;
		serving = w;
	}
	if (serving == NULL)
		return false;
	turn = serving->seen;
	gate_give_thread_up(serving);
	for (int i = 0; i < GATE_STOP_TRIES && atomic_load(&serving->used); i++) {
		int id = atomic_load(&serving->id);

		if (turn % 2 || atomic_load(&serving->turn) != turn)
			return false; /* the thread ends after it has handled this notification */
		if (id != 0)
			(void)syscall(SYS_tgkill, getpid(), id, GATE_WAKE_UP);
		nanosleep(&pause, NULL);
	}
	return !atomic_load(&serving->used) && atomic_load(&serving->turn) == turn;
}

void gate_start_serving(void)
{
	const struct sigaction wake_up = {.sa_handler = gate_wakes_up};

	(void)sigaction(GATE_WAKE_UP, &wake_up, NULL);
	gate_start_thread();
}
