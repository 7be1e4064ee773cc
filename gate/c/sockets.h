/* SPDX-License-Identifier: Apache-2.0 */
/* Making sockets, one at a time or in advance. */
#ifndef TSUGIKI_GATE_SOCKETS_H
#define TSUGIKI_GATE_SOCKETS_H

#include "decide.h"
#include "worker.h"

/* Makes a socket. Fails as socket(2), and with EXDEV if the kernel programs do not
 * police it: then somebody has moved the gate out of its cgroup. */
int gate_make(const struct gate_kind *kind);

/* Answers an order of sockets with how many were sent; 0 if there are none. */
unsigned int gate_batch(struct gate_worker *w);

/* Whether one that was sent has not been taken yet. */
bool gate_batch_is_under_way(void);

#endif
