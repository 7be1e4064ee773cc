/* SPDX-License-Identifier: Apache-2.0 */
/* The gate and its supervisor. */
#ifndef TSUGIKI_GATE_CONTROL_H
#define TSUGIKI_GATE_CONTROL_H

/* Talks with the supervisor, and looks after the threads, for ever. */
_Noreturn void gate_converse(void);

#endif
