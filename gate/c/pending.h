/* SPDX-License-Identifier: Apache-2.0 */
/* Pending requests: calls that the supervisor has to answer. And whether there is a supervisor. */
#ifndef TSUGIKI_GATE_PENDING_H
#define TSUGIKI_GATE_PENDING_H

#include <stdbool.h>

#include "worker.h"

/* Passes the notification in W on to this supervisor or the next one, which answers it. */
void gate_pass(struct gate_worker *w);

/* Reports a call that the gate answers itself to a supervisor that traces. */
void gate_report(struct gate_worker *w);

/* These are for the thread that talks with the supervisor. */
void gate_pending_start(bool supervised);
int gate_pending_event(void); /* an eventfd: readable when there is something to do */
void gate_wake_control(void);
bool gate_pending_any_due(void); /* whether an entry is due */
void gate_pending_send(void);

/* Greets the supervisor that has started us. */
void gate_greet(void);

/* FILE connects to the next supervisor. Gives the supervisor the listener and the program's
 * namespace, and sends the entries that are due. */
bool gate_supervisor_came(int file);
void gate_supervisor_left(void);
bool gate_supervisor_is_there(void);

/* Sends the last messages and ends the process: no program is left. */
_Noreturn void gate_end(void);

/* Calls HAND_OVER and ends the process. Returns if a request is pending, or if HAND_OVER fails. */
void gate_pending_hand_over(bool (*hand_over)(bool supervised));

#endif
