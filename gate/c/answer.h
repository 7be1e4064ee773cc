/* SPDX-License-Identifier: Apache-2.0 */
/* How a gate answers a notification. */
#ifndef TSUGIKI_GATE_ANSWER_H
#define TSUGIKI_GATE_ANSWER_H

#include <stdbool.h>

#include "worker.h"

/* Answer the notification in W: with a value, or as a negative one with an errno; or by having the
 * kernel carry on with the call. */
void gate_answer(struct gate_worker *w, int64_t value);
void gate_proceed(struct gate_worker *w);

/* Answers with a descriptor of FILE; fails as the ioctl(2) that gives it to the caller. */
bool gate_deliver(struct gate_worker *w, int file, bool close_on_exec);

/* Has the supervisor answer if the call is to be PASSED on, and else the kernel carry on. */
void gate_pass_if(struct gate_worker *w, bool passed);

#endif
