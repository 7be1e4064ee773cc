/* SPDX-License-Identifier: Apache-2.0 */
/* The orders of supervisors: reading them, and changing a board. */
#ifndef TSUGIKI_GATE_ORDERS_H
#define TSUGIKI_GATE_ORDERS_H

#include "../../policy/c/board.h"
#include "protocol.h"

/*
 * They return 0 or an errno. An order that fails changes nothing, with one exception: if rules
 * cannot be read, the board has no rules, and every call that needs them is passed on.
 */
int gate_order_parse(const void *bytes, size_t length, unsigned int files,
		     struct gate_order *order);
int gate_order_set(struct board *b, const struct gate_order *order);
int gate_order_rules(struct board *b, int file, uint32_t length);

#endif
