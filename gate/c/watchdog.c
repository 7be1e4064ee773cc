// SPDX-License-Identifier: Apache-2.0
/*
 * The watchdog: watches the threads (threads.c), and ends the process of an idle gate of the pool
 * (gatepool.c).
 */
#define _GNU_SOURCE
#include "watchdog.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "gate.h"
#include "messages.h"
#include "pending.h"
#include "sockets.h"
#include "threads.h"
#include "waiting.h"

#define GATE_TICK_MS 20
/* Ticks without work after which the watchdog sleeps until there is work. */
#define GATE_QUIET_TICKS 4

/* The pool takes it as it is: nobody else has this socket. */
static bool gate_hand_over(bool supervised)
{
	const struct gate_handover handover = {.version = GATE_VERSION, .supervised = supervised};
	const int files[GATE_FILES] = {
		[GATE_FILE_CONTROL] = gate.control,	      [GATE_FILE_LISTENER] = gate.listener,
		[GATE_FILE_ADOPT_SOCKET] = gate.adopt_socket, [GATE_FILE_NETNS] = gate.netns,
		[GATE_FILE_BOARD] = gate.board_file,
	};

	/* If the pool is gone, the gate stays. */
	return gate_send_files(gate.pool, &handover, sizeof(handover), files, GATE_FILES,
			       MSG_DONTWAIT);
}

/* Ends the process if the gate is idle; returns if the gate has work. */
static void gate_exit_idle(void)
{
	/* Another process would not know of calls that wait here, nor of the batch, and would send
	 * another. */
	if (gate_waits() || !gate_stop_thread() || gate_waits() || gate_batch_is_under_way())
		return;
	if (gate.stops)
		(void)syscall(SYS_tgkill, getpid(), getpid(), SIGSTOP); /* nobody serves now */
	gate_pending_hand_over(gate_hand_over);
}

/* In how many milliseconds the process may end, if nobody calls before; -1: never. */
static int gate_until_exit(uint64_t now, uint64_t worked)
{
	const uint64_t idle = gate.idle_ms * 1000000ull;

	if (gate.pool < 0)
		return -1;
	return now - worked >= idle ? 0 : (int)((idle - (now - worked)) / 1000000) + 1;
}

int gate_watch(void)
{
	static uint64_t next, worked;
	static int quiet;
	uint64_t now = gate_now();
	int left;

	if (now < next)
		return (int)((next - now) / 1000000) + 1;
	next = now + GATE_TICK_MS * 1000000ull;
	quiet = gate_tick() ? 0 : quiet + 1;
	if (quiet == 0 || worked == 0)
		worked = now;
	if (quiet <= GATE_QUIET_TICKS)
		return GATE_TICK_MS;
	left = gate_until_exit(now, worked);
	if (left == 0) {
		gate_exit_idle();
		(void)gate_tick(); /* starts a thread: ours has ended or is about to */
		worked = now;
	} else {
		gate_set_watchdog_sleeps(true);
		/* A thread that began before it could see that is seen here; one that
		 * begins after it wakes us. */
		if (!gate_tick())
			return left;
		gate_set_watchdog_sleeps(false);
	}
	quiet = 0;
	return GATE_TICK_MS;
}
