/* SPDX-License-Identifier: Apache-2.0 */
/* How a gate answers a notification. */
#ifndef TSUGIKI_GATE_ANSWER_H
#define TSUGIKI_GATE_ANSWER_H

#include <stdbool.h>

#include "worker.h"

/* gate_answer answers the notification in W with a value; a negative one is an errno. It returns
 * false if the caller does not wait any more. gate_proceed lets the kernel carry on with the call.
 */
bool gate_answer(struct gate_worker *w, int64_t value);
void gate_proceed(struct gate_worker *w);

/* Answers with a descriptor of FILE. Fails like the ioctl(2) that installs it. */
bool gate_deliver(struct gate_worker *w, int file, bool close_on_exec);

/* Gives the caller a descriptor of FILE, without an answer. Returns its number, or -1 like the
 * ioctl(2) that installs it. */
int gate_add(struct gate_worker *w, int file, bool close_on_exec);

/* Answers with a descriptor of a socket that the gate has made or accepted, and closes FILE. Fails
 * like gate_deliver. */
bool gate_deliver_socket(struct gate_worker *w, int file, bool close_on_exec);

/* Waits until no thread has a descriptor of a socket that a program has got. */
void gate_await_deliveries(void);

/* Passes the call on to the supervisor if PASSED, else lets the kernel carry on. */
void gate_pass_if(struct gate_worker *w, bool passed);

#endif
