/* SPDX-License-Identifier: Apache-2.0 */
/* How a porter takes in the gate of a new container. */
#ifndef TSUGIKI_GATE_ADMISSION_H
#define TSUGIKI_GATE_ADMISSION_H

#include "idle.h"
#include "messages.h"

/* A container comes. Returns the gate in its process. */
struct lodger *porter_admit(struct gate_message *m);

#endif
