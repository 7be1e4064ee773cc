/* SPDX-License-Identifier: Apache-2.0 */
/* The counters of a gate, and the messages with them. */
#ifndef TSUGIKI_GATE_STATS_H
#define TSUGIKI_GATE_STATS_H

#include <stddef.h>

#include "../../policy/c/board.h"
#include "protocol.h"
#include "worker.h"

/* Counts what has become of the notification in W, NANOSECONDS after it came. */
void gate_count(const struct gate_worker *w, uint64_t nanoseconds);
#define GATE_COUNT(field, n) gate_count_at(offsetof(struct gate_counters, field), n)
void gate_count_at(size_t offset, uint64_t n);
void gate_read_counters(struct board *b, struct gate_counters *to);

/* gate_say_stats sends the counters of a board, gate_say_bye also says that the container has
 * ended. Both fail as send(2). */
bool gate_say_stats(struct board *b, int to, uint64_t tag, int flags);
bool gate_say_bye(struct board *b, int to, int flags);

#endif
