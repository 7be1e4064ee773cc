/* SPDX-License-Identifier: Apache-2.0 */
/* How the pool gets the gate of a new container. */
#ifndef TSUGIKI_GATE_ADMISSION_H
#define TSUGIKI_GATE_ADMISSION_H

#include "idle.h"
#include "messages.h"

/* Adds a gate by a message of the agent, and starts it. Returns the gate in its process. */
struct pooled_gate *admission_admit(struct gate_message *m);

#endif
