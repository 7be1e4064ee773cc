/* SPDX-License-Identifier: Apache-2.0 */
/* How a gate handles a notification. */
#ifndef TSUGIKI_GATE_HANDLE_H
#define TSUGIKI_GATE_HANDLE_H

#include "worker.h"

/* Answers the notification in W, or asks the supervisor to. */
void gate_handle(struct gate_worker *w);

#endif
