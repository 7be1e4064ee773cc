// SPDX-License-Identifier: Apache-2.0
/* The program: one gate, or the gate pool, whose children become gates. */
#define _GNU_SOURCE
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "control.h"
#include "gate.h"
#include "gatepool.h"
#include "pending.h"
#include "start.h"
#include "threads.h"
#include "waiting.h"

/* From linux/seccomp.h, where it is too old. */
#ifndef SECCOMP_IOCTL_NOTIF_SET_FLAGS
#define SECCOMP_IOCTL_NOTIF_SET_FLAGS SECCOMP_IOW(4, __u64)
#endif
#define GATE_SYNC_WAKE_UP 1

static _Noreturn void gate_live(struct gate_life life)
{
	gate_give_up(&gate);
	/*
	 * Callers and the gate take turns: let them do so on one CPU (6.6). And when a caller has
	 * got its descriptor, let the caller go on: the gate only waits for the next call.
	 */
	(void)ioctl(gate.listener, SECCOMP_IOCTL_NOTIF_SET_FLAGS, GATE_SYNC_WAKE_UP);
	(void)syscall(SYS_sched_setscheduler, 0, SCHED_BATCH, &(struct sched_param){0});
	gate_pending_start(life.supervised);
	gate_waiting_start();
	/* The greeting is the first message to the supervisor, before any waiting call. */
	if (life.first)
		gate_greet();
	gate_start_serving();
	gate_converse();
}

int main(int argc, char **argv)
{
	if (gate_is_pool(&gate, argc, argv))
		gatepool_run(&gate, gate_live);
	gate_arguments(&gate, argc, argv);
	gate_live((struct gate_life){.first = true, .supervised = true});
}
