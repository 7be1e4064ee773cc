/* SPDX-License-Identifier: Apache-2.0 */
/* Host sockets, made before they are needed; see stock.c. */
#ifndef TSUGIKI_GATE_STOCK_H
#define TSUGIKI_GATE_STOCK_H

#include "../shim/marks.h"
#include "gate.h"

/* Makes one. Fails as socket(2), and with EXDEV if the kernel programs do not police
 * it: then somebody has moved the gate out of its cgroup. */
int gate_make(const struct gate_kind *kind);

/* Fills FILES with COUNT sockets, at most MARK_BATCH_MAX; returns how many it got. */
unsigned int gate_stock_take(const struct gate_kind *kind, int *files, unsigned int count);

/* Lets the thread replace what was taken. */
void gate_stock_refill(void);

/* The thread. */
void *gate_stock_run(void *unused);

#endif
