/* SPDX-License-Identifier: Apache-2.0 */
/* Messages with files, of gates, the gate pool and supervisors. */
#ifndef TSUGIKI_GATE_MESSAGES_H
#define TSUGIKI_GATE_MESSAGES_H

#include <stdbool.h>
#include <stddef.h>

#include "protocol.h"

/* Sends a message with files. Fails like sendmsg(2). */
bool gate_send_files(int to, const void *bytes, size_t length, const int *files, unsigned int count,
		     int flags);

/* A received message. Files that have no room here are closed. */
struct gate_message {
	unsigned char bytes[sizeof(struct gate_admission) + 1];
	size_t length;
	int files[GATE_ADMISSION_FILES];
	unsigned int count;
	bool cut; /* files are lost because the process may open no more */
};

/* Receives a message without waiting, with FLAGS of recvmsg(2). Returns false if there is none. */
bool gate_receive(int from, struct gate_message *m, int flags);
void gate_close_files(struct gate_message *m);

/* Whether poll(2) reports one of EVENTS. */
bool gate_has(int file, short events);

#endif
