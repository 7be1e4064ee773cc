/* SPDX-License-Identifier: Apache-2.0 */
/* Memory and descriptors of the callers of a gate. */
#ifndef TSUGIKI_GATE_CALLER_H
#define TSUGIKI_GATE_CALLER_H

#include <stdbool.h>
#include <stddef.h>

#include "worker.h"

/* Whether the caller still waits. If not, data that was read by its thread id may be another
 * thread's.
 */
bool gate_valid(const struct seccomp_notif *n);
bool gate_valid_id(uint64_t id);

/* Reads the caller's memory. Returns the number of bytes before the first one that is not mapped.
 */
size_t gate_read(const struct seccomp_notif *n, uint64_t from, void *to, size_t size);

/* Returns the network namespace of a descriptor of the caller; 0 if it is no socket. Unless BOUND
 * is NULL, BOUND says whether the socket has a port. */
uint64_t gate_netns_of(struct gate_worker *w, int number, bool *bound);

/* Whether a descriptor of the caller is an IPv6 socket, whatever SO_DOMAIN says. Also true if the
 * gate cannot have a duplicate to ask. */
bool gate_may_be_ip6(struct gate_worker *w, int number);

/* A duplicate of a descriptor of the caller, or -1 with an errno. EBADF: the caller has no such
 * descriptor. All others are the gate's: before Linux 6.9, it has no descriptors of a process's
 * threads but the first one (EINVAL), and its own table may be full (EMFILE). */
int gate_file_of(struct gate_worker *w, int number);

/*
 * The file of the caller's memory, or -1. It is the caller's if gate_file_of has reached the caller
 * for this notification, and gate_valid said afterwards that the caller still waits.
 */
int gate_memory_of(struct gate_worker *w);

/* Has the request ask for this file. */
void gate_ask_for_memory(struct gate_worker *w);

/* The file of the memory of a thread has come, for the request with this id. Takes the file. */
void gate_memory_came(uint64_t id, uint32_t thread, int file);

/* Writes into the caller's memory, by the file of gate_memory_of. */
enum gate_written {
	GATE_WRITTEN,
	GATE_WRITTEN_FAULT,   /* the caller itself may not write there */
	GATE_WRITTEN_NOWHERE, /* there is no file of the caller's memory */
};
enum gate_written gate_write(struct gate_worker *w, uint64_t to, const void *from, size_t size);

/* Notes that a signal took the answer of this connect(2) from the caller. */
void gate_note_lost(struct gate_worker *w);

/* Whether this is that call again: after a signal, the kernel starts it again with the same
 * arguments. Then it is noted no longer. */
bool gate_was_lost(struct gate_worker *w);

/* Closes all that a serving thread has of its callers. */
void gate_forget_callers(struct gate_worker *w);

#endif
