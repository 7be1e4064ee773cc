/* SPDX-License-Identifier: Apache-2.0 */
/* How a gate of a porter gets a process. */
#ifndef TSUGIKI_GATE_FORK_H
#define TSUGIKI_GATE_FORK_H

#include "idle.h"

/* Starts the gate's process, and returns the gate in that one. If it cannot be started, it is
 * late. */
struct lodger *porter_wake(struct lodger *l);

/* The same for a gate that has been there: where its cgroup is gone, nobody is left. */
struct lodger *porter_wake_kept(struct lodger *l);

/* Takes the files of a gate that begins or goes on, into G. */
void porter_move_in(struct lodger *l, struct gate *g);

#endif
