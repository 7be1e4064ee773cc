/* SPDX-License-Identifier: Apache-2.0 */
/* Making sockets, one at a time or in advance. */
#ifndef TSUGIKI_GATE_SOCKETS_H
#define TSUGIKI_GATE_SOCKETS_H

#include "decide.h"
#include "worker.h"

/* Makes a socket. Fails as socket(2), and with EXDEV if the kernel programs do not check the
 * socket: then somebody has moved the gate out of its cgroup. */
int gate_make(const struct gate_kind *kind);

/* Gives a socket as gate_make does, and the thread's spare one if it is of this kind. */
int gate_take(const struct gate_kind *kind);

/* Makes the thread's spare socket, if it has none and is likely to need one: of the kind of the
 * last one that was taken. */
void gate_make_spare(void);

/* Closes the thread's spare socket. */
void gate_close_spare(void);

/* Sends sockets to a shim that has ordered some. Returns how many; the caller answers. */
unsigned int gate_batch(struct gate_worker *w);

/* Whether a shim has not received all of the last order yet. */
bool gate_batch_is_under_way(void);

#endif
