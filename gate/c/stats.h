/* SPDX-License-Identifier: Apache-2.0 */
/* The counters of a gate, and the messages with them. */
#ifndef TSUGIKI_GATE_STATS_H
#define TSUGIKI_GATE_STATS_H

#include <stddef.h>

#include "../../policy/c/board.h"
#include "protocol.h"
#include "worker.h"

/* Counts the notification in W, which the gate is about to answer itself. It counts before the
 * answer, so that a reader finds each returned call counted, and because the container may end with
 * the answer. If the answer fails and another one replaces it, that is not counted as another
 * call. */
void gate_count_answer(struct gate_worker *w, enum gate_outcome outcome);
/* Counts the time that the answer to the notification in W has taken. */
void gate_count_time(const struct gate_worker *w, uint64_t nanoseconds);
#define GATE_COUNT(field, n) gate_count_at(offsetof(struct gate_counters, field), n)
void gate_count_at(size_t offset, uint64_t n);
void gate_read_counters(struct board *b, struct gate_counters *to);

/* gate_say_stats sends the counters of a board, gate_say_bye also says that the container has
 * ended. Both fail like send(2). */
bool gate_say_stats(struct board *b, int to, uint64_t tag, int flags);
bool gate_say_bye(struct board *b, int to, int flags);

#endif
