/* SPDX-License-Identifier: Apache-2.0 */
/* Pending requests: calls that the supervisor has to answer. And whether there is a supervisor. */
#ifndef TSUGIKI_GATE_PENDING_H
#define TSUGIKI_GATE_PENDING_H

#include <stdbool.h>

#include "worker.h"

/* Has the supervisor answer the notification in W: this one, or the next. */
void gate_pass(struct gate_worker *w);

/* Tells the supervisor of what the gate answers itself, if it wants to know. */
void gate_report(struct gate_worker *w);

/* For the thread that talks with the supervisor. */
void gate_pending_start(bool supervised);
int gate_pending_event(void); /* readable when there is something to do */
void gate_wake_control(void);
bool gate_pending_any_due(void); /* whether there is */
void gate_pending_send(void);

/* Greets the supervisor that has started us. */
void gate_greet(void);

/* Makes FILE the supervisor's end, and gives it the listener and the program's namespace. */
bool gate_supervisor_came(int file);
void gate_supervisor_left(void);
bool gate_supervisor_is_there(void);

/* Says good-bye and ends the process: no program is left. */
_Noreturn void gate_end(void);

/* Has HAND_OVER carried out and ends the process; returns if a call waits for an answer of
 * the supervisor's, or if HAND_OVER fails. */
void gate_pending_hand_over(bool (*hand_over)(bool supervised));

#endif
