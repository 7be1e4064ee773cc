/* SPDX-License-Identifier: Apache-2.0 */
/* How a gate of the pool gets a process. */
#ifndef TSUGIKI_GATE_FORK_H
#define TSUGIKI_GATE_FORK_H

#include "idle.h"

/* Starts the gate's process, and returns the gate in that process. If the start fails, the pool
 * tries again later (idle_set_retry). */
struct pooled_gate *fork_start(struct pooled_gate *p);

/* The same for a gate that has had a process. If its cgroup is gone, no program is left, and the
 * function removes the gate. */
struct pooled_gate *fork_restart(struct pooled_gate *p);

/* Moves the descriptors of P to their numbers in the process of a gate, and puts them into G. */
void fork_take_files(struct pooled_gate *p, struct gate *g);

#endif
