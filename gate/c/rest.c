// SPDX-License-Identifier: Apache-2.0
/* How a gate that has nothing to do goes to rest (porter.c). */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "worker.h"

/* The porter takes it as it is: nobody else knows this socket. */
static bool gate_hand_over(bool supervised)
{
	const struct gate_rest rest = {.version = GATE_VERSION, .supervised = supervised};
	const int files[GATE_FILES] = {
		[GATE_FILE_CONTROL] = gate.control,  [GATE_FILE_LISTENER] = gate.listener,
		[GATE_FILE_DOOR] = gate.door,	     [GATE_FILE_NETNS] = gate.netns,
		[GATE_FILE_BOARD] = gate.board_file,
	};

	/* Without a porter we stay. */
	return gate_send_files(gate.porter, &rest, sizeof(rest), files, GATE_FILES, MSG_DONTWAIT);
}

void gate_rest(void)
{
	/* Another process would not know of it, and send another. */
	if (!gate_stop_thread() || gate_batch_is_under_way())
		return;
	if (gate.stops)
		(void)syscall(SYS_tgkill, getpid(), getpid(), SIGSTOP); /* nobody serves now */
	gate_asks_rest(gate_hand_over);
}
