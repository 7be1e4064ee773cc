/* SPDX-License-Identifier: Apache-2.0 */
/* What supervisors send: reading it, and changing a board as it says. */
#ifndef TSUGIKI_GATE_ORDERS_H
#define TSUGIKI_GATE_ORDERS_H

#include "../../policy/c/board.h"
#include "protocol.h"

/*
 * Orders. What is wrong with one is an errno; it has then changed nothing, but that
 * rules which could not be read are gone: all that they would have told is asked.
 */
int gate_order_parse(const void *bytes, size_t length, unsigned int files,
		     struct gate_order *order);
int gate_order_set(struct board *b, const struct gate_order *order);
int gate_order_rules(struct board *b, int file, uint32_t length);

#endif
