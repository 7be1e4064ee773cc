/* SPDX-License-Identifier: Apache-2.0 */
/* Functions to make sockets, one at a time or in advance. */
#ifndef TSUGIKI_GATE_SOCKETS_H
#define TSUGIKI_GATE_SOCKETS_H

#include "decide.h"
#include "worker.h"

/* Makes a socket. Fails like socket(2), and with EXDEV if the kernel programs do not check the
 * socket: then the gate was moved out of its cgroup. */
int gate_make(const struct gate_kind *kind);

/* Returns a socket like gate_make, or the thread's spare one if it is of this kind. */
int gate_take(const struct gate_kind *kind);

/* Makes the thread's spare socket, of the kind that was taken last, if the thread has none and is
 * likely to need one. */
void gate_make_spare(void);

/* Closes the thread's spare socket. */
void gate_close_spare(void);

/* Sends sockets to a shim that has ordered some. Returns how many; the caller answers. */
unsigned int gate_batch(struct gate_worker *w);

/* Whether a shim has not received all of the last order yet. */
bool gate_batch_is_under_way(void);

#endif
