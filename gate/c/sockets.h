/* SPDX-License-Identifier: Apache-2.0 */
/* Making sockets, one at a time or in advance. */
#ifndef TSUGIKI_GATE_SOCKETS_H
#define TSUGIKI_GATE_SOCKETS_H

#include "decide.h"
#include "worker.h"

/* Makes a socket. Fails as socket(2), and with EXDEV if the kernel programs do not check the
 * socket: then somebody has moved the gate out of its cgroup. */
int gate_make(const struct gate_kind *kind);

/* Sends sockets to a shim that has ordered some. Returns how many; the caller answers. */
unsigned int gate_batch(struct gate_worker *w);

/* Whether a shim has not received all of the last order yet. */
bool gate_batch_is_under_way(void);

#endif
