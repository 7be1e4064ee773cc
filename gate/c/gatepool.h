/* SPDX-License-Identifier: Apache-2.0 */
/* The process that keeps the gates of an agent while they have nothing to do. */
#ifndef TSUGIKI_GATE_GATEPOOL_H
#define TSUGIKI_GATE_GATEPOOL_H

#include "gate.h"

/* In what state a process of a gate begins. */
struct gate_life {
	bool first;	 /* it has to greet */
	bool supervised; /* somebody supervises it */
};

/*
 * Keeps the gates of an agent's containers, until there are none and no agent any more;
 * then it ends the process. In the process of each gate that has something to do, G is that gate,
 * and BECOME is called.
 */
_Noreturn void gatepool_run(struct gate *g, void (*become)(struct gate_life));

#endif
