/* SPDX-License-Identifier: Apache-2.0 */
/* The process that holds the idle gates of an agent. */
#ifndef TSUGIKI_GATE_GATEPOOL_H
#define TSUGIKI_GATE_GATEPOOL_H

#include "gate.h"

/* The state in which a process of a gate begins. */
struct gate_life {
	bool first;	 /* it has to greet */
	bool supervised; /* somebody supervises it */
};

/*
 * Holds the gates of an agent's containers until there are no gates and no agent any more; then it
 * ends the process. In the process of each gate that has work, G is that gate, and BECOME is
 * called.
 */
_Noreturn void gatepool_run(struct gate *g, void (*become)(struct gate_life));

#endif
