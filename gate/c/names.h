/* SPDX-License-Identifier: Apache-2.0 */
/* The IPv4 names of translated sockets and of their peers. */
#ifndef TSUGIKI_GATE_NAMES_H
#define TSUGIKI_GATE_NAMES_H

#include <stdbool.h>

#include "../../policy/c/translated.h"
#include "worker.h"

/* Answers getsockname(2) or getpeername(2), if the socket is a translated one. */
void gate_answer_name(struct gate_worker *w);

/* Whether FILE is a translated socket: the name of an IPv6 socket contradicts its domain. */
bool gate_file_is_translated(int file);

/*
 * Reads the room that a program has for a name, at its pointer to the length. Returns false if the
 * kernel would not write there, and says why.
 */
bool gate_read_room(struct gate_worker *w, uint32_t *room);

/* Whether there is memory where the program wants the name. It may be read-only. */
bool gate_name_is_mapped(struct gate_worker *w, uint32_t room);

/* Writes a name where the caller wants it, as the kernel does: as much as there is room for, and
 * its whole length. The pointers are the second and the third argument of the call. */
enum gate_written gate_write_name(struct gate_worker *w, uint32_t room,
				  const struct translated_in *name);

#endif
